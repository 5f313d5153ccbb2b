import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

/// 127.0.0.1 is a proxy.
private let proxied = HandshakeServer.Rules(proxies: [AddressBlock("127.0.0.1")!])

@Suite("A handshake server", .timeLimit(.minutes(5)))
struct HandshakeServerTests {
  private static let url = "tcp://127.0.0.1:0?proxy-protocol=required"

  @Test("takes the client's address from the proxy's header, and forwards the bytes after the header")
  func proxy() async throws {
    try await withRoute(routeConfig(listen: Self.url, endpoint: "sim://echo"), rules: proxied) { story, _ in
      let headers = [
        Array("PROXY TCP4 192.0.2.7 127.0.0.1 51233 4001\r\n".utf8),
        proxyBlock([198, 51, 100, 9, 127, 0, 0, 1, 0, 5, 0, 6, 3, 0, 1, 0]),
        proxyBlock([], 0x21, 0),
      ]
      var clients: [FarEnd] = []
      for header in headers {
        let client = try connectTCP(story.address())
        clients.append(client)
        try client.send(header + [42])
        #expect(try client.receive(exactly: 1) == [42])
      }
      _ = try story.sessions(atLeast: 3)
      let reported = story.labels.map { $0.address?.host }
      #expect(reported == ["192.0.2.7", "198.51.100.9", "127.0.0.1"])
      #expect(try story.bound().hasPrefix("tcp://127.0.0.1:"))
      for client in clients { client.close() }
    }
  }

  @Test("reads a header that arrives byte by byte, and serves other clients meanwhile")
  func slow() async throws {
    try await withRoute(routeConfig(listen: Self.url, endpoint: "sim://echo"), rules: proxied) { story, _ in
      let slow = try connectTCP(story.address())
      let header = Array("PROXY TCP6 2001:db8::1 ::1 5 6\r\n".utf8)
      for byte in header.dropLast() { try slow.send([byte]) }
      let quick = try connectTCP(story.address())
      try quick.send(proxyBlock([], 0x21, 0) + [1])
      #expect(try quick.receive(exactly: 1) == [1])
      try slow.send([header.last!, 2])
      #expect(try slow.receive(exactly: 1) == [2])
      for client in [slow, quick] { client.close() }
    }
  }

  @Test("refuses a peer that is not a listed proxy, and a proxy without a header, with a different reason for each")
  func refuses() async throws {
    let config = try routeConfig(listen: Self.url, endpoint: "sim://echo")
    try await withRoute(config) { story, _ in
      let client = try connectTCP(story.address())
      #expect((try? client.receiveToEnd())?.isEmpty ?? true)
      let report = try story.reports(atLeast: 1)[0]
      #expect(report.ending.word == .denied && report.ending.cause as? HandshakeFault == .notAProxy)
      client.close()
    }
    try await withRoute(config, rules: proxied) { story, _ in
      let client = try connectTCP(story.address())
      try client.send(Array("GET / HTTP/1.1\r\n\r\n".utf8))
      #expect((try? client.receiveToEnd())?.isEmpty ?? true)
      let report = try story.reports(atLeast: 1)[0]
      #expect(report.ending.word == .protocolError && report.ending.cause as? ProxyFault == .noHeader)
      client.close()
    }
  }

  @Test("applies allow and deny to the address in the proxy's header")
  func lists() async throws {
    let config = try routeConfig(
      "clients: { allow: [192.0.2.0/24], deny: [192.0.2.66] }", listen: Self.url, endpoint: "sim://echo")
    try await withRoute(config, rules: proxied) { story, _ in
      for host in ["192.0.2.7", "192.0.2.66", "127.0.0.1"] {
        let client = try connectTCP(story.address())
        try client.send(Array("PROXY TCP4 \(host) 127.0.0.1 1 2\r\n".utf8) + [7])
        if host == "192.0.2.7" {
          #expect(try client.receive(exactly: 1) == [7])
        } else {
          #expect(String(decoding: try client.receiveToEnd(), as: UTF8.self) == "baudway: x is not open to \(host)\r\n")
        }
        client.close()
      }
      let words = try story.reports(atLeast: 2).map(\.ending.word)
      #expect(words.filter { $0 == .denied }.count == 2)
    }
  }

