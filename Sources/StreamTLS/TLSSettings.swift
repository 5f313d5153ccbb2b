// What a context is made of: values, without OpenSSL. The defaults are Mozilla's intermediate profile
// (https://wiki.mozilla.org/Security/Server_Side_TLS, version 5.7), without DHE, which needs parameters and which nobody lacks.

public enum TLSVersion: String, Hashable, Sendable, CaseIterable {
  case tls12 = "1.2"
  case tls13 = "1.3"
}

public enum TLSProfile {
  /// Of TLS 1.2. In our order, but for a client who puts ChaCha20 first.
  public static let ciphers = [
    "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-RSA-CHACHA20-POLY1305",
  ]
  /// Of TLS 1.3.
  public static let suites = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"]
  public static let groups = "X25519:prime256v1:secp384r1"
}

/// A certificate with the chain behind it, and its key, as paths of PEM files. They may be one file.
public struct TLSIdentity: Hashable, Sendable {
  public var certificate: String
  public var key: String

  public init(certificate: String, key: String) {
    self.certificate = certificate
    self.key = key
  }
}

public struct TLSServerSettings: Hashable, Sendable {
  /// Whether clients have to show a certificate; needs `clientCA`.
  public enum ClientAuth: Hashable, Sendable { case none, optional, required }

  /// The server names that clients may ask for (SNI).
  public enum Names: Hashable, Sendable {
    /// Any name, and none; where no certificate has it, the first one is shown.
    case any
    /// Only these: "gw.example", "*.example". Others get the alert unrecognized_name; so does who names none, unless `orNone`.
    case only(Set<String>, orNone: Bool)
  }

  /// The first is shown where no name matches. Certificates with the same names and keys of different kinds (RSA, ECDSA) go
  /// together, and the client chooses.
  public var identities: [TLSIdentity]
  public var minVersion = TLSVersion.tls12
  /// OpenSSL's names, of TLS 1.2 and 1.3 mixed; empty for the profile's. With names of one version only, the profile's stay for the other.
  public var ciphers: [String] = []
  public var clientAuth = ClientAuth.none
  /// PEM file of those who may sign clients' certificates.
  public var clientCA: String?
  /// PEM file of revocation lists. There must be one of each issuer of a client's certificate.
  public var crl: String?
  /// Application protocols in the order we prefer. With none, what the client offers does not matter.
  public var alpn: [String] = []
  public var names = Names.any

  public init(identities: [TLSIdentity]) { self.identities = identities }

  /// All that a context is made from, each once.
  public var files: [String] {
    var files: [String] = []
    for file in identities.flatMap({ [$0.certificate, $0.key] }) + [clientCA, crl].compactMap(\.self)
    where !files.contains(file) { files.append(file) }
    return files
  }
}

public struct TLSClientSettings: Hashable, Sendable {
  /// What of the server's certificate must be right.
  public enum Verification: String, Hashable, Sendable {
    /// Chain and name.
    case full
    /// The chain alone.
    case ca
    case none
  }

  public var verification = Verification.full
  /// PEM file of those to trust; nil for the system's.
  public var ca: String?
  /// Ours, for a server that asks for one.
  public var identity: TLSIdentity?
  public var minVersion = TLSVersion.tls12
  public var ciphers: [String] = []
  /// Application protocols to offer; with none the extension is left out.
  public var alpn: [String] = []

  public init() {}
}

/// What is wrong with the settings or with a file they name.
public struct TLSSettingsFault: Error, Hashable, Sendable, CustomStringConvertible {
  /// What of the settings a fault is about.
  public enum Part: Hashable, Sendable { case certificate, key, authority, revocations, ciphers }

  /// The file at fault; nil when it is a setting.
  public let file: String?
  /// Nil when it is about none in particular.
  public let part: Part?
  /// What is wrong: "the key does not belong to the certificate in cert.pem".
  public let text: String
  /// What to do about it.
  public let advice: String?

  public init(_ file: String?, _ part: Part?, _ text: String, advice: String? = nil) {
    self.file = file
    self.part = part
    self.text = text
    self.advice = advice
  }

  public var description: String { (file.map { "\($0): " } ?? "") + text + (advice.map { "; \($0)" } ?? "") }
}
