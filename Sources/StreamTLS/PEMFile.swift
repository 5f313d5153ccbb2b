// Certificates, keys and revocation lists out of PEM files, with errors that say which file and what to do. Reading blocks.

import ByteStreams
import COpenSSL
import Glibc

struct PEMFile {
  let path: String
  /// What it is to be.
  let part: TLSSettingsFault.Part
  let bytes: [UInt8]
  // A bundle of every authority in the world has some 230 KB.
  private static let mostBytes = 8 << 20

  init(_ path: String, as part: TLSSettingsFault.Part) throws(TLSSettingsFault) {
    self.path = path
    self.part = part
    do { bytes = try Self.contents(of: path) } catch {
      throw TLSSettingsFault(path, part, "\(error.text) (\(error.name))", advice: Self.advice(error.errno))
    }
  }

  private static func advice(_ number: Int32) -> String? {
    switch number {
    case ENOENT, ENOTDIR: "check the path; relative ones begin where the configuration lies"
    case EACCES: "the user that the gateway runs as must be able to read it"
    case EFBIG: "it is too long to be what it should be"
    default: nil
    }
  }

  private static func contents(of path: String) throws(SystemError) -> [UInt8] {
    // Not to wait for a pipe's writer.
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

  /// Lends out each revocation list. Throws when there is none.
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
    // Without a callback of ours OpenSSL would ask at the terminal.
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
        path, part, "the key has a passphrase, and nobody is there to type it",
        advice: "make one without: openssl pkey -in \(path) -out plain.pem")
    }
    let text = String(decoding: bytes, as: UTF8.self)
    if text.firstRange(of: "PRIVATE KEY-----") == nil { throw nothing("private key") }
    throw TLSSettingsFault(path, part, "the key can't be read (\(reason?.text ?? "no reason given"))")
  }

  /// Each has an owner as soon as it is made: a later one may be damaged.
  func items<Item: AnyObject>(_ next: (OpaquePointer) -> Item?) throws(TLSSettingsFault) -> [Item] {
    let bio = try reader()
    defer { BIO_free(bio) }
    ERR_clear_error()
    var found: [Item] = []
    while let item = next(bio) { found.append(item) }
    // It ends where no more begins; anything else is damage.
    if let reason = OpenSSLErrors.take(), reason.reason != PEM_R_NO_START_LINE {
      throw TLSSettingsFault(path, part, "it is damaged (\(reason.text))", advice: "make it anew, or copy it again")
    }
    return found
  }

  private func reader() throws(TLSSettingsFault) -> OpaquePointer {
    guard let bio = BIO_new(BIO_s_mem()) else { throw TLSSettingsFault(path, part, "no memory to read it") }
    if !bytes.isEmpty { BIO_write(bio, bytes, Int32(bytes.count)) }
    return bio
  }

  private func nothing(_ what: String) -> TLSSettingsFault {
    // DER begins with a SEQUENCE.
    let isDER = bytes.first == 0x30
    return TLSSettingsFault(
      path, part, "there is no \(what) in it",
      advice: isDER
        ? "it looks like DER; PEM is wanted: openssl \(what == "certificate" ? "x509" : what == "private key" ? "pkey" : "crl") -inform DER -in \(path)"
        : "a PEM file has a line that begins with -----BEGIN")
  }
}

/// A revocation list, with an owner.
private final class RevocationList {
  let raw: OpaquePointer
  init(owning raw: OpaquePointer) { self.raw = raw }
  deinit { X509_CRL_free(raw) }
}

/// A certificate, with an owner.
final class X509Certificate {
  let raw: OpaquePointer

  init(owning raw: OpaquePointer) { self.raw = raw }

  deinit { X509_free(raw) }

  /// The DNS names it is for, in lower case: the subject's alternative names, or else its common name.
  var serverNames: Set<String> {
    let names = CertificateFacts(raw)
    let found = names.dnsNames.isEmpty ? [names.commonName].compactMap { $0 } : names.dnsNames
    return Set(found.map { $0.lowercased() })
  }

  /// "rsaEncryption", "id-ecPublicKey": as OpenSSL numbers them.
  var keyKind: Int32 { EVP_PKEY_get_base_id(X509_get0_pubkey(raw)) }

  var hasExpired: Bool { X509_cmp_current_time(X509_get0_notAfter(raw)) < 0 }
  var isNotYetValid: Bool { X509_cmp_current_time(X509_get0_notBefore(raw)) > 0 }
}
