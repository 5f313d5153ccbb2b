// The test's own end of a TLS connection: plain OpenSSL over a blocking socket. It contains none of our code, so it
// shows whether others understand us. Each call blocks for at most thirty seconds: use `onOwnThread`.

import ByteStreams
import COpenSSL
import Glibc
import Synchronization

public final class TLSFarEnd: FarParty {
  /// Settings of the connection.
  public struct Manner: Sendable {
    public var isServer = false
    /// PEM texts, of a server or of a client with a certificate; the certificate is followed by its issuers'.
    public var certificate: String?
    public var key: String?
    /// PEM text of an authority: the other side must present a certificate issued by it.
    public var authority: String?
    /// The server name that a client requests.
    public var serverName: String?
    public var version: ClosedRange<Int32> = TLS1_2_VERSION...TLS1_3_VERSION
    public var ciphers: String?
    /// A server sends fragments of 512 bytes at most; a client asks for them (RFC 6066 section 4).
    public var isFragmented = false
    /// A client's protocols, for SSL_CTX_set_alpn_protos(3).
    public var alpn: [String] = []

    public init() {}
  }

  /// An OpenSSL error, by its name: "tlsv1 alert unknown ca".
  public struct Failure: Error, Hashable, CustomStringConvertible {
    public let description: String
  }

  // A pointer, so the compiler calls it unsafe; a test uses one end from one thread at a time.
  private nonisolated(unsafe) let ssl: OpaquePointer
  private let descriptor: Mutex<Descriptor?>
  private let raw: Int32

