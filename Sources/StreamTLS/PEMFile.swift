// Reads certificates, keys and revocation lists from PEM files, with errors that say which file and what to do. Reading
// blocks.

import ByteStreams
import COpenSSL
import Glibc

struct PEMFile {
  let path: String
  /// What the file should hold.
  let part: TLSSettingsFault.Part
  let bytes: [UInt8]
  // In bytes. A bundle of all the world's authorities has some 230 KB.
  private static let mostBytes = 8 << 20

  init(_ path: String, as part: TLSSettingsFault.Part) throws(TLSSettingsFault) {
    self.path = path
    self.part = part
    do { bytes = try Self.contents(of: path) } catch {
      let hasTilde = path.hasPrefix("~") || path.contains("/~")
      throw TLSSettingsFault(
        path, part, "\(error.text) (\(error.name))",
        advice: hasTilde ? "'~' is not expanded here; write the whole path" : Self.advice(error.errno))
    }
  }

  private static func advice(_ number: Int32) -> String? {
    switch number {
    case ENOENT, ENOTDIR: "check the path; in a configuration, relative paths start in its folder"
    case EACCES: "the user that the gateway runs as must be able to read it"
    case EFBIG: "the file is too large to be the right one"
    default: nil
    }
  }

  private static func contents(of path: String) throws(SystemError) -> [UInt8] {
    // O_NONBLOCK, so as not to wait for the writer of a named pipe.
    let raw = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
    guard raw >= 0 else { throw SystemError("open") }
    let file = Descriptor(owning: raw)
    var bytes: [UInt8] = []
    var chunk = [UInt8](repeating: 0, count: 16_384)
    while true {
      let count = Glibc.read(file.raw, &chunk, chunk.count)
      guard count >= 0 else { throw SystemError("read") }
      guard count > 0 else { return bytes }
      bytes += chunk[..<count]
      guard bytes.count <= mostBytes else { throw SystemError("read", EFBIG) }
    }
  }

  // MARK: - What is in it

  /// All certificates, in order. Throws when there is none.
  func certificates() throws(TLSSettingsFault) -> [X509Certificate] {
    let found = try items { PEM_read_bio_X509($0, nil, nil, nil).map { X509Certificate(owning: $0) } }
    guard !found.isEmpty else { throw nothing("certificate") }
    return found
  }

  /// Calls `body` with each revocation list. Throws when there is none.
  func withRevocationLists(_ body: (OpaquePointer) -> Void) throws(TLSSettingsFault) {
    let found = try items { PEM_read_bio_X509_CRL($0, nil, nil, nil).map { RevocationList(owning: $0) } }
    for list in found { withExtendedLifetime(list) { body(list.raw) } }
    guard !found.isEmpty else { throw nothing("revocation list") }
  }

  /// The key; the caller owns it.
  func key() throws(TLSSettingsFault) -> OpaquePointer {
    let bio = try reader()
    defer { BIO_free(bio) }
    ERR_clear_error()
    // Without our callback, OpenSSL would ask for the passphrase at the terminal.
    var wantsPassphrase = false
    let key = withUnsafeMutablePointer(to: &wantsPassphrase) { flag in
      PEM_read_bio_PrivateKey(
        bio, nil,
        { _, _, _, flag in
          flag?.assumingMemoryBound(to: Bool.self).pointee = true; return -1
        }, flag)
    }
    if let key { return key }
    let reason = OpenSSLErrors.take()
    if wantsPassphrase {
      throw TLSSettingsFault(
        path, part, "the key has a passphrase, which nobody can enter here",
        advice: "make one without: openssl pkey -in \(path) -out plain.pem")
    }
    let text = String(decoding: bytes, as: UTF8.self)
    if text.firstRange(of: "PRIVATE KEY-----") == nil { throw nothing("private key") }
    throw TLSSettingsFault(path, part, "the key can't be read (\(reason?.text ?? "no reason given"))")
  }

  /// Each item has an owner as soon as it is made, since a later one may be damaged.
  func items<Item: AnyObject>(_ next: (OpaquePointer) -> Item?) throws(TLSSettingsFault) -> [Item] {
    let bio = try reader()
    defer { BIO_free(bio) }
    ERR_clear_error()
    var found: [Item] = []
    while let item = next(bio) { found.append(item) }
    // No further start line is the normal end; any other error is damage.
    if let reason = OpenSSLErrors.take(), reason.reason != PEM_R_NO_START_LINE {
      throw TLSSettingsFault(path, part, "it is damaged (\(reason.text))", advice: "create it again, or copy it again")
    }
    return found
  }

  private func reader() throws(TLSSettingsFault) -> OpaquePointer {
    guard let bio = BIO_new(BIO_s_mem()) else { throw TLSSettingsFault(path, part, "no memory to read it") }
    if !bytes.isEmpty { BIO_write(bio, bytes, Int32(bytes.count)) }
    return bio
  }

  /// PFX of RFC 7292: a SEQUENCE that begins with the version, the INTEGER 3.
  private var isPKCS12: Bool {
    guard bytes.count > 6, bytes[0] == 0x30 else { return false }
    let lengthBytes = bytes[1] & 0x80 == 0 ? 0 : Int(bytes[1] & 0x7F)
    return lengthBytes <= 4 && bytes.dropFirst(2 + lengthBytes).starts(with: [2, 1, 3])
  }

  private func nothing(_ what: String) -> TLSSettingsFault {
    if isPKCS12 {
      let end = path.lastIndex(of: ".") ?? path.endIndex
      return TLSSettingsFault(
        path, part, "there is no \(what) in it",
        advice:
          "it is PKCS #12 (.p12, .pfx); convert it to PEM: openssl pkcs12 -in \(path) -nodes -out \(path[..<end]).pem, "
          + "for certificate and key")
    }
    // DER begins with a SEQUENCE.
    let isDER = bytes.first == 0x30
    return TLSSettingsFault(
      path, part, "there is no \(what) in it",
      advice: isDER
        ? "it looks like DER; convert it to PEM: openssl \(what == "certificate" ? "x509" : what == "private key" ? "pkey" : "crl") -inform DER -in \(path)"
        : "expected PEM: a line that begins with -----BEGIN")
  }
}

/// Owns a revocation list.
private final class RevocationList {
  let raw: OpaquePointer
  init(owning raw: OpaquePointer) { self.raw = raw }
  deinit { X509_CRL_free(raw) }
}

/// Owns a certificate.
final class X509Certificate {
  let raw: OpaquePointer

  init(owning raw: OpaquePointer) { self.raw = raw }

  deinit { X509_free(raw) }

  /// The DNS names of the certificate, in lower case: the subject's alternative names, or else its common name.
  var serverNames: Set<String> {
    let names = CertificateFacts(raw)
    let found = names.dnsNames.isEmpty ? [names.commonName].compactMap { $0 } : names.dnsNames
    return Set(found.map { $0.lowercased() })
  }

  /// OpenSSL's number for the kind of key: "rsaEncryption", "id-ecPublicKey".
  var keyKind: Int32 { EVP_PKEY_get_base_id(X509_get0_pubkey(raw)) }
}
