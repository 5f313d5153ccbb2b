// Client certificates: which ones a server accepts, and what happens to the others.

import ByteStreams
import COpenSSL
import Glibc
import StreamTestKit
import Testing

@testable import StreamTLS

@Suite("Client certificates", .timeLimit(.minutes(5)))
struct ClientCertificateTests {
  static let ada = TestAuthority.Wish("ada", names: "email:ada@lab.test,DNS:ada.lab.test,URI:urn:lab:ada")

  /// A server that requires certificates of the rig's authority, and a client that has one.
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

  @Test("that are valid authenticate their owner", arguments: TLSStreamTests.versions)
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

  @Test("that are missing, expired, not yet valid, or of another authority are refused, each with its reason")
  func refused() async throws {
    var reported = try await Self.rig(nil).refuse()
    #expect(reported.failure == .noCertificate)
    #expect(reported.far?.description == "tlsv13 alert certificate required")

    var expired = Self.ada
    expired.validity = -7200 ... -3600
    reported = try await Self.rig(expired).refuse()
    #expect(said(reported.failure) == "the client's certificate (CN=ada) has expired")
    #expect(reported.far?.description == "sslv3 alert certificate expired")

    var early = Self.ada
    early.validity = 3600...7200
    reported = try await Self.rig(early).refuse()
    #expect(said(reported.failure) == "the client's certificate (CN=ada) is not valid yet; are the clocks right?")

    reported = try await Self.rig(Self.ada, of: TestAuthority("Somebody Else")).refuse()
    #expect(said(reported.failure) == "the client's certificate (CN=ada) is not signed by a trusted authority")
    #expect(reported.far?.description == "tlsv1 alert unknown ca")
  }

  @Test("are checked by the requested server, if several share a port")
  func chosen() async throws {
    let open = try TLSRig()
    let strict = try Self.rig(Self.ada, of: TestAuthority("Somebody Else"))
    let chosen = try TLSServerContext(strict.server)
    let reported = try await strict.refuse(TLSServerContext(open.server), choosing: { _ in chosen })
    #expect(said(reported.failure) == "the client's certificate (CN=ada) is not signed by a trusted authority")
  }

  @Test("that are revoked are refused, others of the same authority are not")
  func revoked() async throws {
    var rig = try Self.rig(nil)
    let good = try rig.authority.issue(Self.ada)
    let bad = try rig.authority.issue(.init("mallory"))
    try rig.folder.write("crl.pem", try rig.authority.revocationList(of: [bad.serial]))
    rig.server.crl = rig.folder / "crl.pem"
    (rig.far.certificate, rig.far.key) = (bad.certificate, bad.key)
    let reported = try await rig.refuse()
    #expect(said(reported.failure) == "the client's certificate (CN=mallory) is revoked")
    #expect(reported.far?.description == "sslv3 alert certificate revoked")
    (rig.far.certificate, rig.far.key) = (good.certificate, good.key)
    try await onLane { [rig] lane in try await rig.accept(on: lane).0.close() }

    // A list of another authority, or an expired one, proves nothing.
    try rig.folder.write("crl.pem", try TestAuthority("Else").revocationList(of: []))
    #expect(said(try await rig.refuse().failure).hasSuffix("there is no revocation list of its issuer"))
    try rig.folder.write("crl.pem", try rig.authority.revocationList(of: [], validity: -7200 ... -3600))
    #expect(said(try await rig.refuse().failure).hasSuffix("the revocation list of its issuer has expired"))
  }

  /// The client certificate from a handshake that the server accepted.
  private func shown(
    _ rig: TLSRig, _ context: TLSServerContext, resuming ticket: TLSTicket? = nil
  ) async throws -> (shown: (chain: TLSClientChain, trust: TLSTrust)?, isResumed: Bool, ticket: TLSTicket?) {
    try await onLane { lane in
      let (stream, far) = try await rig.accept(context, resuming: ticket, on: lane)
      defer { stream.close() }
      try await stream.writeAll([1], on: lane)
      _ = try await onOwnThread { try far.receive() }
      let ticket = far.ticket
      far.close()
      return (stream.facts.shown, stream.facts.isResumed, ticket)
    }
  }

  @Test(
    "are kept, to be checked with other authorities and lists later", arguments: TLSStreamTests.versions, [false, true])
  func heldLater(version: ClosedRange<Int32>, isResumed: Bool) async throws {
    var rig = try Self.rig(nil)
    rig.far.version = version
    let ada = try rig.authority.issue(Self.ada)
    (rig.far.certificate, rig.far.key) = (ada.certificate, ada.key)
    rig.server.crl = rig.folder / "crl.pem"
    try rig.folder.write("crl.pem", try rig.authority.revocationList(of: [7]))
    let context = try TLSServerContext(rig.server)
    var seen = try await shown(rig, context)
    if isResumed { seen = try await shown(rig, context, resuming: seen.ticket) }
    #expect(seen.isResumed == isResumed)
    let (chain, trust) = try #require(seen.shown)
    #expect(context.verdict(on: chain) == .good && trust == context.trust)
    #expect(abs(chain.lastSecond - (Glibc.time(nil) + 86_400)) < 60)
    let same = try context.renewed()
    #expect(same.trust == context.trust && same.verdict(on: chain) == .good)

    try rig.folder.write("crl.pem", try rig.authority.revocationList(of: [7, ada.serial]))
    let revoked = try context.renewed()
    #expect(revoked.trust != context.trust)
    let fault = try #require(revoked.verdict(on: chain).fault)
    #expect("\(TLSFailure.certificate(fault))" == "the client's certificate (CN=ada) is revoked")

    try rig.folder.write("crl.pem", try rig.authority.revocationList(of: []))
    let other = try TestAuthority("Else")
    try rig.folder.write("ca.pem", other.pem)
    try rig.folder.write("crl.pem", try other.revocationList(of: []))
    #expect(try context.renewed().verdict(on: chain).fault?.isUntrusted == true)
    rig.server.clientAuth = .none
    #expect(try TLSServerContext(rig.server).verdict(on: chain) == .good)
  }

  @Test(
    "with intermediate certificates are presented again each time, as a ticket can't keep them all",
    arguments: TLSStreamTests.versions)
  func intermediate(version: ClosedRange<Int32>) async throws {
    var rig = try Self.rig(nil)
    rig.far.version = version
    let middle = try rig.authority.subordinate("Middle")
    let ada = try middle.issue(Self.ada)
    (rig.far.certificate, rig.far.key) = (ada.certificate + middle.pem, ada.key)
    let context = try TLSServerContext(rig.server)
    let first = try await shown(rig, context)
    #expect(context.verdict(on: try #require(first.shown?.chain)) == .good)
    let second = try await shown(rig, context, resuming: first.ticket)
    #expect(!second.isResumed)
    #expect(context.verdict(on: try #require(second.shown?.chain)) == .good)
    // If the server itself has the intermediate certificate, resumption works.
    try rig.folder.write("ca.pem", rig.authority.pem + middle.pem)
    let knowing = try TLSServerContext(rig.server)
    let third = try await shown(rig, knowing)
    #expect(try await shown(rig, knowing, resuming: third.ticket).isResumed)
  }

  @Test("may be missing where they are optional, but not invalid")
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

extension TLSClientChain.Verdict {
  fileprivate var fault: TLSCertificateFault? { if case .refused(let fault) = self { fault } else { nil } }
}
