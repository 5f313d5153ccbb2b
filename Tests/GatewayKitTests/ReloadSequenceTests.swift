// The order in which a reload is carried out: a route releases an address or device before another takes it.

import StreamBroker
import Testing

@testable import GatewayKit

@Suite("ReloadSequence")
struct ReloadSequenceTests {
  private static func config(_ routes: [String: String]) throws -> Config {
    let text = routes.sorted { $0.key < $1.key }.map { "  \($0.key): { \($0.value) }\n" }.joined()
    return try ConfigFile.read(Array("routes:\n\(text)".utf8))
  }

  private static func route(_ ports: Int..., device: String? = nil, more: String = "") -> String {
    let listen = ports.map { "'tcp://127.0.0.1:\($0)'" }.joined(separator: ", ")
    return "listen: [ \(listen) ], endpoint: '\(device.map { "tty:///dev/\($0)" } ?? "sim://echo")'\(more)"
  }

  private static func reloading(_ old: [String: String], _ new: [String: String]) throws -> ReloadSequence {
    let (old, new) = (try config(old), try config(new))
    func devices(_ config: Config) -> ReloadSequence.Devices {
      Dictionary(
        uniqueKeysWithValues: config.routes.compactMap { route in route.endpoint.device.map { (route.name, [$0]) } })
    }
    return ReloadSequence(ReloadPlan(from: old, to: new), from: old.routes, had: devices(old), wanted: devices(new))
  }

  /// The steps that can be done now, in words: "stop a", "narrow b", "update b", "start c".
  private static func words(_ steps: [ReloadSequence.Step]) -> [String] {
    steps.map { step in
      switch step {
      case .stop(let name): "stop \(name)"
      case .narrow(let route): "narrow \(route.name) to \(route.listen.map { "\($0.port)" }.joined(separator: ","))"
      case .update(let route): "update \(route.name)"
      case .start(let route): "start \(route.name)"
      }
    }.sorted()
  }

  @Test("does at once everything that has no conflict")
  func independent() throws {
    var now = try Self.reloading(
      ["a": Self.route(1), "b": Self.route(2)], ["b": Self.route(3), "c": Self.route(4)])
    #expect(Self.words(now.steps()) == ["stop a"])
    #expect(now.steps().isEmpty)  // its listeners are not closed yet
    now.letGo("a")
    #expect(Self.words(now.steps()) == ["start c", "update b"])
    now.over("b")
    #expect(!now.isOver)
    now.over("a")
    #expect(now.isOver && now.steps().isEmpty)
  }

  @Test("starts a route at another's address once that listener is closed, though its clients are still leaving")
  func address() throws {
    var now = try Self.reloading(["a": Self.route(1)], ["b": Self.route(1)])
    #expect(Self.words(now.steps()) == ["stop a"])
    now.letGo("a")
    #expect(Self.words(now.steps()) == ["start b"])
  }

  @Test("starts a route on another's device once its last user is gone")
  func device() throws {
    var now = try Self.reloading(
      ["a": Self.route(1, device: "ttyS0")], ["b": Self.route(2, device: "ttyS0"), "c": Self.route(3, device: "ttyS1")])
    #expect(Self.words(now.steps()) == ["stop a"])
    now.letGo("a")
    #expect(Self.words(now.steps()) == ["start c"])
    now.over("a")
    #expect(Self.words(now.steps()) == ["start b"])
    #expect(now.isOver)
  }

  @Test("replaces a route with another kind of link when the old one is gone")
  func replaced() throws {
    var now = try Self.reloading(["a": Self.route(1)], ["a": Self.route(1, more: ", link: per-client")])
    #expect(Self.words(now.steps()) == ["stop a"])
    now.letGo("a")
    #expect(now.steps().isEmpty)
    now.over("a")
    #expect(Self.words(now.steps()) == ["start a"])
    #expect(now.isOver)
  }

  @Test("exchanges addresses: both routes release, then both take; other addresses stay until the update")
  func exchange() throws {
    var now = try Self.reloading(
      ["a": Self.route(1, 5), "b": Self.route(2, 6)], ["a": Self.route(2, 5), "b": Self.route(1)])
    #expect(Self.words(now.steps()) == ["narrow a to 5", "narrow b to 6"])
    now.letGo("a")
    #expect(now.steps().isEmpty)
    now.letGo("b")
    #expect(Self.words(now.steps()) == ["update a", "update b"])
    now.over("a")
    now.over("b")
    #expect(now.isOver)
  }

  @Test("changes devices along a chain from its end, and a circle at once")
  func chain() throws {
    func route(_ port: Int, _ device: String) -> String { Self.route(port, device: device) }
    var now = try Self.reloading(
      ["a": route(1, "ttyS0"), "b": route(2, "ttyS1")], ["a": route(1, "ttyS1"), "b": route(2, "ttyS2")])
    #expect(Self.words(now.steps()) == ["update b"])
    #expect(now.steps().isEmpty)
    now.over("b")
    #expect(Self.words(now.steps()) == ["update a"])
    var circle = try Self.reloading(
      ["a": route(1, "ttyS0"), "b": route(2, "ttyS1")], ["a": route(1, "ttyS1"), "b": route(2, "ttyS0")])
    #expect(Self.words(circle.steps()) == ["update a", "update b"])
  }

  static let collisions: [(String, String, Bool)] = [
    ("tcp://127.0.0.1:1", "tcp://127.0.0.1:1", true), ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", false),
    ("tcp://127.0.0.1:1", "tcp://127.0.0.2:1", false), ("tcp://:1", "tcp://127.0.0.1:1", true),
    ("tcp://127.0.0.1:1", "tcp://0.0.0.0:1", true), ("tcp://:0", "tcp://:0", false),
    ("unix:///run/x", "unix:///run/x?mode=0600", true), ("unix:///run/x", "unix:///run/y", false),
    ("unix:///run/x", "tcp://:1", false),
  ]

  @Test("detects which addresses conflict", arguments: collisions)
  func collide(one: String, other: String, does: Bool) throws {
    func listen(_ url: String) throws -> Config.Listen {
      let file = "routes: { x: { listen: '\(url)', endpoint: 'sim://echo' } }\n"
      return try #require(try ConfigFile.read(Array(file.utf8)).routes.first?.listen.first)
    }
    let (one, other) = (try listen(one), try listen(other))
    #expect(one.collides(with: other) == does && other.collides(with: one) == does)
  }
}
