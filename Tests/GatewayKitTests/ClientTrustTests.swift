// Sessions whose certificate is no longer valid: revoked, of an authority that is gone, or expired during the session.

import Dispatch
import Glibc
import StreamBroker
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams
@testable import GatewayKit
@testable import StreamTLS

@Suite("A client certificate", .timeLimit(.minutes(5)))
struct ClientTrustTests {
  private let rig: HandshakeRig
  private let ada: TestAuthority.Issued
  private let bob: TestAuthority.Issued

  init() throws {
    rig = try HandshakeRig()
    ada = try rig.authority.issue(.init("ada"))
    bob = try rig.authority.issue(.init("bob"))
    try revoke([])
  }

  /// Replaces the list by rename(2), as programs that write one do.
  private func revoke(_ users: [TestAuthority.Issued]) throws {
    try rig.folder.write("new.pem", rig.authority.revocationList(of: [7] + users.map(\.serial)))
    try #require(rename(rig.folder / "new.pem", rig.folder / "crl.pem") == 0)
  }

  private var tls: String { "client-ca: '\(rig.folder / "ca.pem")', crl: '\(rig.folder / "crl.pem")'" }

  private func connect(_ story: Story, _ user: TestAuthority.Issued) throws -> TLSFarEnd {
    var manner = try rig.manner()
    (manner.certificate, manner.key) = (user.certificate, user.key)
    let client = try rig.connectTLS(story.address(), manner)
    try client.send([1])
    #expect(try client.receive(exactly: 1) == [1])
    return client
  }

  private static let limit: UInt64 = 5_000_000_000

  @Test(
    "that is revoked while its client is connected ends the session within 5 s, and no other", arguments: [true, false])
  func revoked(isShared: Bool) async throws {
    let suite = self
    let config = try rig.config(
      "tls://127.0.0.1:0", tls: tls, endpoint: isShared ? "sim://echo" : "exec:/bin/cat",
      route: isShared ? "" : "link: per-client")
    try await withRoute(config) { story, _ in
      let (one, other) = (try suite.connect(story, suite.ada), try suite.connect(story, suite.bob))
      try suite.revoke([suite.ada])
      let began = monotonicNanoseconds()
      let reports = try story.reports(atLeast: 1)
      expectQuick(monotonicNanoseconds() - began, Self.limit)
      #expect(reports.count == 1 && reports[0].ending.word == .denied)
      #expect("\(reports[0].ending.cause!)" == "the client's certificate (CN=ada) is revoked")
      if isShared { while try one.receive() != [] {} }
      try other.send([2])
      while try other.receive(exactly: 1) != [2] {}
      one.drop()
      other.close()
    }
  }

  @Test("of an authority that is gone ends the session")
  func otherAuthority() async throws {
    let suite = self
    try await withRoute(rig.config("tls://127.0.0.1:0", tls: "client-ca: '\(rig.folder / "ca.pem")'")) { story, _ in
      let client = try suite.connect(story, suite.ada)
      try suite.rig.folder.write("ca.pem", TestAuthority("Else").pem)
      #expect(try story.reports(atLeast: 1)[0].ending.word == .denied)
      client.close()
    }
  }