  @Test("disconnects at its deadline a client that is silent, slow or still waiting")
  func deadline() async throws {
    let config = try routeConfig(listen: Self.url, endpoint: "sim://echo")
    try await withRoute(config, rules: proxied, timeout: .milliseconds(300)) { story, _ in
      let silent = try connectTCP(story.address())
      let dribbling = try connectTCP(story.address())
      try dribbling.send(Array("PROXY TCP4 192.0.2".utf8))
      for client in [silent, dribbling] { #expect((try? client.receiveToEnd())?.isEmpty ?? true) }
      let reports = try story.reports(atLeast: 2)
      #expect(reports.allSatisfy { $0.ending.word == .protocolError && $0.nanoseconds >= 300_000_000 })
      for client in [silent, dribbling] { client.close() }
    }
  }

  @Test("starts waiting handshakes at once when a reload raises the limit")
  func raisedLimit() async throws {
    let config = try routeConfig(listen: "ws://127.0.0.1:0/lab", endpoint: "sim://echo")
    try await withHandshakeServer(
      config, rules: HandshakeServer.Rules(handshakesPerAddress: 1), timeout: .seconds(100)
    ) {
      story, _, handshakeServer in
      let clients = try (0..<2).map { _ in try connectTCP(story.address()) }
      try waitForPending("HTTP request", at: handshakeServer)
      try waitForPending("handshake slot", at: handshakeServer)
      try ask(handshakeServer) { $0.follow(HandshakeServer.Rules(handshakesPerAddress: 2)) }
      #expect(try ask(handshakeServer) { $0.pendingConnections.values.allSatisfy { $0.step == "HTTP request" } })
      for client in clients { client.close() }
    }
  }

  @Test("gives advice about an address that can't be bound")
  func advice() throws {
    let advice = { (port: Int, error: Int32) throws -> String? in
      let config = try routeConfig(listen: "tcp://127.0.0.1:\(port)", endpoint: "sim://echo")
      let binding = TCPListenSocket(
        listen: config.listen[0], inherited: InheritedSockets(), ownConnections: OwnConnections(), keepsAlive: true,
        limitsUnsent: true)
      return binding.failure(SystemError("bind", error)).advice
    }
    #expect(try advice(443, EACCES)?.contains("CAP_NET_BIND_SERVICE") ?? false)
    #expect(try advice(4433, EACCES)?.contains("SELinux") ?? false)
    #expect(try advice(4433, EAFNOSUPPORT)?.contains("no IPv6") ?? false)
    #expect(try advice(443, EADDRINUSE)?.contains("another") ?? false)
    for (number, words) in [
      (EPERM, "SELinux"), (EADDRNOTAVAIL, "no interface has that address"), (ENODEV, "no interface has that name"),
      (ENXIO, "no interface has that name"), (EMFILE, "LimitNOFILE"), (ENFILE, "fs.file-max"), (ENOBUFS, "no memory"),
      (ENOMEM, "no memory"),
    ] {
      #expect(try advice(4433, number)?.contains(words) ?? false, "\(number)")
    }
  }

  @Test("ends each pending connection once when the route stops")
  func stops() async throws {
    let config = try routeConfig(listen: Self.url, endpoint: "sim://echo")
    try await withRoute(config, rules: proxied) { story, route in
      let client = try connectTCP(story.address())
      try client.send(Array("PROXY".utf8))
      route.post { _, route in route.stop(Ending(.shutdown), within: .seconds(10)) {} }
      #expect((try? client.receiveToEnd())?.isEmpty ?? true)
      let reports = try story.reports(atLeast: 1)
      #expect(reports.map(\.ending.word) == [.shutdown])
      client.close()
    }
  }

  @Test(
    "admits no more clients of one address per second than the limit allows, on any listener", arguments: ["", url])
  func rate(url: String) async throws {
    let rates = ConnectRates()
    rates.set(2)
    let listen = url.isEmpty ? "tcp://127.0.0.1:0" : url
    try await withRoute(routeConfig(listen: listen, endpoint: "sim://echo"), rates: rates, rules: proxied) { story, _ in
      let clients = try (0..<12).map { _ in try connectTCP(story.address()) }
      if !url.isEmpty { for client in clients { try? client.send(proxyBlock([], 0x21, 0)) } }
      // On a slow machine the bucket refills meanwhile and admits some more, but not all of them.
      let reports = try story.reports(atLeast: 1)
      #expect(reports.allSatisfy { $0.ending.word == .denied && "\($0.ending.cause!)".contains("per second") })
      for client in clients { client.close() }
    }
  }

  @Test("leaves no descriptor behind, however its pending connections end")
  func leaks() async throws {
    let config = try routeConfig(listen: Self.url, endpoint: "sim://echo")
    try await expectNoDescriptorLeak {
      try await withRoute(config, rules: proxied, timeout: .milliseconds(200)) { story, _ in
        for text in ["", "PROXY", "PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n", "X", "PROXY TCP9 \r\n"] {
          for isReset in [false, true] {
            let client = try connectTCP(story.address())
            try client.send(Array(text.utf8))
            if isReset { client.reset() } else { client.close() }
          }
        }
        _ = try story.reports(atLeast: 8)  // those with a complete header may still be receiving
      }
    }
  }
}
