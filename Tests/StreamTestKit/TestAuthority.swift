// Certificates made at run time: an authority that issues what a test needs, as PEM texts and files. Keys are P-256, or
// RSA where a test needs another kind.

import ByteStreams
import COpenSSL
import Glibc

public final class TestAuthority: Sendable {
  /// The content of a certificate.
  public struct Wish: Sendable {
    public var commonName: String
    /// As in x509v3_config(5): "DNS:gw.test,IP:127.0.0.1,email:ada@lab.test".
    public var names: String?
    /// Start and end, in seconds from now.
    public var validity: ClosedRange<Int> = -3600...86_400
    public var isAuthority = false
    public var usesRSA = false

    public init(_ commonName: String, names: String? = nil) {
      self.commonName = commonName
      self.names = names
    }
  }

  /// A certificate and its key in PEM.
  public struct Issued: Sendable {
    public let certificate: String
    public let key: String
    public let serial: Int
  }

  // Pointers, so the compiler calls them unsafe; the objects never change.
  private nonisolated(unsafe) let certificate: OpaquePointer
  private nonisolated(unsafe) let key: OpaquePointer
  /// The authority's own certificate.
  public let pem: String

  /// Signs itself.
  public init(_ name: String = "Test Authority") throws {
    var wish = Wish(name)
    wish.isAuthority = true
    let (certificate, key) = try Self.make(wish, serial: 1, issuer: nil)
    (self.certificate, self.key) = (certificate, key)
    pem = try Self.text { PEM_write_bio_X509($0, certificate) }
  }

  private init(_ certificate: OpaquePointer, _ key: OpaquePointer) throws {
    (self.certificate, self.key) = (certificate, key)
    pem = try Self.text { PEM_write_bio_X509($0, certificate) }
  }

  deinit {
    X509_free(certificate)
    EVP_PKEY_free(key)
  }

  /// An intermediate authority, signed by this one.
  public func subordinate(_ name: String) throws -> TestAuthority {
    var wish = Wish(name)
    wish.isAuthority = true
    let serial = Int.random(in: 2...Int(Int32.max))
    let (made, itsKey) = try Self.make(wish, serial: serial, issuer: (certificate, key))
    return try TestAuthority(made, itsKey)
  }

  public func issue(_ wish: Wish) throws -> Issued {
    let serial = Int.random(in: 2...Int(Int32.max))
    let (made, itsKey) = try Self.make(wish, serial: serial, issuer: (certificate, key))
    defer {
      X509_free(made)
      EVP_PKEY_free(itsKey)
    }
    return Issued(
      certificate: try Self.text { PEM_write_bio_X509($0, made) },
      key: try Self.text { PEM_write_bio_PrivateKey($0, itsKey, nil, nil, 0, nil, nil) }, serial: serial)
  }

  /// Issues a certificate into `NAME.pem` and its key into `NAME.key` of a folder. Returns their paths.
  @discardableResult
  public func write(_ name: String, _ wish: Wish, to folder: TemporaryFolder) throws -> (
    certificate: String, key: String
  ) {
    let issued = try issue(wish)
    try folder.write("\(name).pem", issued.certificate)
    try folder.write("\(name).key", issued.key)
    return (folder / "\(name).pem", folder / "\(name).key")
  }

  /// A revocation list with these serial numbers.
  public func revocationList(of serials: [Int], validity: ClosedRange<Int> = -3600...86_400) throws -> String {
    guard let list = X509_CRL_new() else { throw SystemError("X509_CRL_new", ENOMEM) }
    defer { X509_CRL_free(list) }
    X509_CRL_set_version(list, 1)
    X509_CRL_set_issuer_name(list, X509_get_subject_name(certificate))
    let from = X509_gmtime_adj(nil, validity.lowerBound)
    let to = X509_gmtime_adj(nil, validity.upperBound)
    X509_CRL_set1_lastUpdate(list, from)
    X509_CRL_set1_nextUpdate(list, to)
    for serial in serials {
      let number = ASN1_INTEGER_new()
      ASN1_INTEGER_set(number, serial)
      let entry = X509_REVOKED_new()
      X509_REVOKED_set_serialNumber(entry, number)
      X509_REVOKED_set_revocationDate(entry, from)
      X509_CRL_add0_revoked(list, entry)
      ASN1_INTEGER_free(number)
    }
    ASN1_TIME_free(from)
    ASN1_TIME_free(to)
    try Self.check("X509_CRL_sign", X509_CRL_sign(list, key, EVP_sha256()))
    return try Self.text { PEM_write_bio_X509_CRL($0, list) }
  }

