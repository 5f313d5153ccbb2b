// Messages for wrong files and settings of a context.

import COpenSSL
import StreamTestKit
import Testing

@testable import StreamTLS

@Suite("A TLS context")
struct SettingsTests {
  private func fault(_ settings: TLSServerSettings) -> String? {
    do throws(TLSSettingsFault) {
      _ = try TLSServerContext(settings)
      return nil
    } catch {
      return "\(error)"
    }
  }

  @Test("reports which file is wrong, and what to do")
  func files() throws {
    let rig = try TLSRig()
    let folder = rig.folder
    let (certificate, key) = (rig.server.identities[0].certificate, rig.server.identities[0].key)
    let other = try rig.authority.write("other", .init("other.test"), to: folder)
    try folder.write("chain.pem", rig.authority.pem + rig.authority.issue(.init("gw.test")).certificate)
    try folder.write("empty.pem", "")
    try folder.write("der.pem", "0\u{2}no PEM at all")
    try folder.write("torn.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    try folder.write("locked.key", Self.lockedKey)
    func with(_ certificate: String, _ key: String) -> String {
      fault(TLSServerSettings(identities: [TLSIdentity(certificate: certificate, key: key)])) ?? "nothing"
    }
    #expect(with(certificate, key) == "nothing")
    #expect(
      with(folder / "none.pem", key).hasPrefix(
        "\(folder / "none.pem"): No such file or directory (ENOENT); check the path"))
    #expect(
      with(certificate, other.key)
        == "\(other.key): the key does not belong to the first certificate in \(certificate); are both from the same renewal?"
    )
    #expect(with(folder / "empty.pem", key).hasPrefix("\(folder / "empty.pem"): there is no certificate in it"))
    #expect(with(folder / "der.pem", key).contains("it looks like DER"))
    // SEQUENCE { INTEGER 3, …
    try folder.write("both.p12", "0\u{20}\u{2}\u{1}\u{3}0\u{1}")
    let both = with(folder / "both.p12", key)
    #expect(both.contains("PKCS #12") && both.contains("-out \(folder / "both").pem"))
    #expect(with(folder / "~/cert.pem", key).contains("'~' is not expanded here; write the whole path"))
    #expect(with("~/cert.pem", key).contains("'~' is not expanded here"))
    #expect(with(folder / "torn.pem", key).contains("it is damaged"))
    #expect(with(certificate, certificate).contains("there is no private key in it"))
    #expect(with(certificate, folder / "locked.key").contains("the key has a passphrase"))
    #expect(with(certificate, folder.path).contains("EISDIR"))
    #expect(fault(TLSServerSettings(identities: []))?.contains("needs a certificate") == true)
  }

  @Test("requires an authority for clients' certificates, and refuses unknown ciphers")
  func settings() throws {
    let rig = try TLSRig()
    var settings = rig.server
    settings.clientAuth = .required
    #expect(fault(settings)?.contains("client-ca") == true)
    settings.clientCA = rig.folder / "server.key"
    #expect(fault(settings)?.contains("there is no certificate in it") == true)
    for name in ["AES", "ECDHE-RSA-AES128-GCM-SHA257", "TLS_AES", "ALL:!NULL", "@SECLEVEL=0", ""] {
      settings = rig.server
      settings.ciphers = [name]
      #expect(fault(settings)?.contains("'\(name)' is not a TLS 1.2 or 1.3 cipher") == true)
    }
    settings.ciphers = TLSProfile.ciphers + TLSProfile.suites
    #expect(fault(settings) == nil)
  }

  @Test("reports an expired certificate, and works all the same")
  func expired() throws {
    var wish = TestAuthority.Wish("gw.test")
    wish.validity = -7200 ... -3600
    let rig = try TLSRig(wish)
    let warnings = try TLSServerContext(rig.server).warnings(at: time(nil))
    #expect(warnings.count == 1 && warnings[0].contains("server.pem: the certificate has expired"))
  }

  @Test(
    "warns before a certificate is valid, in its last tenth but at most two weeks before it expires, and after that",
    arguments: [(-3600...86_400, 9000), (-86_400 * 300...86_400 * 3000, 14 * 86_400), (3600...7200, 360)])
  func growsOld(validity: ClosedRange<Int>, warned: Int) throws {
    var wish = TestAuthority.Wish("gw.test")
    wish.validity = validity
    let rig = try TLSRig(wish)
    let context = try TLSServerContext(rig.server)
    func kind(_ now: Int) -> String {
      let warnings = context.warnings(at: now).map { $0.drop { $0 != ":" }.dropFirst(6) }
      return String(warnings.joined().prefix { $0 != ":" })
    }
    let first = try #require(context.warningsChange(after: 0))
    let late = try #require(context.warningsChange(after: first))
    let end = try #require(context.warningsChange(after: late))
    #expect(context.warningsChange(after: end) == nil && end - first == validity.count && end - late == warned + 1)
    #expect(kind(first - 1) == "certificate is not valid yet" && kind(first) == "" && kind(late - 1) == "")
    #expect(kind(late).hasPrefix("certificate expires at 20") && kind(late) == kind(end - 1))
    #expect(kind(end) == "certificate has expired")
  }

  @Test("has nothing to say of a time that can't be read")
  func unreadable() throws {
    let rig = try TLSRig()
    let certificate = try PEMFile(rig.server.identities[0].certificate, as: .certificate).certificates()[0]
    for time in [X509_getm_notBefore(certificate.raw), X509_getm_notAfter(certificate.raw)] {
      #expect(ASN1_STRING_set(time, "13th month", -1) == 1)
    }
    let validity = CertificateValidity(certificate, in: "server.pem")
    #expect(validity.warning(at: 1 << 33) == nil && validity.change(after: 1 << 41) == nil)
  }

  @Test("detects a changed file, and is made again from the current files")
  func changed() throws {
    let rig = try TLSRig()
    let context = try TLSServerContext(rig.server)
    #expect(context.files == [rig.folder / "server.pem", rig.folder / "server.key"])
    #expect(!context.filesHaveChanged)
    try rig.authority.write("server", .init("another, longer name"), to: rig.folder)
    #expect(context.filesHaveChanged)
    #expect(try !context.renewed().filesHaveChanged)
    try rig.folder.write("server.pem", "half of a")
    #expect(throws: TLSSettingsFault.self) { try context.renewed() }
  }

  @Test("frees the certificates before a damaged one")
  func damaged() throws {
    let rig = try TLSRig()
    let text = try rig.authority.issue(.init("gw.test")).certificate
    try rig.folder.write("torn.pem", text + text.prefix(200) + "\n-----END CERTIFICATE-----\n")
    weak var first: X509Certificate?
    #expect(throws: TLSSettingsFault.self) {
      try PEMFile(rig.folder / "torn.pem", as: .certificate).items { bio -> X509Certificate? in
        guard let raw = PEM_read_bio_X509(bio, nil, nil, nil) else { return nil }
        let certificate = X509Certificate(owning: raw)
        first = certificate
        #expect(first != nil)
        return certificate
      }
    }
    #expect(first == nil)
  }

  // P-256, the passphrase is "secret".
  private static let lockedKey = """
    -----BEGIN ENCRYPTED PRIVATE KEY-----
    MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAj8FzHudXcRVQICCAAw
    DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEBu1ocxe8Kd4jXJhdVmqm88EgZCu
    UnQ/rimz2iumUxkAj6q7j6uty1F5FOjj4w1W1S2Q+NXlo2PBFUw6PJJa0xaQ7Y23
    GwlDIGnCqP6DFKBbD7xeXFgdcn0U+COH7W48829LvnUCM7IqKMF8BD1bJZTOPOWH
    etT3O0bkCaQKQ2y8nW8T57qqX6g7KVFk+bGKd+Mfq6AFBw3A1sJ/H3VfpPaMCH0=
    -----END ENCRYPTED PRIVATE KEY-----
    """
}
