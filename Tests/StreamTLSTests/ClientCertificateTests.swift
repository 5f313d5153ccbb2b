// Who shows which certificate, and what becomes of him.

import ByteStreams
import COpenSSL
import StreamTestKit
import Testing

@testable import StreamTLS

@Suite("Client certificates", .timeLimit(.minutes(1)))
struct ClientCertificateTests {
  static let ada = TestAuthority.Wish("ada", names: "email:ada@lab.test,DNS:ada.lab.test,URI:urn:lab:ada")

  /// A server that asks for certificates of the rig's authority, and a client who shows one.
  static func rig(_ wish: TestAuthority.Wish?, of other: TestAuthority? = nil) throws -> TLSRig {
    var rig = try TLSRig()
    rig.server.clientAuth = .required
    rig.server.clientCA = rig.folder / "ca.pem"
    if let wish {
      let issued = try (other ?? rig.authority).issue(wish)
      (rig.far.certificate, rig.far.key) = (issued.certificate, issued.key)
    }
    return rig
  }

  private func said(_ failure: TLSFailure?) -> String { failure.map { "\($0)" } ?? "nothing" }

  @Test("that are right let their owner in, and say who he is", arguments: TLSStreamTests.versions)
  func right(version: ClosedRange<Int32>) async throws {
    var rig = try Self.rig(Self.ada)
    rig.far.version = version
    try await onLane { [rig] lane in
      let (stream, _) = try await rig.accept(on: lane)
      defer { stream.close() }
      let peer = try #require(stream.facts.peer)
      #expect(peer.subject == "CN=ada" && peer.commonName == "ada")
      #expect(peer.dnsNames == ["ada.lab.test"] && peer.emails == ["ada@lab.test"] && peer.uris == ["urn:lab:ada"])
      #expect(peer.fingerprint.count == 64)
    }
  }

  @Test("that are missing, expired, not yet valid, or somebody else's are refused, each with its reason")
  func refused() async throws {
    var told = try await Self.rig(nil).refuse()
    #expect(told.failure == .noCertificate)
    #expect(told.far?.description == "tlsv13 alert certificate required")

    var expired = Self.ada
    expired.validity = -7200 ... -3600
    told = try await Self.rig(expired).refuse()
    #expect(said(told.failure) == "the client's certificate (CN=ada) has expired")
    #expect(told.far?.description == "sslv3 alert certificate expired")

    var early = Self.ada
    early.validity = 3600...7200
    told = try await Self.rig(early).refuse()
    #expect(said(told.failure) == "the client's certificate (CN=ada) is not valid yet; are the clocks right?")

    told = try await Self.rig(Self.ada, of: TestAuthority("Somebody Else")).refuse()
    #expect(said(told.failure) == "the client's certificate (CN=ada) is signed by nobody that is trusted")
    #expect(told.far?.description == "tlsv1 alert unknown ca")
  }

  @Test("are judged by the server that is asked for, where several share a port")
  func chosen() async throws {
    let open = try TLSRig()
    let strict = try Self.rig(Self.ada, of: TestAuthority("Somebody Else"))
    let told = try await strict.refuse(TLSServerContext(open.server), choosing: TLSServerContext(strict.server))
    #expect(said(told.failure) == "the client's certificate (CN=ada) is signed by nobody that is trusted")
  }

  @Test("that are revoked are refused, and others of the same authority are not")
  func revoked() async throws {
    var rig = try Self.rig(nil)
    let good = try rig.authority.issue(Self.ada)
    let bad = try rig.authority.issue(.init("mallory"))
    try rig.folder.write("crl.pem", try rig.authority.revocationList(of: [bad.serial]))
    rig.server.crl = rig.folder / "crl.pem"
    (rig.far.certificate, rig.far.key) = (bad.certificate, bad.key)
    let told = try await rig.refuse()
    #expect(said(told.failure) == "the client's certificate (CN=mallory) is revoked")
    #expect(told.far?.description == "sslv3 alert certificate revoked")
    (rig.far.certificate, rig.far.key) = (good.certificate, good.key)
    try await onLane { [rig] lane in try await rig.accept(on: lane).0.close() }

    // A list of another authority, or one that is too old, proves nothing.
    try rig.folder.write("crl.pem", try TestAuthority("Else").revocationList(of: []))
    #expect(said(try await rig.refuse().failure).hasSuffix("no revocation list of its issuer is there"))
    try rig.folder.write("crl.pem", try rig.authority.revocationList(of: [], validity: -7200 ... -3600))
    #expect(said(try await rig.refuse().failure).hasSuffix("the revocation list of its issuer has expired"))
  }

  @Test("may be left out where they are optional, but not be wrong")
  func optional() async throws {
    var rig = try Self.rig(nil)
    rig.server.clientAuth = .optional
    try await onLane { [rig] lane in
      let (stream, _) = try await rig.accept(on: lane)
      #expect(stream.facts.peer == nil)
      stream.close()
    }
    var wrong = try Self.rig(Self.ada, of: TestAuthority("Somebody Else"))
    wrong.server.clientAuth = .optional
    #expect(try await wrong.refuse().failure != nil)
  }
}