  // MARK: - Making

  private static func make(
    _ wish: Wish, serial: Int, issuer: (certificate: OpaquePointer, key: OpaquePointer)?
  ) throws -> (OpaquePointer, OpaquePointer) {
    let key = try makeKey(wish.usesRSA)
    guard let made = X509_new() else { throw SystemError("X509_new", ENOMEM) }
    X509_set_version(made, 2)
    ASN1_INTEGER_set(X509_get_serialNumber(made), serial)
    X509_gmtime_adj(X509_getm_notBefore(made), wish.validity.lowerBound)
    X509_gmtime_adj(X509_getm_notAfter(made), wish.validity.upperBound)
    X509_set_pubkey(made, key)
    let name = X509_get_subject_name(made)
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, wish.commonName, -1, -1, 0)
    X509_set_issuer_name(made, issuer.map { X509_get_subject_name($0.certificate) } ?? name)
    try add(NID_basic_constraints, wish.isAuthority ? "critical,CA:TRUE" : "CA:FALSE", to: made)
    if wish.isAuthority { try add(NID_key_usage, "critical,keyCertSign,cRLSign", to: made) }
    if let names = wish.names { try add(NID_subject_alt_name, names, to: made) }
    try check("X509_sign", X509_sign(made, issuer?.key ?? key, EVP_sha256()))
    return (made, key)
  }

  private static func makeKey(_ usesRSA: Bool) throws -> OpaquePointer {
    let context = EVP_PKEY_CTX_new_from_name(nil, usesRSA ? "RSA" : "EC", nil)
    defer { EVP_PKEY_CTX_free(context) }
    try check("EVP_PKEY_keygen_init", EVP_PKEY_keygen_init(context))
    if usesRSA {
      try check("EVP_PKEY_CTX_set_rsa_keygen_bits", EVP_PKEY_CTX_set_rsa_keygen_bits(context, 2048))
    } else {
      try check("EVP_PKEY_CTX_set_group_name", EVP_PKEY_CTX_set_group_name(context, "P-256"))
    }
    var key: OpaquePointer?
    try check("EVP_PKEY_generate", EVP_PKEY_generate(context, &key))
    guard let key else { throw SystemError("EVP_PKEY_generate", ENOMEM) }
    return key
  }

  private static func add(_ kind: Int32, _ value: String, to certificate: OpaquePointer) throws {
    guard let item = X509V3_EXT_conf_nid(nil, nil, kind, value) else {
      throw SystemError("X509V3_EXT_conf_nid", EINVAL)
    }
    X509_add_ext(certificate, item, -1)
    X509_EXTENSION_free(item)
  }

  private static func text(_ write: (OpaquePointer) -> Int32) throws -> String {
    guard let bio = BIO_new(BIO_s_mem()) else { throw SystemError("BIO_new", ENOMEM) }
    defer { BIO_free(bio) }
    try check("PEM_write_bio", write(bio))
    var data: UnsafeMutablePointer<CChar>?
    let count = openssl_BIO_get_mem_data(bio, &data)
    return String(decoding: UnsafeRawBufferPointer(start: data, count: count), as: UTF8.self)
  }

  private static func check(_ call: String, _ result: Int32) throws {
    if result <= 0 { throw SystemError(call, EINVAL) }
  }
}
