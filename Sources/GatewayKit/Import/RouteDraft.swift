// A route as it will be written, with the comments before it.

import StreamBroker

struct RouteDraft {
  typealias Pair = (key: String, value: String)

  let connection: Ser2netFile.Connection
  var name = ""
  var listen: [String] = []
  var endpoint: String?
  var link: String?
  var tls: [Pair] = []
  var clients: [Pair] = []
  var device: [Pair] = []
  var lost: [Lost] = []
  /// What is another way and needs no care.
  var notes: [String] = []
  /// Why it can be no route; what ser2net does there must not become something more open.
  var obstacles: [Ser2netFile.Text] = []
  /// Why it is a route, but commented out.
  var pause: Ser2netFile.Text?

  /// What has no equivalent: options of one kind, at the place of the first.
  struct Lost {
    var names: [String]
    let reason: String
    let location: Ser2netFile.Location

    var text: String { "\(names.joined(separator: ", ")): \(reason)" }
  }

  /// Whether the gateway would serve it.
  var isLive: Bool { obstacles.isEmpty && pause == nil && isWhole }
  /// Whether there is something to write, even if only as a comment.
  var isWhole: Bool { !listen.isEmpty && endpoint != nil }

  init(_ connection: Ser2netFile.Connection) { self.connection = connection }

  func value(_ key: String, in pairs: KeyPath<RouteDraft, [Pair]>) -> String? {
    self[keyPath: pairs].first { $0.key == key }?.value
  }

  /// The route's lines, from its name on, without indentation.
  func lines() -> [String] {
    var lines = ["\(YAMLText.scalar(name)):"]
    let urls = listen.map(YAMLText.scalar)
    lines.append("  listen: \(YAMLText.oneOrList(urls))")
    lines.append("  endpoint: \(YAMLText.scalar(endpoint ?? ""))")
    if let link { lines.append("  link: \(link)") }
    for (section, pairs) in [("tls", tls), ("clients", clients), ("device", device)] where !pairs.isEmpty {
      lines.append("  \(section):")
      lines += pairs.map { "    \($0.key): \($0.value)" }
    }
    return lines
  }

  /// The device that only one route can have: the endpoint without its settings.
  var exclusive: String? {
    guard let endpoint, endpoint.hasPrefix("tty:") || endpoint.hasPrefix("pty:") else { return nil }
    return String(endpoint.prefix { $0 != "?" })
  }

  /// Adds the listeners of a route to the same device. Returns false where that would change what clients may do.
  mutating func absorb(_ other: RouteDraft) -> Bool {
    let isAlike = ["allow", "writers"].allSatisfy { value($0, in: \.clients) == other.value($0, in: \.clients) }
    let hasOneTLS = tls.isEmpty || other.tls.isEmpty || tls.elementsEqual(other.tls, by: ==)
    guard endpoint == other.endpoint, isAlike, hasOneTLS else { return false }
    listen += other.listen
    if tls.isEmpty { tls = other.tls }
    let most = [self, other].compactMap { $0.value("max", in: \.clients).flatMap { Int($0) } }.max()
    if let most {
      clients.removeAll { $0.key == "max" }
      clients.insert(("max", String(most)), at: 0)
    }
    return true
  }

  /// Keys of another route to the same device that this one has not, or has otherwise.
  func differences(from other: RouteDraft) -> [String] {
    let keys: [(String, KeyPath<RouteDraft, [Pair]>, [Pair])] = [
      ("clients", \.clients, other.clients), ("device", \.device, other.device),
    ]
    return keys.flatMap { section, path, pairs in
      pairs.filter { $0.key != "max" && $0.key != "per-address" && value($0.key, in: path) != $0.value }
        .map { "\(section).\($0.key)" }
    }
  }
}
