// The requests of the control socket and their parser, the only code that parses input there. A pure function of bytes,
// so that tests and fuzzers need no socket. The whole protocol: Docs/control-socket.md.

import StreamBroker

package enum ControlRequest: Hashable, Sendable {
  /// Whether all listeners are bound.
  case health
  /// The whole state.
  case status
  /// Reads the configuration again; the answer lists the changes.
  case reload
  /// Ends sessions of a route; nil for all of them.
  case kick(route: String, sessions: [UInt64]?)
  case link(route: String, LinkAction)
  /// Records the route until the client closes.
  case capture(route: String, Config.Capture.Format)

  /// The version of the protocol; it changes when an old command would misunderstand a new gateway.
  package static let version: UInt64 = 1
  /// Bytes of the longest request, without its line end.
  package static let longest = 1024

  static let names = ["health", "status", "reload", "kick", "reset", "release", "reopen", "capture"]

  /// The answer has no end by itself.
  var isLive: Bool { if case .capture = self { true } else { false } }

  /// Parses a line without its line end: words (`kick gps 17 18`, `kick gps --all`) or a JSON object
  /// (`{"request":"kick","route":"gps","sessions":[17,18]}`).
  package static func parse(_ line: some Collection<UInt8>) throws(ControlFault) -> ControlRequest {
    guard line.count <= longest else { throw ControlFault("a request has at most \(longest) bytes") }
    guard let text = String(validating: line, as: UTF8.self) else { throw ControlFault("a request must be UTF-8") }
    if line.first == UInt8(ascii: "{") { return try Object(line).request() }
    let words = text.split { $0 == " " || $0 == "\t" || $0 == "\r" || $0 == "\r\n" }.map(String.init)
    return try request(words)
  }

  private static func request(_ words: [String]) throws(ControlFault) -> ControlRequest {
    guard let name = words.first else { throw ControlFault("an empty request") }
    if name == "kick" { return try kick(Array(words.dropFirst())) }
    if name == "reset" {
      guard words.count > 1 else { throw ControlFault("'reset' needs a route, and may name a recipe") }
      return try reset(words[1], words.count > 2 ? words[2...].joined(separator: " ") : nil)
    }
    if name == "capture" {
      guard words.count == 2 || words.count == 3 else {
        throw ControlFault("'capture' needs a route, and may name a format")
      }
      return try capture(words[1], words.count == 3 ? words[2] : nil)
    }
    if let action = plainAction(name) {
      guard words.count == 2 else { throw ControlFault("'\(name)' needs a route, and nothing else") }
      return .link(route: words[1], action)
    }
    guard let plain = plain(name) else { throw ControlFault.unknown }
    guard words.count == 1 else { throw ControlFault("'\(name)' takes no arguments") }
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

  fileprivate static func capture(_ route: String, _ format: String?) throws(ControlFault) -> ControlRequest {
    let known = Config.Capture.Format.allCases.map(\.rawValue)
    guard let format = Config.Capture.Format(rawValue: format ?? "pcapng") else {
      throw ControlFault("'format' must be \(Suggestion.list(known))")
    }
    return .capture(route: route, format)
  }

  fileprivate static func plainAction(_ name: String) -> LinkAction? {
    switch name {
    case "release": .release
    case "reopen": .reopen
    default: nil
    }
  }

  fileprivate static func reset(_ route: String, _ recipe: String?) throws(ControlFault) -> ControlRequest {
    guard let recipe else { return .link(route: route, .reset(nil)) }
    do throws(ValueFault) {
      return .link(route: route, .reset(try ResetRecipe(recipe)))
    } catch {
      throw ControlFault(error.text)
    }
  }

  private static func kick(_ words: [String]) throws(ControlFault) -> ControlRequest {
    guard let route = words.first else { throw ControlFault("'kick' needs a route, and session numbers or --all") }
    let rest = words.dropFirst()
    if rest == ["--all"] { return .kick(route: route, sessions: nil) }
    var sessions: [UInt64] = []
    for word in rest {
      // Digits only, no sign or space: as log and status show session numbers.
      guard word.allSatisfy({ $0.isASCII && $0.isNumber }), let number = UInt64(word) else {
        throw ControlFault("'\(word)' is not a session number")
      }
      sessions.append(number)
    }
    guard !sessions.isEmpty else { throw ControlFault("'kick' needs session numbers or --all") }
    return .kick(route: route, sessions: sessions)
  }

  /// The JSON form, for programs. Unknown keys are refused: ignoring one could change what the request means.
  private struct Object {
    private let members: [JSONValue.Member]

    init(_ line: some Collection<UInt8>) throws(ControlFault) {
      do throws(JSONFault) {
        members = try JSONReader.read(line).members ?? []
      } catch {
        throw ControlFault("not JSON at byte \(error.offset): \(error.message)")
      }
      guard Set(members.map(\.key)).count == members.count else { throw ControlFault("a key is given twice") }
    }

    func request() throws(ControlFault) -> ControlRequest {
      if let version = self["protocol"], version != .integer(ControlRequest.version) {
        throw ControlFault("this gateway uses protocol \(ControlRequest.version)")
      }
      guard let name = self["request"]?.text else { throw ControlFault("the key 'request' is missing") }
      if name == "kick" {
        try expect("route", "sessions", "all")
        return try kick()
      }
      if name == "reset" {
        try expect("route", "recipe")
        guard let route = self["route"]?.text else { throw ControlFault("the key 'route' is missing") }
        guard let recipe = self["recipe"] else { return .link(route: route, .reset(nil)) }
        guard let text = recipe.text else { throw ControlFault("'recipe' must be a text") }
        return try ControlRequest.reset(route, text)
      }
      if name == "capture" {
        try expect("route", "format")
        guard let route = self["route"]?.text else { throw ControlFault("the key 'route' is missing") }
        return try ControlRequest.capture(route, self["format"].map { $0.text ?? "" })
      }
      if let action = ControlRequest.plainAction(name) {
        try expect("route")
        guard let route = self["route"]?.text else { throw ControlFault("the key 'route' is missing") }
        return .link(route: route, action)
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
        guard sessions.count == values.count else { throw ControlFault("'sessions' must be numbers") }
        return .kick(route: route, sessions: sessions)
      default: throw ControlFault("'kick' needs 'sessions' or 'all': true")
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

extension ValueFault {
  /// In one sentence.
  package var text: String { suggestion.map { "\(message); did you mean '\($0)'?" } ?? message }
}

/// Why a request was not carried out, as a message for the client.
package struct ControlFault: Error, Hashable, Sendable {
  package let message: String
  init(_ message: String) { self.message = message }

  static let stopping = ControlFault("the gateway is stopping")
  static let late = ControlFault("the request did not finish within a minute; it may finish later")
  static let unknown = ControlFault("unknown request; expected one of \(ControlRequest.names.joined(separator: ", "))")

  var answer: JSONValue {
    .object(["protocol": .integer(ControlRequest.version), "error": .text(message)])
  }
}
