// OpenSSL's queue of errors, one per thread. Each failure empties it, so that the next one finds only its own errors.

import COpenSSL

enum OpenSSLErrors {
  /// An entry of the queue.
  struct Entry {
    let library: Int32
    let reason: Int32
    /// "wrong version number"
    let text: String
  }

  /// Empties the queue and returns its first entry, the cause.
  static func take() -> Entry? {
    let code = ERR_get_error()
    guard code != 0 else { return nil }
    ERR_clear_error()
    let text = ERR_reason_error_string(code).map { String(cString: $0) } ?? "error \(code)"
    return Entry(library: ERR_GET_LIB(code), reason: ERR_GET_REASON(code), text: text)
  }

  /// Empties the queue and returns whether an allocation failed.
  static func takeIsOutOfMemory() -> Bool {
    var tells = false
    while case let code = ERR_get_error(), code != 0 {
      if ERR_GET_REASON(code) == openssl_R_MALLOC_FAILURE { tells = true }
    }
    return tells
  }
}
