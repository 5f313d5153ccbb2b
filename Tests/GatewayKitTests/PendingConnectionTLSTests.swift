import Glibc
import StreamTLS
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A pending connection with TLS", .timeLimit(.minutes(5)))
struct PendingConnectionTLSTests {
  private let rig: HandshakeRig
  private static let listen = "tls://127.0.0.1:0"

  init() throws { rig = try HandshakeRig() }

  private func client(_ name: String) -> String { "client-ca: '\(rig.folder / "ca.pem")', client-auth: \(name)" }

  @Test("becomes a session together with bytes that arrived with the end of its handshake")
  func early() async throws {
    let rig = rig
    try await withRoute(rig.config(Self.listen)) { story, _ in
      for version in [TLS1_2, TLS1_3] {
        let client = try rig.connectTLS(story.address(), rig.manner(version: version))
        try client.send([1, 2, 3])
        #expect(try client.receive(exactly: 3) == [1, 2, 3])
        client.close()
      }
      #expect(story.labels.map(\.tls) == ["TLS 1.2", "TLS 1.3"])
    }
  }

  @Test(
    "ends at the deadline when the client is silent, and the report names the step", arguments: [[], [0x16, 3, 1]])
  func silent(bytes: [UInt8]) async throws {
    try await withHandshakeServer(rig.config(Self.listen)) { story, _, handshakeServer in
      let client = try connectTCP(story.address())
      try client.send(bytes)
      try waitForPending("TLS handshake", at: handshakeServer)
      try expireHandshakes(at: handshakeServer)
      let ending = try story.reports(atLeast: 1)[0].ending
      #expect(ending.word == .protocolError)
      #expect(ending.cause as? HandshakeFault == .tooSlow("TLS handshake", .seconds(10)))
      client.close()
    }
  }

  @Test("that closes during the handshake is reported as client-left")
  func leaves() async throws {
    try await withHandshakeServer(rig.config(Self.listen)) { story, _, handshakeServer in
      let client = try connectTCP(story.address())
      try client.send([0x16, 3, 1])
      try waitForPending("TLS handshake", at: handshakeServer)
      client.close()
      #expect(try story.reports(atLeast: 1)[0].ending.word == .clientLeft)
    }
  }

  @Test("from a denied network gets an alert before any handshake")
  func denied() async throws {
    let config = try rig.config(Self.listen, route: "clients: { deny: [127.0.0.1] }")
    try await withRoute(config) { story, _ in
      let client = try connectTCP(story.address())
      #expect(try client.receiveToEnd() == [0x15, 3, 3, 0, 2, 2, 49])
      #expect(try story.reports(atLeast: 1)[0].ending.word == .denied)
      client.close()
    }
  }

