import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

/// 127.0.0.1 is a proxy.
private let proxied = Reception.Rules(proxies: [Network("127.0.0.1")!])

@Suite("A reception", .timeLimit(.minutes(1)))
struct ReceptionTests {
  private static let url = "tcp://127.0.0.1:0?proxy-protocol=required"

  @Test("takes the client's address from the proxy, and hands over what follows the header")
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
      let told = story.labels.map { $0.address?.host }
      #expect(told == ["192.0.2.7", "198.51.100.9", "127.0.0.1"])
      #expect(try story.bound().hasPrefix("tcp://127.0.0.1:"))
      for client in clients { client.close() }
    }
  }

  @Test("reads a header that comes byte by byte, and serves others meanwhile")
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

  @Test("refuses who is not among the proxies, and who says no header, with a word each")
  func refuses() async throws {
    let config = try routeConfig(listen: Self.url, endpoint: "sim://echo")
    try await withRoute(config) { story, _ in
      let client = try connectTCP(story.address())
      #expect((try? client.receiveToEnd())?.isEmpty ?? true)
      let report = try story.reports(atLeast: 1)[0]
      #expect(report.ending.word == .denied && report.ending.cause as? GreetingFault == .notAProxy)
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

  @Test("lets allow and deny mean the address that the proxy told")
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

  @Test("cuts off at its deadline who dribbles, who says nothing, and who still waits")
  func deadline() async throws {
    let config = try routeConfig(listen: Self.url, endpoint: "sim://echo")
    try await withRoute(config, rules: proxied, patience: .milliseconds(300)) { story, _ in
      let silent = try connectTCP(story.address())
      let dribbling = try connectTCP(story.address())
      try dribbling.send(Array("PROXY TCP4 192.0.2".utf8))
      for client in [silent, dribbling] { #expect((try? client.receiveToEnd())?.isEmpty ?? true) }
      let reports = try story.reports(atLeast: 2)
      #expect(reports.allSatisfy { $0.ending.word == .protocolError && $0.nanoseconds >= 300_000_000 })
      for client in [silent, dribbling] { client.close() }
    }
  }

  @Test("lets those in at once who wait when a reload raises the limit")
  func raisedLimit() async throws {
    let config = try routeConfig(listen: "ws://127.0.0.1:0/lab", endpoint: "sim://echo")
    try await withReception(config, rules: Reception.Rules(handshakesPerAddress: 1), patience: .seconds(100)) {
      story, _, reception in
      let clients = try (0..<2).map { _ in try connectTCP(story.address()) }
      try waitForGuest("HTTP request", at: reception)
      try waitForGuest("place among those who are greeted", at: reception)
      try ask(reception) { $0.follow(Reception.Rules(handshakesPerAddress: 2)) }
      #expect(try ask(reception) { $0.guests.values.allSatisfy { $0.step == "HTTP request" } })
      for client in clients { client.close() }
    }
  }

  @Test("says what to do about an address that can't be bound")
  func advice() throws {
    let advice = { (port: Int, error: Int32) throws -> String? in
      let config = try routeConfig(listen: "tcp://127.0.0.1:\(port)", endpoint: "sim://echo")
      let binding = TCPBinding(
        listen: config.listen[0], inherited: InheritedSockets(), keepsAlive: true, limitsUnsent: true)
      return binding.failure(SystemError("bind", error)).advice
    }
    #expect(try advice(443, EACCES)?.contains("CAP_NET_BIND_SERVICE") ?? false)
    #expect(try advice(4433, EACCES) == nil)
    #expect(try advice(443, EADDRINUSE)?.contains("another") ?? false)
  }

  @Test("ends those who are on their way through when the route stops, each once")
  func stops() async throws {
    let config = try routeConfig(listen: Self.url, endpoint: "sim://echo")
    try await withRoute(config, rules: proxied) { story, route in
      let client = try connectTCP(story.address())
      try client.send(Array("PROXY".utf8))
      route.post { _, route in route.stop(Ending(.shutdown), within: .milliseconds(50)) {} }
      #expect((try? client.receiveToEnd())?.isEmpty ?? true)
      let reports = try story.reports(atLeast: 1)
      #expect(reports.map(\.ending.word) == [.shutdown])
      client.close()
    }
  }

  @Test("lets no client of one address in faster than the limit says, whatever the listener", arguments: ["", url])
  func rate(url: String) async throws {
    let rates = ConnectRates()
    rates.set(2)
    let listen = url.isEmpty ? "tcp://127.0.0.1:0" : url
    try await withRoute(routeConfig(listen: listen, endpoint: "sim://echo"), rates: rates, rules: proxied) { story, _ in
      let clients = try (0..<12).map { _ in try connectTCP(story.address()) }
      if !url.isEmpty { for client in clients { try? client.send(proxyBlock([], 0x21, 0)) } }
      // Some more may come in while the bucket fills on a slow machine, but not all of them.
      let reports = try story.reports(atLeast: 1)
      #expect(reports.allSatisfy { $0.ending.word == .denied && "\($0.ending.cause!)".contains("in a second") })
      for client in clients { client.close() }
    }
  }

  @Test("leaves no descriptor behind, whatever becomes of its guests")
  func leaks() async throws {
    let config = try routeConfig(listen: Self.url, endpoint: "sim://echo")
    try await expectNoDescriptorLeak {
      try await withRoute(config, rules: proxied, patience: .milliseconds(200)) { story, _ in
        for text in ["", "PROXY", "PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n", "X", "PROXY TCP9 \r\n"] {
          for isReset in [false, true] {
            let client = try connectTCP(story.address())
            try client.send(Array(text.utf8))
            if isReset { client.reset() } else { client.close() }
          }
        }
        _ = try story.reports(atLeast: 8)  // those who said a whole header may listen still
      }
    }
  }
}
