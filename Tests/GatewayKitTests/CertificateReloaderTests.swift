// A server's certificate that grows old while listeners show it.

import StreamTLS
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A certificate in use", .timeLimit(.minutes(5)))
struct CertificateReloaderTests {
  /// The wall clock.
  private final class Wall: Sendable {
    private let seconds = Mutex(0)
    var now: Int { seconds.withLock { $0 } }
    func set(_ now: Int) { seconds.withLock { $0 = now } }
  }

  @Test("is reported once when its renewal is late, once when it has expired, and no more after its renewal")
  func growsOld() async throws {
    let rig = try HandshakeRig()
    var wish = TestAuthority.Wish("gw.test")
    wish.validity = -80...20
    try rig.authority.write("server", wish, to: rig.folder)
    let context = try TLSServerContext(
      TLSServerSettings(
        identities: [TLSIdentity(certificate: rig.folder / "server.pem", key: rig.folder / "server.key")]))
    let late = try #require(context.warningsChange(after: context.warningsChange(after: 0) ?? 0))
    let wall = Wall()
    wall.set(late - 1)
    let config = try rig.config("tls://127.0.0.1:0")
    try await withHandshakeServer(config, wallTime: { wall.now }, isFast: true) { story, _, _ in
      _ = try story.address()
      func doubts(_ count: Int) throws -> [String] {
        try story.wait { events in
          let all = events.compactMap { if case .certificateDoubtful(let text) = $0 { text } else { nil } }
          return all.count < count ? nil : all
        }
      }
      #expect(try doubts(0) == [])
      wall.set(late)
      let first = try doubts(1)
      #expect(first.count == 1 && first[0].contains("server.pem: the certificate expires at 20"))
      #expect(first[0].hasSuffix(" UTC: renew it"))
      wall.set(late + 11)
      #expect(try doubts(2).count == 2 && doubts(2)[1].contains("server.pem: the certificate has expired"))
      try rig.authority.write("server", .init("gw.test"), to: rig.folder)
      _ = try story.wait { $0.contains { if case .certificatesRenewed = $0 { true } else { false } } ? true : nil }
      #expect(try doubts(2).count == 2)
    }
  }
}
