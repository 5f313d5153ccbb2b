// The result of a finished handshake: the connection's state with one owner, so that it can move to another lane, once.
// Bytes that came early wait inside it.

import ByteStreams
import COpenSSL

package struct TLSSession: ~Copyable, Sendable {
  private let connection: OwnedSSL
  package let facts: TLSFacts

  /// Takes ownership of `ssl`, whose handshake is finished.
  init(_ ssl: OpaquePointer, side: TLSSide) {
    connection = OwnedSSL(ssl)
    facts = TLSFacts(ssl, side: side)
  }

  /// Reads the first bytes, for code that chooses by them how the connection continues. The descriptor of the handshake
  /// must still be open. Throws the error that broke the connection.
  package func read(into run: UnsafeMutableRawBufferPointer) throws(TLSFailure) -> Transfer {
    let ssl = connection.ssl
    let wire = BufferedBIO.under(ssl)
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

  /// Writes an answer of up to a record (16 KiB), for code that talks to the client before its route has it. What the
  /// socket does not take goes out with later output.
  package func write(_ run: UnsafeRawBufferPointer) throws(TLSFailure) {
    let ssl = connection.ssl
    BufferedBIO.under(ssl).restart()
    ERR_clear_error()
    var taken = 0
    guard SSL_write_ex(ssl, run.baseAddress!, run.count, &taken) == 1 else {
      let error = OpenSSLErrors.take()
      if let failure = BufferedBIO.under(ssl).writeFailure { throw .system(failure) }
      throw .broken(facts.side == .server ? .client : .server, error?.text ?? "no reason given")
    }
  }

  /// Hands over the state; the caller frees it.
  consuming func take() -> OpaquePointer { connection.take() }
}

private struct OwnedSSL: ~Copyable, Sendable {
  // Unsafe only to the compiler, because it is a pointer: by type it has one owner at a time, and OpenSSL keeps nothing
  // of a connection elsewhere.
  nonisolated(unsafe) let ssl: OpaquePointer

  init(_ ssl: OpaquePointer) { self.ssl = ssl }

  deinit { SSL_free(ssl) }

  consuming func take() -> OpaquePointer {
    let ssl = ssl
    discard self
    return ssl
  }
}

/// What is known about a connection after its handshake.
package struct TLSFacts: Sendable {
  /// Which side we are.
  package let side: TLSSide
  package let version: TLSVersion
  /// OpenSSL's name: "TLS_AES_128_GCM_SHA256".
  package let cipher: String
  /// The name the client asked for (SNI), in lower case.
  package let serverName: String?
  /// The application protocol both agreed on.
  package let alpn: String?
  /// Whether an earlier session was resumed.
  package let isResumed: Bool
  /// The settings of the server; nil where we are the client.
  package let asked: TLSServerSettings?
  /// What the client showed, and what it was verified against. Nil if it showed nothing, or if we are the client.
  package let shown: (chain: TLSClientChain, trust: TLSTrust)?
  /// The identity of the other side. Nil if it showed no certificate, or if none was verified.
  package let peer: TLSPeer?

  init(_ ssl: OpaquePointer, side: TLSSide) {
    self.side = side
    version = SSL_version(ssl) == TLS1_3_VERSION ? .tls13 : .tls12
    cipher = String(cString: SSL_CIPHER_get_name(SSL_get_current_cipher(ssl)))
    serverName = BufferedBIO.under(ssl).serverName
    var name: UnsafePointer<UInt8>?
    var count: UInt32 = 0
    SSL_get0_alpn_selected(ssl, &name, &count)
    alpn = name.map { String(decoding: UnsafeBufferPointer(start: $0, count: Int(count)), as: UTF8.self) }
    asked = BufferedBIO.under(ssl).server?.settings
    isResumed = SSL_session_reused(ssl) == 1
    let isVerified = SSL_get_verify_mode(ssl) & SSL_VERIFY_PEER != 0
    peer = isVerified ? SSL_get0_peer_certificate(ssl).map { TLSPeer($0) } : nil
    let trust = BufferedBIO.under(ssl).server?.trust
    shown = isVerified ? trust.flatMap { trust in TLSClientChain(ssl).map { ($0, trust) } } : nil
  }
}