  @Test("is verified again when its client gets a place after waiting in the queue")
  func queued() async throws {
    let suite = self
    let config = try rig.config(
      "tls://127.0.0.1:0", tls: tls, route: "clients: { max: 1, when-full: queue, notices: off }")
    try await withRoute(config) { story, route in
      let first = try suite.connect(story, suite.bob)
      var manner = try suite.rig.manner()
      (manner.certificate, manner.key) = (suite.ada.certificate, suite.ada.key)
      let second = try suite.rig.connectTLS(story.address(), manner)
      let limit = monotonicNanoseconds() + Patience.nanoseconds
      while try ask(route, { $0.queue.count }) == 0 { try #require(monotonicNanoseconds() < limit) }
      try suite.revoke([suite.ada])
      _ = try story.wait { $0.contains { if case .certificatesRenewed = $0 { true } else { false } } ? true : nil }
      first.close()
      let reports = try story.reports(atLeast: 2)
      #expect(reports.map(\.ending.word) == [.clientLeft, .denied])
      second.close()
    }
  }

  @Test("that can't be verified for lack of memory is verified again as soon as memory is available")
  func memory() async {
    await #expect(processExitsWith: .success) {
      try #require(OpenSSLMemory.takeOver())
      let suite = try ClientTrustTests()
      let (chain, trust, settings) = try suite.handshake(crl: true)
      try suite.revoke([suite.ada])
      let now = try TLSServerContext(settings)
      try await onLane { lane in
        let label = Self.label(TLSAdmission(settings, hasCertificate: true, shown: (chain, trust)))
        let ended = Gate()
        var endings: [Ending.Word] = []
        let clients = ClientTrust(on: lane.poller, wallTime: { time(nil) }) { number, ending in
          endings.append(ending.word)
          ended.open()
        }
        let isShort = OpenSSLMemory.run(short: 0) {
          clients.changed(to: now, sessions: [])
          clients.joined(1, label)
          clients.joined(2, label)
          ClientTrust.queue.sync {}
        }
        #expect(isShort)
        clients.left(2)
        let began = monotonicNanoseconds()
        let limit = lane.poller.timers.after(.seconds(Patience.seconds)) { ended.open() }
        await ended.wait(on: lane)
        lane.poller.timers.cancel(limit)
        #expect(endings == [.denied])
        expectQuick(monotonicNanoseconds() - began, Self.limit)
        clients.left(1)
      }
    }
  }

  @Test("that expires ends the session at that moment of the wall clock, not before")
  func expires() throws {
    let clock = ManualClock()
    let poller = try Poller(clock: clock.clock) { _ in }
    let story = Story()
    let (chain, trust, settings) = try handshake()
    var wall = chain.lastSecond - 100_000
    let route = RouteSettings(try routeConfig(endpoint: "sim://echo"), connector: ScriptedConnector())
    let group = SessionGroup(route, on: poller, status: story.sink, wallTime: { wall }) { _, _ in }
    var label = AcceptedConnection.Label(address: nil, listener: "tls://127.0.0.1:1")
    label.shown = TLSAdmission(settings, hasCertificate: true, shown: (chain, trust))
    group.take(ScriptedStream(), label, preface: [], 1)
    group.take(ScriptedStream(), AcceptedConnection.Label(address: nil, listener: "tls://127.0.0.1:1"), preface: [], 2)
    func pass(_ seconds: Int, onTheWall wallSeconds: Int? = nil) {
      clock.advance(by: .seconds(seconds))
      wall += wallSeconds ?? seconds
      poller.timers.fireDue()
    }
    for _ in 0..<27 { pass(3600) }
    #expect(story.reports.isEmpty)
    pass(2800)
    #expect(wall == chain.lastSecond && story.reports.isEmpty)  // it is valid through its last second
    pass(1)
    let ended = story.reports.map(\.ending)
    #expect(ended.map(\.word) == [.denied])
    #expect("\(ended[0].cause!)" == "the client's certificate (CN=ada) has expired")
    #expect(group.sessions.map(\.number) == [2])
    // A change of the clock is noticed within an hour.
    wall = chain.lastSecond - 100_000
    group.take(ScriptedStream(), label, preface: [], 3)
    pass(3600, onTheWall: 200_000)
    #expect(story.reports.count == 2 && group.sessions.map(\.number) == [2])
    // A client whose certificate has just expired is ended at once.
    group.take(ScriptedStream(), label, preface: [], 4)
    pass(1)
    #expect(story.reports.count == 3)
    group.cutOff(Ending(.shutdown))
  }

  private static func label(_ shown: TLSAdmission) -> AcceptedConnection.Label {
    var label = AcceptedConnection.Label(address: nil, listener: "tls://127.0.0.1:1")
    label.shown = shown
    return label
  }

