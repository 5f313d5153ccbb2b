// Which servers a client trusts, and the certificate that it shows. Made from settings, never changed. Reading its
// files blocks, above all the system's many authorities. So it is not made on a lane, and one context serves all
// connections to an endpoint.

import COpenSSL

package final class TLSClientContext: Sendable {
  package let settings: TLSClientSettings
  /// The files it was made from, without those of the system's authorities.
  package let files: [String]
  private let owner: ContextOwner
  private let stamps: TLSFileStamps

  package init(_ settings: TLSClientSettings) throws(TLSSettingsFault) {
    self.settings = settings
    var files: [String] = []
    for file in [settings.ca, settings.identity?.certificate, settings.identity?.key].compactMap({ $0 })
    where !files.contains(file) { files.append(file) }
    self.files = files
    stamps = TLSFileStamps(of: files)
    owner = try ContextParts.make(TLS_client_method(), minVersion: settings.minVersion, ciphers: settings.ciphers)
    if let useless = ContextParts.useless(settings.ciphers, from: settings.minVersion) {
      throw TLSSettingsFault(nil, .ciphers, useless, advice: ContextParts.advice)
    }
    let alpn = try ContextParts.wireFormat(alpn: settings.alpn)
    if !alpn.isEmpty { SSL_CTX_set_alpn_protos(owner.raw, alpn, UInt32(alpn.count)) }
    if let identity = settings.identity { _ = try ContextParts.load(identity, into: owner.raw) }
    guard settings.verification != .none else { return }
    SSL_CTX_set_verify(owner.raw, SSL_VERIFY_PEER, ContextParts.noteVerification)
    guard let ca = settings.ca else {
      guard SSL_CTX_set_default_verify_paths(owner.raw) == 1 else {
        throw ContextParts.failed("SSL_CTX_set_default_verify_paths")
      }
      return
    }
    let store = SSL_CTX_get_cert_store(owner.raw)
    for certificate in try PEMFile(ca, as: .authority).certificates() { X509_STORE_add_cert(store, certificate.raw) }
    // A certificate in `ca` is trusted, self-signed or not.
    X509_STORE_set_flags(store, UInt(X509_V_FLAG_PARTIAL_CHAIN))
  }

  /// Whether a file has changed since it was read. Blocks.
  package var filesHaveChanged: Bool { TLSFileStamps(of: files) != stamps }

  var raw: OpaquePointer { owner.raw }
}
