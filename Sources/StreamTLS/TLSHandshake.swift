// A TLS handshake over a descriptor. The caller owns the descriptor, waits for it and decides when to give up. The
// handshake does not block and has no deadline of its own. Its session can move to another lane.

import ByteStreams
import COpenSSL

package final class TLSHandshake {
  package enum Progress: Equatable, Sendable {
    /// `takeSession()` returns the connection.
    case finished
    /// Call `advance()` again when the descriptor is ready.
    case blocked(until: Readiness)
  }

  private var ssl: OpaquePointer?
  private let wire: BufferedBIO
  private let side: TLSSide
  // Kept for OpenSSL's callbacks, which use the context.
  private let contextOwner: AnyObject
  private var isDone = false

  /// We are the server. `descriptor` is a connected, non-blocking socket; the caller still owns it, and it must outlive
  /// this object. Throws only for lack of memory.
  package init(_ context: TLSServerContext, over descriptor: Int32) throws(TLSFailure) {
    (ssl, wire) = try Self.make(context.first, over: descriptor)
    side = .server
    contextOwner = context
    wire.server = context
    SSL_set_accept_state(ssl)
  }

  /// We are one of several servers that share a port. `choose` selects one by the name in the client's hello. `first`
  /// is the context to begin with, any of them.
  package convenience init(
    _ first: TLSServerContext, choosing choose: @escaping TLSServerContext.Choice, over descriptor: Int32
  ) throws(TLSFailure) {
    try self.init(first, over: descriptor)
    wire.choose = choose
  }

  /// We are the client of a server that must have `name`: a host, or an address in digits.
  package init(_ context: TLSClientContext, to name: String, over descriptor: Int32) throws(TLSFailure) {
    (ssl, wire) = try Self.make(context.raw, over: descriptor)
    side = .client
    contextOwner = context
    wire.client = context
    SSL_set_connect_state(ssl)
    let isAddress = SocketAddress(numeric: name, port: 0) != nil
    if !isAddress {
      // RFC 6066 section 3: names only, and without the root's dot. The call also fails for a name that is too long to
      // be one: the server then gets no name, and its certificate is still checked.
      openssl_set_tlsext_host_name(ssl, name.hasSuffix(".") ? String(name.dropLast()) : name)
    }
    guard context.settings.verification == .full else { return }
    SSL_set_hostflags(ssl, UInt32(X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS))
    // Certificates hold addresses without a zone.
    let isSet =
      isAddress
      ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), String(name.prefix { $0 != "%" })) == 1
      : name != "." && SSL_set1_host(ssl, name.hasSuffix(".") ? String(name.dropLast()) : name) == 1
    // A name that can't be set must not mean that any certificate is accepted.
    if !isSet && SSL_set1_host(ssl, "no.name.invalid") != 1 { throw .noMemory }
  }

  deinit { SSL_free(ssl) }

  private static func make(
    _ context: OpaquePointer, over descriptor: Int32
  ) throws(TLSFailure) -> (OpaquePointer, BufferedBIO) {
    ERR_clear_error()
    guard let ssl = SSL_new(context) else { throw .noMemory }
    let wire = BufferedBIO(over: descriptor)
    guard wire.attach(to: ssl) else {
      SSL_free(ssl)
      throw .noMemory
    }
    return (ssl, wire)
  }

  /// Continues as far as it can. Throws the reason if the handshake fails. The other side was then sent an alert or, if
  /// it sent plain HTTP, a 400, as far as the socket took it. Its input may be unread: close in order, or the reset
  /// destroys that answer.
  package func advance() throws(TLSFailure) -> Progress {
    guard !isDone else { return try finish() }
    wire.restart()
    guard wire.flush() else { return .blocked(until: .writable) }
    ERR_clear_error()
    wire.isCorked = true  // a flight is sent by one call
    let result = SSL_do_handshake(ssl)
    isDone = result == 1
    let code = isDone ? SSL_ERROR_NONE : SSL_get_error(ssl, result)
    let error = isDone ? nil : OpenSSLErrors.take()
    let isSent = wire.flush()
    if isDone { return try finish() }
    switch code {
    case SSL_ERROR_WANT_READ:
      // Everything that the other side sent before the break was read: an alert with the reason comes first.
      if let failure = wire.readFailure ?? wire.writeFailure { throw .system(failure) }
      guard !wire.sawEnd else { throw .closedInHandshake(other) }
      // Wait first until our flight is sent: the other side has no reason to answer before.
      return .blocked(until: isSent ? .readable : .writable)
    default: throw failure(error)
    }
  }

  private func finish() throws(TLSFailure) -> Progress {
    guard wire.flush() else { return .blocked(until: .writable) }
    // A client that disconnects after the handshake may already have sent its bytes: they are still read.
    if side == .client, let failure = wire.writeFailure { throw .system(failure) }
    return .finished
  }

  /// The connection, once `advance()` has returned `.finished`; pass the descriptor on with it. Call it only once.
  package func takeSession() -> TLSSession {
    guard isDone, let ssl = ssl.take() else { preconditionFailure("there is no session yet, or no more") }
    let session = TLSSession(ssl, side: side)
    wire.settle()
    return session
  }

  /// The name that the client asked for; nil before its hello was read, or if it has none.
  package var serverName: String? { wire.serverName }

  private var other: TLSSide { side == .server ? .client : .server }

  // MARK: - What went wrong

  private func failure(_ error: OpenSSLErrors.Entry?) -> TLSFailure {
    if wire.lacksMemory { return .noMemory }
    if wire.nameIsRefused { return .unknownName(wire.serverName) }
    if let fault = wire.certificateFault { return .certificate(fault) }
    guard let error else { return .broken(other, "no reason given") }
    if let failure = Self.known(error, other) { return failure }
    if let other = NonTLSBytes(wire.first) {
      if side == .server { wire.answer(other.answer) }
      switch other {
      case .http: return .plainHTTP
      case .other(let what): return .notTLS(what)
      }
    }
    if error.library == ERR_LIB_SSL, error.reason == SSL_R_WRONG_VERSION_NUMBER {
      return .notTLS("unknown bytes")
    }
    return .broken(other, error.text)
  }

  static func known(_ error: OpenSSLErrors.Entry?, _ other: TLSSide) -> TLSFailure? {
    guard let error else { return nil }
    if error.reason == openssl_R_MALLOC_FAILURE { return .noMemory }
    guard error.library == ERR_LIB_SSL else { return nil }
    let reason = error.reason
    return switch reason {
    case SSL_R_UNSUPPORTED_PROTOCOL, SSL_R_NO_PROTOCOLS_AVAILABLE, SSL_R_VERSION_TOO_LOW: .noCommonVersion
    case SSL_R_NO_SHARED_CIPHER, SSL_R_NO_SUITABLE_KEY_SHARE, SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM,
      SSL_R_NO_SHARED_GROUPS, SSL_R_NO_SUITABLE_GROUPS:
      .noCommonCipher
    case SSL_R_NO_APPLICATION_PROTOCOL: .noCommonProtocol
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE: .noCertificate
    // Alerts from the other side.
    case SSL_AD_REASON_OFFSET..<SSL_AD_REASON_OFFSET + 256: .alert(by: other, UInt8(reason - SSL_AD_REASON_OFFSET))
    default: nil
    }
  }
}