  /// What a server keeps of ada's handshake.
  private func handshake(crl: Bool = false) throws -> (TLSClientChain, TLSTrust, TLSServerSettings) {
    var settings = TLSServerSettings(
      identities: [TLSIdentity(certificate: rig.folder / "server.pem", key: rig.folder / "server.key")])
    settings.clientAuth = .required
    settings.clientCA = rig.folder / "ca.pem"
    if crl { settings.crl = rig.folder / "crl.pem" }
    var wishes = TLSClientSettings()
    wishes.ca = rig.folder / "ca.pem"
    try rig.folder.write("ada.pem", ada.certificate)
    try rig.folder.write("ada.key", ada.key)
    wishes.identity = TLSIdentity(certificate: rig.folder / "ada.pem", key: rig.folder / "ada.key")
    let (near, far) = try FarEnd.pair()
    let one = try near.take()
    let other = try far.take()
    let server = try TLSHandshake(try TLSServerContext(settings), over: one.raw)
    let client = try TLSHandshake(try TLSClientContext(wishes), to: "gw.test", over: other.raw)
    var isOver = false
    for _ in 0..<10 where !isOver {
      _ = try client.advance()
      isOver = try server.advance() == .finished
    }
    let shown = try #require(server.takeSession().facts.shown)
    return (shown.chain, shown.trust, settings)
  }

  @Test("file that is broken is reported once, for all listeners that use it and however often it changes")
  func reportedOnce() async throws {
    let suite = self
    let text = """
      tls: { certificate: '\(rig.folder / "server.pem")', key: '\(rig.folder / "server.key")' }
      routes: { x: { listen: ['tls://127.0.0.1:0', 'tls://127.0.0.1:0', 'wss://127.0.0.1:0/x'], endpoint: 'sim://echo' } }

      """
    let config = try #require(try ConfigFile.read(Array(text.utf8)).routes.first)
    try await withHandshakeServer(config) { story, route, handshakeServer in
      _ = try story.address(of: "x", 2)
      func count(_ isMeant: (StatusEvent) -> Bool) -> Int { story.all.count(where: isMeant) }
      func refusals() -> Int { count { if case .certificatesRefused = $0 { true } else { false } } }
      /// Waits until all three listeners report the fault, or none does.
      func wait(forFault isFaulty: Bool) throws {
        let limit = monotonicNanoseconds() + Patience.nanoseconds
        while try ask(handshakeServer, { $0.faultyListeners }) != (isFaulty ? 3 : 0) {
          try #require(monotonicNanoseconds() < limit)
          usleep(5000)
        }
      }
      for round in 1...2 {
        for piece in 1...2 {
          try suite.rig.folder.write("server.pem", String(repeating: "nothing\n", count: piece))
          try wait(forFault: true)
        }
        #expect(refusals() == round)
        try ask(handshakeServer) { $0.renewCertificates() }
        let good = try suite.rig.authority.issue(.init("gw.test", names: "DNS:gw.test"))
        try suite.rig.folder.write("server.key", good.key)
        try suite.rig.folder.write("server.pem", good.certificate)
        try wait(forFault: false)
      }
      #expect(refusals() == 2)
    }
  }

  @Test(
    "file that is broken does not make each of thousands of listeners compare itself with all others",
    .timeLimit(.minutes(5)))
  func thousands() async throws {
    try rig.folder.write("server.pem", "nothing\n")
    // No listener binds, since none has a usable certificate.
    let listeners = (0..<4000).map { "'wss://127.0.0.1:24713/\($0)'" }.joined(separator: ", ")
    let text = """
      tls: { certificate: '\(rig.folder / "server.pem")', key: '\(rig.folder / "server.key")' }
      routes: { x: { listen: [\(listeners)], endpoint: 'sim://echo' } }

      """
    let config = try #require(try ConfigFile.read(Array(text.utf8)).routes.first)
    let began = monotonicNanoseconds()
    try await withHandshakeServer(config) { story, route, handshakeServer in
      while story.all.count(where: { if case .listenerWaits = $0 { true } else { false } }) < 4000 {
        try #require(monotonicNanoseconds() < began + 4 * Patience.nanoseconds)
        usleep(20_000)
      }
      // 0.5 s in a debug build; 50 s when each listener looked at all others.
      expectQuick(monotonicNanoseconds() - began, 20_000_000_000)
    }
  }
}

extension HandshakeServer {
  /// Number of listeners whose certificate files are unusable.
  fileprivate var faultyListeners: Int { listenSockets.values.count { !$0.certificates.faults.isEmpty } }
}
