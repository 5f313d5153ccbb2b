// OpenSSL's queue of errors, one per thread. It is emptied whenever something fails, so that the next failure finds only its own.

import COpenSSL

enum OpenSSLErrors {
  /// An entry of the queue.
  struct Entry {
    let library: Int32
    let reason: Int32
    /// "wrong version number"
    let text: String
  }

  /// Empties the queue and says what was first in it, the cause.
  static func take() -> Entry? {
    let code = ERR_get_error()
    guard code != 0 else { return nil }
    ERR_clear_error()
    let text = ERR_reason_error_string(code).map { String(cString: $0) } ?? "error \(code)"
    return Entry(library: ERR_GET_LIB(code), reason: ERR_GET_REASON(code), text: text)
  }

  /// Empties the queue and says whether there was no memory for something.
  static func takeTellsOfNoMemory() -> Bool {
    var tells = false
    while case let code = ERR_get_error(), code != 0 {
      if ERR_GET_REASON(code) == openssl_R_MALLOC_FAILURE { tells = true }
    }
    return tells
  }
}