  @Test(
    "without a certificate gets an alert and a line in the log if one is required, also by its roles",
    arguments: [TLS1_2, TLS1_3], ["required", "optional"])
  func unnamed(version: Int32, auth: String) async throws {
    let (rig, users) = (rig, auth == "optional" ? HandshakeRig.users : "")
    try await withRoute(rig.config(Self.listen, tls: client(auth), top: users)) { story, _ in
      let failure = #expect(throws: TLSFarEnd.Failure.self) {
        _ = try rig.connectTLS(story.address(), rig.manner(version: version)).receive()
      }
      let alert = version == TLS1_3 ? "certificate required" : "handshake failure"
      #expect(failure?.description.contains(alert) ?? false, "\(failure?.description ?? "none")")
      let ending = try story.reports(atLeast: 1)[0].ending
      #expect(ending.word == .loginFailed && ending.cause as? TLSFailure == .noCertificate)
    }
  }

  @Test("without a certificate is admitted if none is required; with one it has that certificate's name")
  func optional() async throws {
    let rig = rig
    try await withRoute(rig.config(Self.listen, tls: client("optional"))) { story, _ in
      for (index, user) in [nil, "ada"].enumerated() {
        let client = try rig.connectTLS(story.address(), rig.manner(user))
        try client.send([7])
        #expect(try client.receive(exactly: 1) == [7])
        #expect(story.labels[index].identity.name == user.map { "CN=\($0)" })
        client.close()
      }
    }
  }

  @Test("with the certificate of a user without access is refused with an orderly close", arguments: [true, false])
  func notLetIn(speaks: Bool) async throws {
    let rig = rig
    let config = try rig.config(
      Self.listen, tls: client("required"), route: "clients: { notices: \(speaks ? "on" : "off") }",
      top: HandshakeRig.users)
    try await withRoute(config) { story, _ in
      for (index, name) in ["bob", "nobody"].enumerated() {
        let client = try rig.connectTLS(story.address(), rig.manner(name))
        // close_notify, not a connection that is cut off.
        let said = String(decoding: try client.receiveToEnd(), as: UTF8.self)
        #expect(said == (speaks ? "baudway: x is not open to this user\r\n" : ""))
        let ending = try story.reports(atLeast: index + 1)[index].ending
        #expect(ending.word == .denied && ending.cause as? HandshakeFault == .notLetIn(isUser: name == "bob"))
        client.close()
      }
    }
  }

  @Test("with an unknown server name is refused")
  func wrongName() async throws {
    let rig = rig
    try await withRoute(rig.config("tls://127.0.0.1:0?server-name=gw.test")) { story, _ in
      let failure = #expect(throws: TLSFarEnd.Failure.self) {
        try rig.connectTLS(story.address(), rig.manner(name: "other.test")).close()
      }
      #expect(failure?.description.contains("unrecognized name") ?? false)
      let reports = try story.reports(atLeast: 1)
      #expect(reports[0].ending.word == .protocolError)
    }
  }

  @Test("of a proxy's own check gets its handshake and an orderly close, and is no session")
  func check() async throws {
    let rig = rig
    let config = try rig.config(
      "tls://127.0.0.1:0?proxy-protocol=required", route: "clients: { max: 1, allow: [192.0.2.0/24] }",
      top: "proxies: [127.0.0.1]")
    try await withRoute(config, rules: HandshakeServer.Rules(proxies: [AddressBlock("127.0.0.1")!])) { story, _ in
      let from = try connectTCP(story.address())
      try from.send(proxyBlock([], 0x20, 0))
      let check = try TLSFarEnd(try from.take(), rig.manner())
      try check.handshake()
      #expect(try check.receive() == [])
      check.close()
      try expectEcho(story, "192.0.2.7")
    }
  }

  @Test("without memory for its handshake ends as internal, and the next one is served")
  func memory() async {
    await #expect(processExitsWith: .success) {
      try #require(OpenSSLMemory.takeOver())
      let rig = try HandshakeRig()
      try await withRoute(rig.config("tls://127.0.0.1:0")) { story, _ in
        let address = try story.address()
        let isShort = try OpenSSLMemory.run(short: 0) {
          let client = try connectTCP(address)
          #expect(try story.reports(atLeast: 1)[0].ending.word == .internal)
          client.close()
        }
        #expect(isShort)
        let client = try rig.connectTLS(address, rig.manner())
        try client.send([7])
        #expect(try client.receive(exactly: 1) == [7])
        client.close()
      }
    }
  }

  /// A client behind the proxy is served, and nothing was reported about any client before it.
  private func expectEcho(_ story: Story, _ host: String) throws {
    let client = try connectTCP(story.address())
    try client.send(Array("PROXY TCP4 \(host) 127.0.0.1 5 6\r\n".utf8))
    let secure = try TLSFarEnd(try client.take(), rig.manner())
    try secure.handshake()
    try secure.send([9])
    #expect(try secure.receive(exactly: 1) == [9])
    #expect(story.reports.isEmpty && story.labels.map { $0.address?.host } == [host])
    secure.close()
  }
}

private let (TLS1_2, TLS1_3): (Int32, Int32) = (0x0303, 0x0304)
