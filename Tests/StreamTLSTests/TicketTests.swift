// Resumed sessions.

import ByteStreams
import COpenSSL
import StreamTestKit
import Synchronization
import Testing

@testable import StreamTLS

@Suite("A session ticket", .timeLimit(.minutes(5)))
struct TicketTests {
  /// A ticket from a connection to `context`, after one byte has arrived over it.
  private func ticket(_ rig: TLSRig, _ context: TLSServerContext) async throws -> TLSTicket {
    try await onLane { lane in
      let (stream, far) = try await rig.accept(context, on: lane)
      defer { stream.close() }
      #expect(!stream.facts.isResumed)
      try await stream.writeAll([1], on: lane)
      _ = try await onOwnThread { try far.receive() }
      let ticket = try #require(far.ticket)
      far.close()  // without close_notify the session could not be resumed
      return ticket
    }
  }

  private func resumes(_ rig: TLSRig, _ context: TLSServerContext, _ ticket: TLSTicket) async throws -> TLSFacts {
    try await onLane { lane in
      let (stream, far) = try await rig.accept(context, resuming: ticket, on: lane)
      defer { stream.close() }
      try await stream.writeAll([1], on: lane)
      #expect(try await onOwnThread { try far.receive() } == [1])
      #expect(far.isResumed == stream.facts.isResumed)
      far.close()
      return stream.facts
    }
  }

  @Test("is valid for the next connection, and after a reload", arguments: TLSStreamTests.versions)
  func resumed(version: ClosedRange<Int32>) async throws {
    var rig = try TLSRig()
    rig.far.version = version
    let context = try TLSServerContext(rig.server)
    let ticket = try await ticket(rig, context)
    #expect(try await resumes(rig, context, ticket).isResumed)
    try rig.authority.write("server", .init("gw.test", names: "DNS:gw.test"), to: rig.folder)
    #expect(try await resumes(rig, context.renewed(), ticket).isResumed)
    // Another server has other ticket keys.
    #expect(try await !resumes(rig, TLSServerContext(rig.server), ticket).isResumed)
  }

  @Test(
    "leads to the requested name, and in TLS 1.2 is valid for its own name only",
    arguments: TLSStreamTests.versions)
  func otherName(version: ClosedRange<Int32>) async throws {
    var rig = try TLSRig()
    let files = try rig.authority.write("gps", .init("gps.test", names: "DNS:gps.test"), to: rig.folder)
    rig.server.identities.append(TLSIdentity(certificate: files.certificate, key: files.key))
    rig.far.version = version
    rig.far.serverName = "gps.test"
    let context = try TLSServerContext(rig.server)
    let ticket = try await ticket(rig, context)
    #expect(try await resumes(rig, context, ticket).isResumed)
    rig.far.serverName = "gw.test"
    let facts = try await resumes(rig, context, ticket)
    #expect(facts.serverName == "gw.test")
    #expect(facts.isResumed == (version.upperBound == TLS1_3_VERSION))  // RFC 6066 section 3, RFC 8446 section 4.6.1
  }

  @Test("carries its client's certificate, and is invalid where other client certificates are required")
  func clientCertificate() async throws {
    var rig = try ClientCertificateTests.rig(ClientCertificateTests.ada)
    let context = try TLSServerContext(rig.server)
    let ticket = try await ticket(rig, context)
    let facts = try await resumes(rig, context, ticket)
    #expect(facts.isResumed && facts.peer?.commonName == "ada")
    try rig.folder.write("crl.pem", try rig.authority.revocationList(of: []))
    rig.server.crl = rig.folder / "crl.pem"
    let stricter = try TLSServerContext(rig.server, replacing: context)
    #expect(try await !resumes(rig, stricter, ticket).isResumed)
    var open = rig.server
    open.clientAuth = .none
    let opener = try TLSServerContext(open, replacing: context)
    let other = try await resumes(rig, opener, ticket)
    #expect(!other.isResumed && other.peer == nil)
  }

  @Test("does not admit a client whose certificate has expired since", arguments: TLSStreamTests.versions)
  func expired(version: ClosedRange<Int32>) async throws {
    var wish = ClientCertificateTests.ada
    wish.validity = -7200 ... -3600
    var rig = try ClientCertificateTests.rig(wish)
    rig.far.version = version
    // As if the first connection had been made while the certificate was valid.
    let before = try TLSServerContext(rig.server)
    X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(before.first), UInt(X509_V_FLAG_NO_CHECK_TIME))
    let ticket = try await ticket(rig, before)
    #expect(try await refusal(rig, TLSServerContext(rig.server, replacing: before), ticket).hasSuffix("has expired"))
  }

  @Test("does not admit a client whose certificate was revoked since", arguments: TLSStreamTests.versions)
  func revoked(version: ClosedRange<Int32>) async throws {
    var rig = try ClientCertificateTests.rig(nil)
    let issued = try rig.authority.issue(ClientCertificateTests.ada)
    (rig.far.certificate, rig.far.key) = (issued.certificate, issued.key)
    rig.far.version = version
    try rig.folder.write("crl.pem", try rig.authority.revocationList(of: []))
    rig.server.crl = rig.folder / "crl.pem"
    let context = try TLSServerContext(rig.server)
    let ticket = try await ticket(rig, context)
    #expect(try await resumes(rig, context, ticket).isResumed)
    try rig.folder.write("crl.pem", try rig.authority.revocationList(of: [issued.serial]))
    #expect(try await refusal(rig, context.renewed(), ticket).hasSuffix("is revoked"))
  }

  /// The reason why the ticket's client is refused; "nothing" if it is accepted.
  private func refusal(_ rig: TLSRig, _ context: TLSServerContext, _ ticket: TLSTicket) async throws -> String {
    try await onLane { lane in
      do {
        try await rig.accept(context, resuming: ticket, on: lane).0.close()
        return "nothing"
      } catch let failure as TLSFailure { return "\(failure)" }
    }
  }

  @Test("of a client without a certificate does not admit it where one is required")
  func noWayAround() async throws {
    var rig = try TLSRig()
    let context = try TLSServerContext(rig.server)
    let ticket = try await ticket(rig, context)
    rig.server.clientAuth = .required
    rig.server.clientCA = rig.folder / "ca.pem"
    let strict = try TLSServerContext(rig.server, replacing: context)
    try await onLane { [rig] lane in
      await #expect(throws: TLSFailure.noCertificate) { _ = try await rig.accept(strict, resuming: ticket, on: lane) }
    }
  }

  @Test("has a new key every hour, and old keys are dropped when none of their tickets is valid")
  func rotation() {
    let hours = Mutex<UInt64>(0)
    let keys = TLSTicketKeys { hours.withLock { $0 } * 3_600_000_000_000 }
    func found(_ name: [UInt8]) -> Bool? { name.withUnsafeBytes { keys.key(named: $0)?.isOld } }
    let first = keys.current()?.name ?? []
    #expect(first.count == 16 && keys.current()?.name == first && found(first) == false)
    hours.withLock { $0 = 1 }
    #expect(found(first) == true)
    let second = keys.current()?.name ?? []
    #expect(second != first && found(second) == false && found(first) == true)
    hours.withLock { $0 = 3 }
    #expect(found(first) == nil && found(second) == true)
  }
}
