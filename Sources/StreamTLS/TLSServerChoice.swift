// Several servers on one port. The client names the server that it wants in its first message (server_name of RFC 6066
// section 3). This choice decides everything: certificates, admitted clients, versions, protocols, tickets.

import COpenSSL

extension TLSServerContext {
  /// The server for a client that asks for `name`, in lower case. Nil refuses the client with the alert
  /// unrecognized_name.
  package typealias Choice = (_ name: String?) -> TLSServerContext?

  /// Runs before anything else in a client's hello is processed. Later would be too late: a ticket of one server must
  /// not admit a client to another server that asks for more.
  static let chooseServer:
    @convention(c) (OpaquePointer?, UnsafeMutablePointer<Int32>?, UnsafeMutableRawPointer?) -> Int32 = {
      ssl, alert, _ in
      guard let ssl else { return SSL_CLIENT_HELLO_ERROR }
      let wire = BufferedBIO.under(ssl)
      // Read from the hello itself: for a client with a ticket of TLS 1.2, OpenSSL returns the ticket's name.
      let name = TLSServerContext.askedName(ssl)
      wire.serverName = name
      guard let choose = wire.choose else { return SSL_CLIENT_HELLO_SUCCESS }
      guard let server = choose(name) else {
        wire.nameIsRefused = true
        alert?.pointee = SSL_AD_UNRECOGNIZED_NAME
        return SSL_CLIENT_HELLO_ERROR
      }
      guard server === wire.server || server.takeOver(ssl) else {
        // Otherwise half of the settings would be another server's.
        wire.lacksMemory = true
        alert?.pointee = SSL_AD_INTERNAL_ERROR
        return SSL_CLIENT_HELLO_ERROR
      }
      wire.server = server
      return SSL_CLIENT_HELLO_SUCCESS
    }

  /// Changes what SSL_set_SSL_CTX(3) does not change. False if there is no memory for it.
  private func takeOver(_ ssl: OpaquePointer) -> Bool {
    guard SSL_set_SSL_CTX(ssl, first) == first else { return false }
    SSL_set_verify(ssl, SSL_CTX_get_verify_mode(first), ContextParts.noteVerification)
    let version = settings.minVersion == .tls13 ? TLS1_3_VERSION : TLS1_2_VERSION
    SSL_ctrl(ssl, SSL_CTRL_SET_MIN_PROTO_VERSION, Int(version), nil)
    let suites = settings.ciphers.filter { $0.hasPrefix("TLS_") }
    return SSL_set_ciphersuites(ssl, (suites.isEmpty ? TLSProfile.suites : suites).joined(separator: ":")) == 1
  }

  /// The name in a client's hello. Nil if there is none, or none that is well-formed, which OpenSSL refuses itself.
  private static func askedName(_ ssl: OpaquePointer) -> String? {
    var start: UnsafePointer<UInt8>?
    var count = 0
    guard SSL_client_hello_get0_ext(ssl, UInt32(TLSEXT_TYPE_server_name), &start, &count) == 1 else { return nil }
    let bytes = Array(UnsafeBufferPointer(start: start, count: count))
    // A list of one entry: its length, the kind of name, the name's length.
    guard bytes.count > 5, bytes[2] == 0, Int(bytes[3]) << 8 | Int(bytes[4]) == bytes.count - 5 else { return nil }
    return String(validating: bytes[5...], as: UTF8.self)?.lowercased()
  }
}
