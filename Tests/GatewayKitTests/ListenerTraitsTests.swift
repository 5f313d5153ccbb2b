// The traits in `ListenerSchemes`, compared with the behaviour of a listener of each scheme.

import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("The traits of a listener scheme", .timeLimit(.minutes(5)))
struct ListenerTraitsTests {
  private static let schemes = ListenerSchemes.table.filter { $0.make != nil }.map(\.scheme)

  @Test("exist for every scheme that can be listened on, and each such scheme has a rig in the conformance suite")
  func complete() {
    #expect(Set(Self.schemes) == ListenerSchemes.built)
    for traits in ListenerSchemes.table where traits.make != nil && traits.family != .rfcomm {
      #expect(ListenerRig.rigs.contains { (try? $0.freeURL().hasPrefix("\(traits.scheme)://")) ?? false })
    }
  }

  @Test("name the handshake of its clients", arguments: schemes)
  func handshakes(scheme: String) async throws {
    let traits = try #require(ListenerSchemes.traits(scheme))
    guard traits.grammar.authority.isNetwork else { return #expect(!traits.hasHandshake) }
    let config = try routeConfig(
      traits.usesTLS ? ListenerRig.certificate.text : "", listen: "\(scheme)://127.0.0.1:0", endpoint: "sim://echo")
    #expect(config.listen.allSatisfy { $0.hasHandshake == traits.hasHandshake })
    try await withRoute(config) { story, _ in
      let address = try story.address()
      let secure = try? shakeHands(connectTCP(address))
      #expect((secure != nil) == traits.usesTLS)
      let client: any FarParty = try secure ?? connectTCP(address)
      #expect(try Self.upgrades(client) == traits.usesWebSocket)
      client.close()
    }
  }

  /// Whether the listener accepts a WebSocket upgrade. Blocks.
  private static func upgrades(_ client: any FarParty) throws -> Bool {
    let lines = [
      "GET / HTTP/1.1", "Host: localhost", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
      "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "", "",
    ]
    try client.send(Array(lines.joined(separator: "\r\n").utf8))
    return String(decoding: try client.receive(), as: UTF8.self).hasPrefix("HTTP/1.1 101 ")
  }

  @Test("define where clients can log in; elsewhere a list of users is refused", arguments: schemes, [false, true])
  func logIn(scheme: String, knowsCertificates: Bool) throws {
    let traits = try #require(ListenerSchemes.traits(scheme))
    let authority = knowsCertificates && traits.usesTLS ? ", client-ca: ca.pem" : ""
    let tls = traits.usesTLS ? ", tls: { certificate: c.pem, key: k.pem\(authority) }" : ""
    let text = """
      users: { ada: { token: 0123456789abcdefghijklmnopqrstuv } }
      routes: { x: { listen: '\(traits.grammar.example)', endpoint: 'sim://echo', clients: { users: [ada] }\(tls) } }
      """
    let canLogIn = traits.canLogIn(knowsCertificates: knowsCertificates && traits.usesTLS)
    do throws(ConfigProblems) {
      let access = try ConfigFile.read(Array(text.utf8)).routes[0].access
      #expect(canLogIn && access.asks)
    } catch {
      #expect(!canLogIn && "\(error)".contains("this listener cannot authenticate clients"), "\(error)")
    }
  }

  @Test("define where two routes can share a port", arguments: schemes)
  func sharedPorts(scheme: String) throws {
    let traits = try #require(ListenerSchemes.traits(scheme))
    guard traits.grammar.authority.isNetwork else { return #expect(!traits.canSharePort) }
    let tls = traits.usesTLS ? ", tls: { certificate: c.pem, key: k.pem }" : ""
    let routes = ["a", "b"].map { name in
      let mark = traits.usesWebSocket ? "/\(name)" : traits.usesTLS ? "?server-name=\(name).test" : ""
      return "  \(name): { listen: '\(scheme)://:4001\(mark)', endpoint: 'sim://echo'\(tls) }\n"
    }
    let text = "routes:\n" + routes.joined()
    do throws(ConfigProblems) {
      let listeners = try ConfigFile.read(Array(text.utf8)).routes.flatMap(\.listen)
      #expect(traits.canSharePort && listeners[0].sharesListenSocket(with: listeners[1]))
    } catch {
      #expect(!traits.canSharePort && "\(error)".contains("port 4001 is taken"), "\(error)")
    }
  }

  @Test("define which inherited sockets it can use", arguments: schemes)
  func inherited(scheme: String) throws {
    let traits = try #require(ListenerSchemes.traits(scheme))
    let url = traits.grammar.authority.isNetwork ? "\(scheme)://127.0.0.1:4001" : traits.grammar.example
    let more = traits.usesTLS ? "tls: { certificate: c.pem, key: k.pem }" : ""
    let listen = try routeConfig(more, listen: url, endpoint: "sim://echo").listen[0]
    let address = try #require(SocketAddress(numeric: "127.0.0.1", port: 4001))
    #expect(InheritedSockets.Address.tcp(address).isMeant(by: listen) == (traits.family == .tcp))
    let path = listen.url.path
    #expect(InheritedSockets.Address.unix(path: path).isMeant(by: listen) == (traits.family == .unix))
  }
}
