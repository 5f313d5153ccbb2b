// What a new configuration means for the running routes, before any change is made.

import Testing

@testable import GatewayKit

@Suite("A reload's plan")
struct ReloadPlanTests {
  private static func config(
    _ routes: [String: String], log: String = "info", reserve: String = "auto"
  ) throws -> Config {
    let text = routes.sorted { $0.key < $1.key }.map { "  \($0.key): { \($0.value) }\n" }.joined()
    let top = "log: { level: \(log) }\nlimits: { reserve-descriptors: \(reserve) }\n"
    return try ConfigFile.read(Array("\(top)routes:\n\(text)".utf8))
  }

  private static let echo = "listen: 'tcp://127.0.0.1:0', endpoint: 'sim://echo'"

  @Test("goes by name: new routes start, missing ones stop, equal ones are left alone")
  func names() throws {
    let old = try Self.config(["a": Self.echo, "b": Self.echo, "c": Self.echo])
    let new = try Self.config(["b": Self.echo, "c": Self.echo + ", link: per-client", "d": Self.echo])
    let plan = ReloadPlan(from: old, to: new)
    #expect(plan.report.added == ["d"] && plan.report.removed == ["a"] && plan.report.untouched == 1)
    #expect(plan.report.changed.map(\.route) == ["c"])
    #expect(plan.stopped == ["a", "c"] && plan.started.map(\.name) == ["c", "d"] && plan.updated.isEmpty)
    #expect(ReloadPlan(from: new, to: new).report.isEmpty)
  }

  /// The text in the file, and the keys reported for a change to it.
  static let changes: [(String, [String])] = [
    ("listen: 'tcp://127.0.0.1:1', endpoint: 'sim://echo'", ["listen"]),
    ("listen: ['tcp://127.0.0.1:0', 'tcp://127.0.0.1:1'], endpoint: 'sim://echo'", ["listen"]),
    ("listen: 'tcp://127.0.0.1:0?role=monitor', endpoint: 'sim://echo'", ["listen"]),
    ("listen: 'tcp://127.0.0.1:0', endpoint: 'sim://sink'", ["endpoint"]),
    ("\(echo), clients: { max: 3 }", ["clients.max"]),
    ("\(echo), clients: { half-close: 1s, per-address: 3 }", ["clients.half-close", "clients.per-address"]),
    ("\(echo), clients: { when-full: queue, idle-timeout: 5m }", ["clients.when-full", "clients.idle-timeout"]),
    ("\(echo), clients: { writers: one, takeover: newest }", ["clients.writers", "clients.takeover"]),
    (
      "\(echo), clients: { slow: block, buffer: 8KiB, keepalive: off, notices: off, banner: x }",
      ["clients.slow", "clients.buffer", "clients.keepalive", "clients.notices", "clients.banner"]
    ),
    ("\(echo), clients: { backlog: 4KiB }, device: { flush: none }", ["clients.backlog", "device.flush"]),
    ("\(echo), clients: { allow: [ 10.0.0.0/8 ], deny: [ 10.1.0.0/16 ] }", ["clients.allow", "clients.deny"]),
    (
      "\(echo), device: { open: always, linger: 1s, absent: close, retry: 1s..2s }",
      ["device.open", "device.linger", "device.absent", "device.retry"]
    ),
    (
      "\(echo), device: { connect-timeout: 1s, drain: 1s, flush: both, on-open: a, on-close: b }",
      ["device.connect-timeout", "device.drain", "device.flush", "device.on-open", "device.on-close"]
    ),
    ("\(echo), packets: { idle: 20ms }", ["packets"]),
  ]

  @Test("names the keys that differ, as the file does", arguments: changes)
  func keys(route: String, keys: [String]) throws {
    let (old, new) = (try Self.config(["x": Self.echo]), try Self.config(["x": route]))
    let plan = ReloadPlan(from: old, to: new)
    let (reported, expected) = (Set(plan.report.changed.first?.keys ?? []), Set(keys))
    #expect(reported == expected)
    #expect(plan.updated.map(\.name) == ["x"] && plan.stopped.isEmpty && plan.started.isEmpty)
  }

  @Test("names line settings one by one, and writing down a default is no change")
  func lineSettings() throws {
    func config(_ url: String) throws -> Config {
      try Self.config(["x": "listen: 'tcp://127.0.0.1:0', endpoint: '\(url)'"])
    }
    let old = try config("tty:///dev/ttyS0")
    let new = try config("tty:///dev/ttyS0?baud=9600&parity=even")
    #expect(ReloadPlan(from: old, to: new).report.changed.first?.keys == ["endpoint.baud", "endpoint.parity"])
    #expect(ReloadPlan(from: old, to: try config("tty:///dev/ttyS0?baud=115200")).report.isEmpty)
  }

  @Test("reports packets key by key, and settings outside routes")
  func others() throws {
    let old = try Self.config(["x": Self.echo + ", packets: { idle: 20ms, max: 9 }"])
    let new = try Self.config(
      ["x": Self.echo + ", packets: { idle: 30ms, delimiter: x }"], log: "debug", reserve: "off")
    let report = ReloadPlan(from: old, to: new).report
    #expect(report.changed.first?.keys == ["packets.idle", "packets.max", "packets.delimiter"])
    #expect(report.settings == ["log.level", "limits.reserve-descriptors"] && report.log?.level == .debug)
    #expect(ReloadPlan(from: old, to: old).report.log == nil)
  }
}
