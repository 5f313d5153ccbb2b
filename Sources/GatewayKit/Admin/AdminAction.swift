// What a request may do, decided before anything is done: by the roles of the client's user, and by its content.

import StreamBroker
import StreamWebSocket

/// A change that a request asks for.
package enum AdminAction: Hashable, Sendable {
  case reload
  /// Nil for all sessions.
  case kick(route: String, sessions: [UInt64]?)
  case link(route: String, LinkAction)
  /// Records a route live: no change, but it shows what others send. At the control socket only.
  case capture(route: String, Config.Capture.Format)

  /// For the log: "kick".
  var name: String {
    switch self {
    case .reload: "reload"
    case .kick: "kick"
    case .link(_, let action): action.name
    case .capture: "capture"
    }
  }

  var route: String? {
    switch self {
    case .reload: nil
    case .kick(let route, _), .link(let route, _), .capture(let route, _): route
    }
  }

  /// For the log.
  var detail: String? {
    switch self {
    case .reload: nil
    case .kick(_, let sessions):
      sessions.map { "sessions \($0.map(String.init).joined(separator: " "))" } ?? "all sessions"
    case .link(_, let action): action.detail
    case .capture(_, let format): format.rawValue
    }
  }
}

extension AdminRequest {
  /// Why this client may not ask this; nil if it may. A route on which its user has no role does not exist for it.
  func objection(to caller: AdminCaller) -> AdminRefusal? {
    switch resource {
    case .route(let name), .log(let name?), .kick(let name), .reset(let name), .release(let name), .reopen(let name),
      .line(let name), .writer(let name), .send(let name),
      .terminal(let name):
      guard let role = caller.role(on: name) else { return .noSuchRoute(name) }
      return resource.isChange && role < .admin ? .needsRole("admin on route \(name)") : nil
    case .reload: return caller.generalRole == .admin ? nil : .needsRole("admin on \"*\"")
    case .devices: return caller.generalRole == nil ? .needsRole("monitor on \"*\"") : nil
    case .file, .health, .ready, .metrics, .openAPI, .user, .routes, .clients, .events, .log(nil): return nil
    }
  }

  /// The change that it asks for; nil if it only looks.
  func action(_ content: [UInt8]) throws(AdminRefusal) -> AdminAction? {
    switch resource {
    case .reload:
      try expect(Self.object(content), [])
      return .reload
    case .kick(let route):
      let object = try Self.object(content)
      try expect(object, ["all", "sessions"])
      switch (object["all"], object["sessions"]) {
      case (.bool(true)?, nil): return .kick(route: route, sessions: nil)
      case (nil, .array(let values)?) where !values.isEmpty && values.count <= Self.mostSessions:
        let sessions = values.compactMap(\.integer)
        guard sessions.count == values.count else { throw .init(.unprocessableContent, "'sessions' must be numbers.") }
        return .kick(route: route, sessions: sessions)
      default:
        throw .init(
          .unprocessableContent,
          "Name the sessions, as in {\"sessions\":[17]}, at most \(Self.mostSessions), or all of them: {\"all\":true}.")
      }
    case .reset(let route):
      let object = try Self.object(content)
      try expect(object, ["recipe"])
      guard let recipe = object["recipe"] else { return .link(route: route, .reset(nil)) }
      guard let text = recipe.text else { throw .init(.unprocessableContent, "'recipe' must be a text.") }
      do throws(ValueFault) {
        return .link(route: route, .reset(try ResetRecipe(text)))
      } catch {
        throw .init(.unprocessableContent, "'recipe': \(error.text).")
      }
    case .release(let route):
      try expect(Self.object(content), [])
      return .link(route: route, .release)
    case .reopen(let route):
      try expect(Self.object(content), [])
      return .link(route: route, .reopen)
    case .line(let route):
      let object = try Self.object(content)
      try expect(object, LineAsk.keys)
      do throws(ControlChannelRequest.Fault) {
        return .link(route: route, .line(try LineAsk(object)))
      } catch {
        let suggestion = error.suggestion.map { "; did you mean '\($0)'?" } ?? "."
        throw .init(.unprocessableContent, error.message + suggestion)
      }
    case .writer(let route):
      let object = try Self.object(content)
      try expect(object, ["session"])
      switch object["session"] {
      case .null?: return .link(route: route, .writer(nil))
      case .integer(let session)?: return .link(route: route, .writer(session))
      default:
        throw .init(
          .unprocessableContent,
          "Name the session, as in {\"session\":17}; {\"session\":null} takes the role from the one that has it.")
      }
    case .send(let route):
      let object = try Self.object(content)
      try expect(object, ["text", "hex"])
      return .link(route: route, .send(try Self.bytes(object)))
    case .terminal:
      try expect(Self.object(content), [])
      return nil
    default: return nil
    }
  }

  /// The bytes to send.
  private static func bytes(_ object: JSONValue) throws(AdminRefusal) -> [UInt8] {
    let bytes: [UInt8]?
    switch (object["text"]?.text, object["hex"]?.text) {
    case (let text?, nil) where object["hex"] == nil: bytes = Array(text.utf8)
    case (nil, let digits?) where object["text"] == nil: bytes = Self.bytes(hex: digits)
    default: bytes = nil
    }
    guard let bytes, !bytes.isEmpty else {
      throw .init(
        .unprocessableContent,
        "Name the bytes, as in {\"text\":\"reset\\r\"}, or by pairs of digits: {\"hex\":\"01 03 FF\"}; at least one byte."
      )
    }
    return bytes
  }

  /// Nil if they are no pairs of digits, with or without spaces between the pairs.
  private static func bytes(hex text: String) -> [UInt8]? {
    var bytes: [UInt8] = []
    for word in text.split(separator: " ") {
      var digits = Substring(word).utf8
      while !digits.isEmpty {
        let pair = digits.prefix(2)
        guard pair.count == 2, pair.allSatisfy({ UnicodeScalar($0).properties.isASCIIHexDigit }),
          let byte = UInt8(Substring(pair), radix: 16)
        else { return nil }
        bytes.append(byte)
        digits = digits.dropFirst(2)
      }
    }
    return bytes
  }

  static let mostSessions = 1000

  /// No content is an empty object.
  private static func object(_ content: [UInt8]) throws(AdminRefusal) -> JSONValue {
    guard !content.isEmpty else { return .object([]) }
    let value: JSONValue
    do throws(JSONFault) {
      value = try JSONReader.read(content)
    } catch {
      throw AdminRefusal(.badRequest, "The content is not JSON at byte \(error.offset): \(error.message).")
    }
    guard let members = value.members else {
      throw AdminRefusal(.unprocessableContent, "The content must be an object.")
    }
    guard Set(members.map(\.key)).count == members.count else {
      throw AdminRefusal(.unprocessableContent, "The content has a key twice.")
    }
    return value
  }

  /// Unknown keys are refused: ignoring one could change what the request means.
  private func expect(_ object: JSONValue, _ keys: Set<String>) throws(AdminRefusal) {
    for member in object.members ?? [] where !keys.contains(member.key) {
      throw AdminRefusal(.unprocessableContent, "Unknown key \(Suggestion.quote(member.key)).")
    }
  }
}

extension AdminRefusal {
  static func noSuchRoute(_ name: String) -> AdminRefusal {
    AdminRefusal(.notFound, "There is no route \(Suggestion.quote(name)).")
  }

  fileprivate static func needsRole(_ role: String) -> AdminRefusal {
    AdminRefusal(.forbidden, "This needs the role \(role).")
  }
}
