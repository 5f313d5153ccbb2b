import Glibc
import StreamTestKit
import StreamWebSocket
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A pending connection that asks for a WebSocket", .timeLimit(.minutes(5)))
struct PendingConnectionWebSocketTests {
  private let rig: HandshakeRig
  private static let listen = "ws://127.0.0.1:0/lab"

  init() throws { rig = try HandshakeRig() }

  @Test("is served when it sends data together with its request, or everything in small pieces")
  func early() async throws {
    try await withRoute(rig.config(Self.listen)) { story, _ in
      for size in [7, .max] {
        let client = try connectTCP(story.address())
        let bytes = upgradeRequest() + clientFrame([1, 2, 3])
        for start in stride(from: 0, to: bytes.count, by: min(size, bytes.count)) {
          try client.send(bytes[start..<min(bytes.count, start + min(size, bytes.count))])
        }
        try expectUpgraded { try client.receive(upTo: $0) }
        client.close()
      }
    }
  }

  @Test("is served when it sends data together with its request inside TLS")
  func earlyInside() async throws {
    let rig = rig
    try await withRoute(rig.config("wss://127.0.0.1:0/lab")) { story, _ in
      let client = try rig.connectTLS(story.address(), rig.manner())
      try client.send(upgradeRequest() + clientFrame([1, 2, 3]))
      try expectUpgraded { try client.receive(upTo: $0) }
      client.close()
    }
  }

  /// Expects an answer of 101, and one frame with the data that was sent.
  private func expectUpgraded(_ receive: (Int) throws -> [UInt8]) throws {
    var said: [UInt8] = []
    let echo: [UInt8] = [0x82, 3, 1, 2, 3]
    while !said.ends(with: echo) {
      let more = try receive(1000)
      guard !more.isEmpty else { break }
      said += more
    }
    #expect(said.starts(with: Array("HTTP/1.1 101 ".utf8)) && said.ends(with: echo))
  }

  /// Request, status, ending and the log's text.
  private static let refusals: [(request: [UInt8], status: Int, word: Ending.Word, said: String)] = [
    (Array("nonsense\r\n\r\n".utf8), 400, .protocolError, ""),
    (Array("GET /lab HTTP/1.1\r\nHost: x\r\n\r\n".utf8), 426, .protocolError, "answered 426"),
    (Array("HEAD /lab HTTP/1.1\r\nHost: x\r\n\r\n".utf8), 405, .protocolError, "answered 405"),
    (upgradeRequest("/lab", ["Origin: http://evil.test"]), 403, .denied, "websocket.origins"),
    (upgradeRequest(), 401, .loginFailed, "no credentials in the request"),
    (upgradeRequest(["Authorization: Bearer wrong-wrong-wrong"]), 401, .loginFailed, "unknown user or token"),
    (upgradeRequest(["Authorization: Bearer token-of-bob-0123"]), 403, .denied, "may not use this route"),
  ]

  @Test("is refused in HTTP, with an ending and a reason for each case", arguments: refusals.indices)
  func refused(index: Int) async throws {
    let (request, status, word, said) = Self.refusals[index]
    try await withRoute(rig.config(Self.listen, top: HandshakeRig.users)) { story, _ in
      let client = try connectTCP(story.address())
      try client.send(request)
      let answer = String(decoding: try client.receiveToEnd(), as: UTF8.self)
      #expect(answer.hasPrefix("HTTP/1.1 \(status) "))
      #expect(answer.hasSuffix("\r\n\r\n") == request.starts(with: Array("HEAD".utf8)))  // RFC 9110 section 9.3.2
      let ending = try story.reports(atLeast: 1)[0].ending
      #expect(ending.word == word && "\(ending.cause.map { "\($0)" } ?? "")".contains(said), "\(ending)")
      client.close()
    }
  }

  @Test(
    "for an unknown path gets a 404 and is counted, and is no session of a route",
    arguments: ["GET", "HEAD"])
  func noSuchPath(method: String) async throws {
    try await withRoute(rig.config(Self.listen)) { story, _ in
      let client = try connectTCP(story.address())
      let request = String(decoding: upgradeRequest("/other"), as: UTF8.self)
      try client.send(Array((method + request.dropFirst(3)).utf8))
      let answer = String(decoding: try client.receiveToEnd(), as: UTF8.self)
      #expect(answer.hasPrefix("HTTP/1.1 404 ") && answer.hasSuffix("\r\n\r\n") == (method == "HEAD"))
      let said = try story.wait { events in
        events.lazy.compactMap {
          if case .requestRefused(let label, let fault) = $0 { "\(label.listener) \(fault)" } else { nil }
        }.first
      }
      #expect(said.hasPrefix("ws://127.0.0.1:") && said.hasSuffix("no route has the path '/other'"))
      // A later client that is served: an ending of the first one would have been reported by now.
      let other = try connectTCP(story.address())
      try other.send(upgradeRequest())
      _ = try story.sessions(atLeast: 1)
      #expect(story.reports.isEmpty)
      client.close()
      other.close()
    }
  }

