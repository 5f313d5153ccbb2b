// The settings of a context: values, without OpenSSL. The defaults are Mozilla's intermediate profile
// (https://wiki.mozilla.org/Security/Server_Side_TLS, version 5.7), but without DHE, because it needs parameters and
// nobody misses it.

package enum TLSVersion: String, Hashable, Sendable, CaseIterable {
  case tls12 = "1.2"
  case tls13 = "1.3"
}

package enum TLSProfile {
  /// Of TLS 1.2, in our order, except for a client that puts ChaCha20 first.
  package static let ciphers = [
    "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-RSA-CHACHA20-POLY1305",
  ]
  /// Of TLS 1.3.
  package static let suites = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"]
  package static let groups = "X25519:prime256v1:secp384r1"
}

/// A certificate with its chain, and its key, as paths of PEM files. They may be one file.
package struct TLSIdentity: Hashable, Sendable {
  package var certificate: String
  package var key: String

  package init(certificate: String, key: String) {
    self.certificate = certificate
    self.key = key
  }
}

package struct TLSServerSettings: Hashable, Sendable {
  /// Whether clients must show a certificate; needs `clientCA`.
  package enum ClientAuth: Hashable, Sendable { case none, optional, required }

  /// The first is shown if no name matches. Certificates with the same names and keys of different kinds (RSA, ECDSA)
  /// belong together, and the client chooses.
  package var identities: [TLSIdentity]
  package var minVersion = TLSVersion.tls12
  /// OpenSSL's names, of TLS 1.2 and 1.3 mixed; empty for the profile's. A version without a name here uses the
  /// profile's.
  package var ciphers: [String] = []
  package var clientAuth = ClientAuth.none
  /// PEM file of the authorities that may sign clients' certificates.
  package var clientCA: String?
  /// PEM file of revocation lists. It must have one of each issuer of a client's certificate.
  package var crl: String?
  /// Application protocols in our order of preference. If empty, the client's offer is ignored.
  package var alpn: [String] = []

  package init(identities: [TLSIdentity]) { self.identities = identities }

  /// All files that a context is made from, each once.
  package var files: [String] {
    var files: [String] = []
    for file in identities.flatMap({ [$0.certificate, $0.key] }) + [clientCA, crl].compactMap(\.self)
    where !files.contains(file) { files.append(file) }
    return files
  }
}

package struct TLSClientSettings: Hashable, Sendable {
  /// What is verified of the server's certificate.
  package enum Verification: String, Hashable, Sendable {
    /// Chain and name.
    case full
    /// The chain alone.
    case ca
    case none
  }

  package var verification = Verification.full
  /// PEM file of the authorities to trust; nil for the system's.
  package var ca: String?
  /// Our certificate, for a server that asks for one.
  package var identity: TLSIdentity?
  package var minVersion = TLSVersion.tls12
  package var ciphers: [String] = []
  /// Application protocols to offer; if empty, the extension is not sent.
  package var alpn: [String] = []

  package init() {}

  /// What a server is offered, for messages: "TLS 1.2 with A, B and TLS 1.3 with C".
  package var offer: String {
    let suites = ciphers.filter { $0.hasPrefix("TLS_") }
    let others = ciphers.filter { !$0.hasPrefix("TLS_") }
    let newest = "TLS 1.3 with \((suites.isEmpty ? TLSProfile.suites : suites).joined(separator: ", "))"
    guard minVersion == .tls12 else { return newest }
    return "TLS 1.2 with \((others.isEmpty ? TLSProfile.ciphers : others).joined(separator: ", ")), and \(newest)"
  }
}

/// What is wrong with the settings or with a file they name.
package struct TLSSettingsFault: Error, Hashable, Sendable, CustomStringConvertible {
  /// The part of the settings that a fault is about.
  package enum Part: Hashable, Sendable { case certificate, key, authority, revocations, ciphers }

  /// The file at fault; nil if it is a setting.
  package let file: String?
  /// Nil if it is about no part in particular.
  package let part: Part?
  /// What is wrong: "the key does not belong to the certificate in cert.pem".
  package let text: String
  /// What to do about it.
  package let advice: String?

  package init(_ file: String?, _ part: Part?, _ text: String, advice: String? = nil) {
    self.file = file
    self.part = part
    self.text = text
    self.advice = advice
  }

  package var description: String { (file.map { "\($0): " } ?? "") + text + (advice.map { "; \($0)" } ?? "") }
}
