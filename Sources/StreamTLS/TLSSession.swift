// What a finished handshake leaves: the connection's state with one owner, so that it can go to another lane, once. What came
// early waits inside it.

import ByteStreams
import COpenSSL

public struct TLSSession: ~Copyable, Sendable {
  private let connection: OwnedSSL
  public let facts: TLSFacts

  /// Takes over `ssl`, whose handshake is through.
  init(_ ssl: OpaquePointer, side: TLSSide) {
    connection = OwnedSSL(ssl)
    facts = TLSFacts(ssl, side: side)
  }

  /// Reads what comes first, for whoever decides by it who goes on with the connection; the descriptor of the handshake must be
  /// open still. Throws what broke it.
  public func read(into run: UnsafeMutableRawBufferPointer) throws(TLSFailure) -> Transfer {
    let ssl = connection.ssl
    let wire = TLSWire.under(ssl)
    wire.restart()
    ERR_clear_error()
    var count = 0
    if SSL_read_ex(ssl, run.baseAddress!, run.count, &count) == 1 { return .moved(count) }
    let code = SSL_get_error(ssl, 0)
    let other: TLSSide = facts.side == .server ? .client : .server
    switch code {
    case SSL_ERROR_WANT_READ:
      if let failure = wire.readFailure { throw .system(failure) }
      if wire.sawEnd { throw wire.writeFailure.map { .system($0) } ?? .truncated(other) }
      if wire.sendsTooMany { throw .tooManyKeyUpdates(other) }
      return .blocked(until: .readable)
    case SSL_ERROR_ZERO_RETURN: return .ended
    default:
      let error = OpenSSLErrors.take()
      throw TLSHandshake.known(error, other) ?? .broken(other, error?.text ?? "no reason given")
    }
  }

  /// Gives the state away; whoever takes it frees it.
  consuming func take() -> OpaquePointer { connection.take() }
}

private struct OwnedSSL: ~Copyable, Sendable {
  // Unsafe to the compiler, as it is a pointer: it has one owner at a time by type, and OpenSSL keeps nothing of a connection
  // beside it.
  nonisolated(unsafe) let ssl: OpaquePointer

  init(_ ssl: OpaquePointer) { self.ssl = ssl }

  deinit { SSL_free(ssl) }

  consuming func take() -> OpaquePointer {
    let ssl = ssl
    discard self
    return ssl
  }
}

/// What there is to say of a connection.
public struct TLSFacts: Sendable {
  /// Which side we are.
  public let side: TLSSide
  public let version: TLSVersion
  /// OpenSSL's name: "TLS_AES_128_GCM_SHA256".
  public let cipher: String
  /// The name the client asked for (SNI), in lower case.
  public let serverName: String?
  /// The application protocol both agreed on.
  public let alpn: String?
  /// Whether an earlier session was gone on with.
  public let isResumed: Bool
  /// What was asked of the client; nil where we are one.
  public let asked: TLSServerSettings?
  /// What a client showed, and what it was held against; nil where it showed nothing, or where we are the client.
  public let shown: (chain: TLSClientChain, trust: TLSTrust)?
  /// Who the other side is. Nil if it showed nothing, or nothing was asked to be right.
  public let peer: TLSPeer?

  init(_ ssl: OpaquePointer, side: TLSSide) {
    self.side = side
    version = SSL_version(ssl) == TLS1_3_VERSION ? .tls13 : .tls12
    cipher = String(cString: SSL_CIPHER_get_name(SSL_get_current_cipher(ssl)))
    serverName = TLSWire.under(ssl).serverName
    var name: UnsafePointer<UInt8>?
    var count: UInt32 = 0
    SSL_get0_alpn_selected(ssl, &name, &count)
    alpn = name.map { String(decoding: UnsafeBufferPointer(start: $0, count: Int(count)), as: UTF8.self) }
    asked = TLSWire.under(ssl).server?.settings
    isResumed = SSL_session_reused(ssl) == 1
    let isVerified = SSL_get_verify_mode(ssl) & SSL_VERIFY_PEER != 0
    peer = isVerified ? SSL_get0_peer_certificate(ssl).map { TLSPeer($0) } : nil
    let trust = TLSWire.under(ssl).server?.trust
    shown = isVerified ? trust.flatMap { trust in TLSClientChain(ssl).map { ($0, trust) } } : nil
  }
}
