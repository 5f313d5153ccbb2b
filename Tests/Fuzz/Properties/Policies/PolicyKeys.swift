// Which keys of a route's policies the fuzzer varies, and how. Each key has eight values, so that a byte names a key
// and its value. A test compares this table with ConfigKeys: each key is either varied, or listed as an exception with
// its reason.

import StreamBroker

@testable import GatewayKit

struct PolicyKey: Sendable {
  let name: String
  /// Sets the key to the value of a number from 0 to 7.
  let vary: @Sendable (inout Config.Route, Int) -> Void

  private init(_ name: String, _ vary: @escaping @Sendable (inout Config.Route, Int) -> Void) {
    self.name = name
    self.vary = vary
  }

  /// Key paths and a table of values.
  private init<Value: Sendable>(
    _ name: String, _ path: any WritableKeyPath<Config.Route, Value> & Sendable, _ values: [Value]
  ) {
    self.init(name) { route, number in route[keyPath: path] = values[number % values.count] }
  }

  /// One of the keys of `packets`, which is off if none of them is set.
  private init<Value: Sendable>(
    packets name: String, _ path: any WritableKeyPath<Config.Packets, Value?> & Sendable, _ values: [Value?]
  ) {
    self.init("packets.\(name)") { route, number in
      var packets = route.packets ?? Config.Packets()
      packets[keyPath: path] = values[number % values.count]
      route.packets = packets == Config.Packets() ? nil : packets
    }
  }

  static let varied: [PolicyKey] = [
    PolicyKey("clients.writers", \.clients.writers, [.all, .one, .none, .all, .one, .all, .one, .all]),
    PolicyKey(
      "clients.takeover", \.clients.takeover, [.refuse, .newest, .idle(.milliseconds(20)), .idle(.seconds(1))]),
    PolicyKey("clients.slow", \.clients.slow, [.automatic, .block, .disconnect, .dropOldest]),
    // Smaller than a config file may set, so that a ring is full after some steps.
    PolicyKey("clients.buffer", \.clients.buffer, [64, 32, 100, 256, 64, 17, 4096, 64]),
    PolicyKey("clients.backlog", \.clients.backlog, [0, 0, 0, 16, 0, 40, 64, 200]),
    PolicyKey(
      "clients.idle-timeout", \.clients.idleTimeout, [nil, nil, nil, nil, nil, .milliseconds(100), .seconds(10), nil]),
    PolicyKey("clients.banner", \.clients.banner, [nil, nil, nil, nil, nil, nil, "hello {client}", nil]),
    PolicyKey("device.open", \.device.open, [.onDemand, .always]),
    PolicyKey(
      "device.linger", \.device.linger, [.zero, .zero, .zero, .milliseconds(100), .seconds(5), .zero, .seconds(60)]),
    PolicyKey("device.absent", \.device.absent, [.hold, .discard, .close, .hold]),
    PolicyKey(
      "device.retry", \.device.retry,
      [.milliseconds(250)...(.seconds(30)), .milliseconds(1)...(.milliseconds(1)), .seconds(1)...(.seconds(10))]),
    PolicyKey("device.connect-timeout", \.device.connectTimeout, [.seconds(10), .milliseconds(100), .seconds(1)]),
    PolicyKey("device.drain", \.device.drain, [.seconds(5), .zero, .milliseconds(20), .seconds(5)]),
    PolicyKey("device.flush", \.device.flush, [.connect, .none, .disconnect, .both]),
    PolicyKey("device.on-open", \.device.onOpen, [[], [], [], onOpen]),
    PolicyKey("device.on-close", \.device.onClose, [[], [], [], onClose]),
    PolicyKey(packets: "idle", \.idle, [nil, nil, nil, nil, nil, .milliseconds(10), .seconds(1), nil]),
    PolicyKey(packets: "max", \.max, [nil, nil, nil, nil, 10, 1, 30, 100]),
    PolicyKey(packets: "delimiter", \.delimiter, [nil, nil, nil, nil, [10], [13, 10], [10, 10, 13], nil]),
    PolicyKey("clients.refuse-http", \.clients.refuseHttp, [false, true]),
    PolicyKey(
      "clients.half-close", \.clients.halfClose, [.seconds(5), nil, .milliseconds(100), .seconds(5), .seconds(60)]),
    PolicyKey("clients.notices", \.clients.notices, [true, false]),
    PolicyKey("device.reset", \.device.reset, [nil, nil, nil, nil] + recipes),
    PolicyKey(
      packets: "exchange", \.exchange,
      [nil, nil, nil, nil, .milliseconds(100), .milliseconds(5), .milliseconds(20), nil]),
  ]
  /// An input has one byte for each of this many keys, so that a new key does not change the meaning of old inputs. Add
  /// keys at the end.
  static let places = 24

  /// Positions in `varied` of keys that apply to shared links only.
  static let sharedOnly: Set<Int> = {
    var names: Set<String> = []
    for section in ConfigKeys.policies {
      switch section.shape {
      case .mapping(let keys), .switched(let keys):
        names.formUnion(keys.filter(\.isForSharedLinks).map { "\(section.name).\($0.name)" })
      default: break
      }
    }
    return Set(varied.indices.filter { names.contains(varied[$0].name) })
  }()

  private static let recipes = [
    "esp32", "avr", "esp32-usbjtag", "custom(rts=on dtr=off, 20ms, rts=off !, 10ms, dtr=on)",
  ].map { try? ResetRecipe($0) }

  // No byte of a client or of the device is one of these.
  static let onOpen: [UInt8] = [1, 2, 1]
  static let onClose: [UInt8] = [3, 4, 3]

  static let exceptions: [String: String] = [
    "clients.max": admission, "clients.when-full": admission, "clients.per-address": admission,
    "clients.allow": admission, "clients.deny": admission,
    "clients.users": "decided before there is a session, by Access; the targets `credentials` and `config` are for it",
    "clients.keepalive": "an option of sockets, which the played streams are not",
  ]
  private static let admission =
    "Route decides it between lanes, with descriptors; what follows from it, `replaced`, `denied`, places that are wanted, are steps"
}