  /// Takes over a connected socket. Call `handshake()` next.
  public init(_ socket: consuming Descriptor, _ manner: Manner, resuming session: TLSTicket? = nil) throws {
    raw = socket.raw
    descriptor = Mutex(socket)
    _ = fcntl(raw, F_SETFL, fcntl(raw, F_GETFL) & ~O_NONBLOCK)
    for option in [SO_RCVTIMEO, SO_SNDTIMEO] {
      var timeout = timeval(tv_sec: 30, tv_usec: 0)
      setsockopt(raw, SOL_SOCKET, option, &timeout, socklen_t(MemoryLayout<timeval>.size))
    }
    signal(SIGPIPE, SIG_IGN)  // OpenSSL writes without MSG_NOSIGNAL
    let context = SSL_CTX_new(TLS_method())
    defer { SSL_CTX_free(context) }
    openssl_CTX_set_min_proto_version(context, manner.version.lowerBound)
    openssl_CTX_set_max_proto_version(context, manner.version.upperBound)
    if let ciphers = manner.ciphers { SSL_CTX_set_cipher_list(context, ciphers) }
    if let certificate = manner.certificate, let key = manner.key { try Self.load(certificate, key, into: context) }
    if let authority = manner.authority {
      try Self.trust(authority, in: context)
      SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nil)
    }
    SSL_CTX_set_session_id_context(context, "far end", 7)
    let alpn = manner.alpn.flatMap { [UInt8($0.utf8.count)] + $0.utf8 }
    if !alpn.isEmpty { SSL_CTX_set_alpn_protos(context, alpn, UInt32(alpn.count)) }
    if manner.isFragmented && !manner.isServer {
      SSL_CTX_set_tlsext_max_fragment_length(context, UInt8(TLSEXT_max_fragment_length_512))
    }
    guard let ssl = SSL_new(context) else { throw Self.failure() }
    self.ssl = ssl
    SSL_set_fd(ssl, raw)
    if manner.isFragmented && manner.isServer { SSL_ctrl(ssl, SSL_CTRL_SET_MAX_SEND_FRAGMENT, 512, nil) }
    if manner.isServer { SSL_set_accept_state(ssl) } else { SSL_set_connect_state(ssl) }
    if let name = manner.serverName { openssl_set_tlsext_host_name(ssl, name) }
    if let session { SSL_set_session(ssl, session.raw) }
  }

  deinit { SSL_free(ssl) }

  // MARK: - The connection

  public func handshake() throws { try check(SSL_do_handshake(ssl)) }

  public func send(_ bytes: [UInt8]) throws {
    guard !bytes.isEmpty else { return }
    try check(SSL_write(ssl, bytes, Int32(bytes.count)))
  }

  /// The next bytes; empty after close_notify.
  public func receive() throws -> [UInt8] { try receive(upTo: 16_384) }

  public func receive(upTo count: Int) throws -> [UInt8] {
    var bytes = [UInt8](repeating: 0, count: count)
    ERR_clear_error()
    let got = SSL_read(ssl, &bytes, Int32(count))
    if got > 0 { return Array(bytes[..<Int(got)]) }
    if SSL_get_error(ssl, got) == SSL_ERROR_ZERO_RETURN { return [] }
    throw Self.failure()
  }

  public func receive(exactly count: Int) throws -> [UInt8] {
    var bytes: [UInt8] = []
    while bytes.count < count {
      let more = try receive(upTo: min(16_384, count - bytes.count))
      if more.isEmpty { break }
      bytes += more
    }
    return bytes
  }

  /// Sends close_notify, and can still receive.
  public func finishWriting() { SSL_shutdown(ssl) }

  /// Sends close_notify and closes.
  public func close() {
    guard descriptor.withLock({ $0 != nil }) else { return }
    SSL_shutdown(ssl)
    drop()
  }

  /// Closes without close_notify.
  public func drop() { descriptor.withLock { $0 = nil } }

  /// Resets the connection once the peer's kernel has everything that was sent: a reset destroys bytes in transit.
  public func reset() {
    var unsent: Int32 = 0
    for _ in 0..<30_000 {
      guard ioctl(raw, UInt(TIOCOUTQ), &unsent) == 0, unsent > 0 else { break }
      usleep(1000)
    }
    var now = linger(l_onoff: 1, l_linger: 0)
    setsockopt(raw, SOL_SOCKET, SO_LINGER, &now, socklen_t(MemoryLayout<linger>.size))
    drop()
  }

  /// Sends FIN without close_notify.
  public func cutOff() { shutdown(raw, Int32(SHUT_WR)) }

  /// Sends bytes outside of TLS.
  public func sendRaw(_ bytes: [UInt8]) { _ = Glibc.send(raw, bytes, bytes.count, Int32(MSG_NOSIGNAL)) }

  /// Changes the keys, and can ask the peer to do the same.
  public func updateKeys(askingForAnswer: Bool) throws {
    try check(SSL_key_update(ssl, askingForAnswer ? SSL_KEY_UPDATE_REQUESTED : SSL_KEY_UPDATE_NOT_REQUESTED))
    try check(SSL_do_handshake(ssl))
  }

  /// Sends a server's ticket, in TLS 1.3.
  public func sendTicket() throws {
    try check(SSL_new_session_ticket(ssl))
    try check(SSL_do_handshake(ssl))
  }

  /// Asks for a renegotiation, which TLS 1.2 has.
  public func renegotiate() throws {
    try check(SSL_renegotiate(ssl))
    try check(SSL_do_handshake(ssl))
  }

  // MARK: - Facts

  public var isResumed: Bool { SSL_session_reused(ssl) == 1 }
  public var version: String { String(cString: SSL_get_version(ssl)) }
  public var cipher: String { String(cString: SSL_CIPHER_get_name(SSL_get_current_cipher(ssl))) }

  public var alpn: String? {
    var name: UnsafePointer<UInt8>?
    var count: UInt32 = 0
    SSL_get0_alpn_selected(ssl, &name, &count)
    return name.map { String(decoding: UnsafeBufferPointer(start: $0, count: Int(count)), as: UTF8.self) }
  }

  /// The server name that a client requested.
  public var askedName: String? { SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name).map { String(cString: $0) } }

  /// The common name of the peer's certificate.
  public var peerName: String? {
    guard let certificate = SSL_get0_peer_certificate(ssl) else { return nil }
    var name = [CChar](repeating: 0, count: 256)
    X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, &name, 256)
    return String(decoding: name.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
  }

  /// The ticket to resume with next time.
  public var ticket: TLSTicket? { SSL_get1_session(ssl).map { TLSTicket(owning: $0) } }

  // MARK: - OpenSSL

  private func check(_ result: Int32) throws { if result <= 0 { throw Self.failure() } }

  private static func failure() -> Failure {
    let code = ERR_get_error()
    ERR_clear_error()
    return Failure(description: ERR_reason_error_string(code).map { String(cString: $0) } ?? "the connection is gone")
  }

  private static func load(_ certificate: String, _ key: String, into context: OpaquePointer?) throws {
    let first = X509Reader(certificate)
    let second = X509Reader(key)
    let leaf = PEM_read_bio_X509(first.bio, nil, nil, nil)
    let itsKey = PEM_read_bio_PrivateKey(second.bio, nil, nil, nil)
    defer {
      X509_free(leaf)
      EVP_PKEY_free(itsKey)
    }
    guard SSL_CTX_use_certificate(context, leaf) == 1, SSL_CTX_use_PrivateKey(context, itsKey) == 1 else {
      throw failure()
    }
    // The issuers' certificates follow in the same text.
    while let issuer = PEM_read_bio_X509(first.bio, nil, nil, nil) {
      defer { X509_free(issuer) }
      guard openssl_CTX_add1_chain_cert(context, issuer) == 1 else { throw failure() }
    }
    ERR_clear_error()
  }

  private static func trust(_ authority: String, in context: OpaquePointer?) throws {
    let reader = X509Reader(authority)
    let certificate = PEM_read_bio_X509(reader.bio, nil, nil, nil)
    defer { X509_free(certificate) }
    guard X509_STORE_add_cert(SSL_CTX_get_cert_store(context), certificate) == 1 else { throw failure() }
  }
}

private final class X509Reader {
  let bio: OpaquePointer?
  init(_ text: String) {
    bio = BIO_new(BIO_s_mem())
    BIO_write(bio, text, Int32(text.utf8.count))
  }
  deinit { BIO_free(bio) }
}

/// A session that can be resumed.
public final class TLSTicket: Sendable {
  fileprivate nonisolated(unsafe) let raw: OpaquePointer  // OpenSSL counts references and locks it itself
  fileprivate init(owning raw: OpaquePointer) { self.raw = raw }
  deinit { SSL_SESSION_free(raw) }
}
