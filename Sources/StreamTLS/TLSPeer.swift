// The identity of the other side, from the certificate that it has proved to own.

import COpenSSL

/// The identity of a client or server whose certificate was verified.
package struct TLSPeer: Hashable, Sendable {
  /// In the format of RFC 4514: "CN=ada,O=Lab".
  package let subject: String
  package let commonName: String?
  /// The alternative names of the subject (RFC 5280 section 4.2.1.6), by kind, in the order of the certificate.
  package let dnsNames: [String]
  package let emails: [String]
  package let uris: [String]
  /// SHA-256 of the certificate, in lower-case hexadecimal digits.
  package let fingerprint: String

  init(_ certificate: OpaquePointer) {
    let facts = CertificateFacts(certificate)
    subject = facts.subject
    commonName = facts.commonName
    dnsNames = facts.dnsNames
    emails = facts.emails
    uris = facts.uris
    fingerprint = CertificateFacts.fingerprint(certificate)
  }
}

struct CertificateFacts {
  let subject: String
  let commonName: String?
  private(set) var dnsNames: [String] = []
  private(set) var emails: [String] = []
  private(set) var uris: [String] = []

  init(_ certificate: OpaquePointer) {
    let name = X509_get_subject_name(certificate)
    subject = Self.text(of: name)
    commonName = Self.commonName(of: name)
    readAlternativeNames(certificate)
  }

  /// "CN=ada,O=Lab", with control characters and non-ASCII bytes escaped.
  static func text(of name: OpaquePointer?) -> String {
    guard let name, let bio = BIO_new(BIO_s_mem()) else { return "" }
    defer { BIO_free(bio) }
    // The flags of XN_FLAG_RFC2253, which is a macro with casts.
    let flags: UInt = 1 | 2 | 4 | 0x10 | 0x100 | 0x200 | 1 << 16 | 1 << 20
    X509_NAME_print_ex(bio, name, 0, flags)
    var data: UnsafeMutablePointer<CChar>?
    let count = openssl_BIO_get_mem_data(bio, &data)
    guard let data, count > 0 else { return "" }
    return String(decoding: UnsafeRawBufferPointer(start: data, count: count), as: UTF8.self)
  }

  /// The last one, which is the most specific.
  private static func commonName(of name: OpaquePointer?) -> String? {
    var index: Int32 = -1
    while true {
      let next = X509_NAME_get_index_by_NID(name, NID_commonName, index)
      guard next >= 0 else { break }
      index = next
    }
    guard index >= 0, let value = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(name, index)) else { return nil }
    var bytes: UnsafeMutablePointer<UInt8>?
    let count = ASN1_STRING_to_UTF8(&bytes, value)
    guard count >= 0, let bytes else { return nil }
    defer { CRYPTO_free(bytes, nil, 0) }
    return printable(UnsafeRawBufferPointer(start: bytes, count: Int(count)))
  }

  private mutating func readAlternativeNames(_ certificate: OpaquePointer) {
    guard let raw = X509_get_ext_d2i(certificate, NID_subject_alt_name, nil, nil) else { return }
    let names = OpaquePointer(raw)
    defer { GENERAL_NAMES_free(names) }
    for index in 0..<openssl_sk_GENERAL_NAME_num(names) {
      guard let name = openssl_sk_GENERAL_NAME_value(names, index), let value = openssl_general_name_text(name),
        let bytes = ASN1_STRING_get0_data(value),
        let text = Self.printable(UnsafeRawBufferPointer(start: bytes, count: Int(ASN1_STRING_length(value))))
      else { continue }
      switch name.pointee.type {
      case GEN_DNS: dnsNames.append(text)
      case GEN_EMAIL: emails.append(text)
      default: uris.append(text)
      }
    }
  }

  // A NUL in the middle once made "bank.example\0.evil.example" look like the bank.
  private static func printable(_ bytes: UnsafeRawBufferPointer) -> String? {
    guard !bytes.isEmpty, !bytes.contains(where: { $0 < 0x20 || $0 == 0x7F }) else { return nil }
    return String(validating: bytes, as: UTF8.self)
  }

  static func fingerprint(_ certificate: OpaquePointer) -> String {
    var digest = [UInt8](repeating: 0, count: Int(EVP_MAX_MD_SIZE))
    var count: UInt32 = 0
    guard X509_digest(certificate, EVP_sha256(), &digest, &count) == 1 else { return "" }
    return digest.prefix(Int(count)).map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()
  }
}
