// What can be asked at the control socket, and how it is said: the one place that reads what comes in there. A pure
// function of bytes, so that tests and fuzzers need no socket. The protocol in full: Deploy/CONTROL.md.

public enum ControlRequest: Hashable, Sendable {
  /// Serves on every address?
  case health
  /// Everything there is to see.
  case status
  /// Read the configuration again, and say what changed.
  case reload
  /// End sessions of a route; nil for all of them.
  case kick(route: String, sessions: [UInt64]?)

  /// The version of the protocol; it changes when an old command would misunderstand a new gateway.
  public static let version: UInt64 = 1
  /// Bytes of the longest request, without its line end.
  public static let longest = 1024

  static let names = ["health", "status", "reload", "kick"]

  /// A line as words (`kick gps 17 18`, `kick gps --all`) or as an object of JSON
  /// (`{"request":"kick","route":"gps","sessions":[17,18]}`), without its line end.
  public static func parse(_ line: some Collection<UInt8>) throws(ControlFault) -> ControlRequest {
    guard line.count <= longest else { throw ControlFault("a request has at most \(longest) bytes") }
    guard let text = String(validating: line, as: UTF8.self) else { throw ControlFault("a request is UTF-8") }
    if line.first == UInt8(ascii: "{") { return try Object(line).request() }
    let words = text.split { $0 == " " || $0 == "\t" || $0 == "\r" || $0 == "\r\n" }.map(String.init)
    return try request(words)
  }

  private static func request(_ words: [String]) throws(ControlFault) -> ControlRequest {
    guard let name = words.first else { throw ControlFault("an empty request") }
    if name == "kick" { return try kick(Array(words.dropFirst())) }
    guard let plain = plain(name) else { throw ControlFault.unknown }
    guard words.count == 1 else { throw ControlFault("'\(name)' stands alone") }
    return plain
  }

  private static func plain(_ name: String) -> ControlRequest? {
    switch name {
    case "health": .health
    case "status": .status
    case "reload": .reload
    default: nil
    }
  }

  private static func kick(_ words: [String]) throws(ControlFault) -> ControlRequest {
    guard let route = words.first else { throw ControlFault("kick whom? A route, and sessions or --all") }
    let rest = words.dropFirst()
    if rest == ["--all"] { return .kick(route: route, sessions: nil) }
    var sessions: [UInt64] = []
    for word in rest {
      // No sign and no blank: what a session is called in log and status.
      guard word.allSatisfy({ $0.isASCII && $0.isNumber }), let number = UInt64(word) else {
        throw ControlFault("'\(word)' is not the number of a session")
      }
      sessions.append(number)
    }
    guard !sessions.isEmpty else { throw ControlFault("kick whom? Numbers of sessions, or --all") }
    return .kick(route: route, sessions: sessions)
  }

  /// The form for programs. A key that is not known is refused, for it may have meant something.
  private struct Object {
    private let members: [JSONValue.Member]

    init(_ line: some Collection<UInt8>) throws(ControlFault) {
      do throws(JSONFault) {
        members = try JSONReader.read(line).members ?? []
      } catch {
        throw ControlFault("not JSON at byte \(error.offset): \(error.message)")
      }
      guard Set(members.map(\.key)).count == members.count else { throw ControlFault("a key stands there twice") }
    }

    func request() throws(ControlFault) -> ControlRequest {
      if let version = self["protocol"], version != .integer(ControlRequest.version) {
        throw ControlFault("protocol \(ControlRequest.version) is spoken here")
      }
      guard let name = self["request"]?.text else { throw ControlFault("the key 'request' is missing") }
      if name == "kick" {
        try expect("route", "sessions", "all")
        return try kick()
      }
      guard let plain = ControlRequest.plain(name) else { throw ControlFault.unknown }
      try expect()
      return plain
    }

    private func kick() throws(ControlFault) -> ControlRequest {
      guard let route = self["route"]?.text else { throw ControlFault("the key 'route' is missing") }
      switch (self["sessions"], self["all"]) {
      case (nil, .bool(true)?): return .kick(route: route, sessions: nil)
      case (.array(let values)?, nil) where !values.isEmpty:
        let sessions = values.compactMap(\.integer)
        guard sessions.count == values.count else { throw ControlFault("'sessions' are numbers") }
        return .kick(route: route, sessions: sessions)
      default: throw ControlFault("kick whom? Say 'sessions' or 'all': true")
      }
    }

    private subscript(key: String) -> JSONValue? { members.first { $0.key == key }?.value }

    private func expect(_ keys: String...) throws(ControlFault) {
      if let other = members.map(\.key).first(where: { !(["request", "protocol"] + keys).contains($0) }) {
        throw ControlFault("unknown key '\(other)'")
      }
    }
  }
}

/// Why a request was not carried out, in words for whoever asked.
public struct ControlFault: Error, Hashable, Sendable {
  public let message: String
  init(_ message: String) { self.message = message }

  static let stopping = ControlFault("the gateway is stopping")
  static let late = ControlFault("it is not done within a minute; it may be later")
  static let unknown = ControlFault("unknown request; there are \(ControlRequest.names.joined(separator: ", "))")

  var answer: JSONValue {
    .object(["protocol": .integer(ControlRequest.version), "error": .text(message)])
  }
}