  @Test(
    "from a page with a foreign name for this machine (DNS rebinding) is refused; with one of ours it is served",
    arguments: [
      ("evil.test:8080", "", 403), ("evil.test:8080", "websocket: { hosts: ['evil.test'] }", 101),
      ("evil.test", "websocket: { origins: ['http://evil.test'] }", 101), ("gw.test", "", 403),
      ("localhost:1", "", 101),
      ("127.0.0.1:1", "", 101), ("[::1]:1", "", 101), ("board.lab.test", "", 101),
    ])
  func rebound(host: String, route: String, status: Int) async throws {
    let page = upgradeRequest("/lab", host: host, ["Origin: http://\(host)"])
    try await withHandshakeServer(rig.config(Self.listen, route: route)) { story, _, handshakeServer in
      try ask(handshakeServer) { $0.machineNames = ["board", "board.lab.test"] }
      let client = try connectTCP(story.address())
      try client.send(page)
      let answer = String(decoding: try client.receive(upTo: 1000), as: UTF8.self)
      #expect(answer.hasPrefix("HTTP/1.1 \(status) "))
      guard status == 403 else { return client.close() }
      #expect(answer.contains("websocket.hosts"))
      let ending = try story.reports(atLeast: 1)[0].ending
      #expect(ending.word == .denied && (ending.cause as? HandshakeFault)?.counter == "web-host")
      client.close()
    }
  }

  @Test(
    "from a page with a name in our certificate is served, with another name it is not",
    arguments: [("gw.test", 101), ("evil.test", 403)])
  func certified(host: String, status: Int) async throws {
    let rig = rig
    try await withRoute(rig.config("wss://127.0.0.1:0/lab")) { story, _ in
      let client = try rig.connectTLS(story.address(), rig.manner())
      try client.send(upgradeRequest("/lab", host: host, ["Origin: https://\(host)"]))
      #expect(String(decoding: try client.receive(upTo: 1000), as: UTF8.self).hasPrefix("HTTP/1.1 \(status) "))
      client.close()
    }
  }

  @Test("from a denied address gets its refusal in HTTP")
  func denied() async throws {
    try await withRoute(rig.config(Self.listen, route: "clients: { deny: [127.0.0.1] }")) { story, _ in
      let client = try connectTCP(story.address())
      try client.send(upgradeRequest())
      #expect(String(decoding: try client.receiveToEnd(), as: UTF8.self).hasPrefix("HTTP/1.1 403 "))
      #expect(try story.reports(atLeast: 1)[0].ending.word == .denied)
      client.close()
    }
  }

  @Test("ends at the deadline in the middle of a request, or when the client closes before", arguments: [true, false])
  func unfinished(leaves: Bool) async throws {
    try await withHandshakeServer(rig.config(Self.listen)) { story, _, handshakeServer in
      let client = try connectTCP(story.address())
      try client.send(upgradeRequest().dropLast(2))
      try waitForPending("HTTP request", at: handshakeServer)
      if leaves { client.close() } else { try expireHandshakes(at: handshakeServer) }
      let ending = try story.reports(atLeast: 1)[0].ending
      let fault = ending.cause as? HandshakeFault
      #expect(ending.word == (leaves ? .clientLeft : .protocolError))
      #expect(fault == (leaves ? .left("HTTP request") : .tooSlow("HTTP request", .seconds(10))))
      client.close()
    }
  }

  @Test("with a password check still running at the deadline ends as a failed log-in, with a Retry-After")
  func slowCheck() async throws {
    let config = try hashed()
    let never: @Sendable (Poller) -> Passwords = { _ in Passwords(atOnce: 1) { _, _ in } }
    try await withHandshakeServer(config, passwords: never) { story, _, handshakeServer in
      let client = try connectTCP(story.address())
      try client.send(upgradeRequest(["Authorization: Basic YWRhOmh1bnRlcjI="]))
      try waitForPending("log-in", at: handshakeServer)
      try expireHandshakes(at: handshakeServer)
      let answer = String(decoding: try client.receiveToEnd(), as: UTF8.self)
      #expect(answer.hasPrefix("HTTP/1.1 503 ") && answer.contains("Retry-After"))
      let ending = try story.reports(atLeast: 1)[0].ending
      #expect(ending.word == .loginFailed && ending.cause as? HandshakeFault == .tooSlow("log-in", .seconds(10)))
      client.close()
    }
  }

  @Test("that closes while its password waits for the check is not checked")
  func leavesInLogIn() async throws {
    let config = try hashed()
    let never: @Sendable (Poller) -> Passwords = { _ in Passwords(atOnce: 1) { _, _ in } }
    try await withHandshakeServer(config, passwords: never) { story, _, handshakeServer in
      let client = try connectTCP(story.address())
      try client.send(upgradeRequest(["Authorization: Basic YWRhOmh1bnRlcjI="]))
      try waitForPending("log-in", at: handshakeServer)
      client.reset()
      #expect(try story.reports(atLeast: 1)[0].ending.word == .clientLost)
    }
  }

  /// ada has a password here.
  private func hashed() throws -> Config.Route {
    let hash = try #require(CryptHash.make("hunter2", prefix: "$6$", cost: 1000))
    return try rig.config(Self.listen, top: "users: { ada: { password: '\(hash)' } }")
  }
}

extension [UInt8] {
  fileprivate func ends(with other: [UInt8]) -> Bool { suffix(other.count).elementsEqual(other) }
}

private func upgradeRequest(_ fields: [String]) -> [UInt8] { upgradeRequest("/lab", fields) }
private func upgradeRequest(_ path: String, _ fields: [String]) -> [UInt8] {
  upgradeRequest(path, host: "gw.test", fields)
}
