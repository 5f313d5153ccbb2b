// What a client of `baudway.v1` may ask for, and how it is said: one object of JSON per text message. A pure function of bytes;
// one table drives reading, messages and the published schema (DeskSchema.swift).

import ByteStreams
import StreamBroker

enum DeskRequest: Hashable, Sendable {
  /// Other settings of the line; what is not said stays as it is.
  case line(LineChange)
  case output(ModemOutput, isOn: Bool)
  case `break`(isOn: Bool)
  /// A break of so long.
  case breakFor(Duration)
  case purge(Purge)
  case pen(PenWish)
  /// To hear of modem lines and errors from now on, or no more.
  case watch(isOn: Bool)
  /// What there is to know now, as events.
  case status

  enum PenWish: String, CaseIterable, Sendable { case take, leave }

  struct LineChange: Hashable, Sendable {
    var bitsPerSecond: UInt32?
    var dataBits: Int?
    var parity: LineSettings.Parity?
    var stopBits: LineSettings.StopBits?
    var flowControl: LineSettings.FlowControl?

    func applied(to settings: LineSettings) -> LineSettings {
      LineSettings(
        bitsPerSecond: bitsPerSecond ?? settings.bitsPerSecond, dataBits: dataBits ?? settings.dataBits,
        parity: parity ?? settings.parity, stopBits: stopBits ?? settings.stopBits,
        flowControl: flowControl ?? settings.flowControl)
    }
  }

  /// Whether it keeps its place among the bytes. Purging can't wait for what it is to throw away.
  var hasPlace: Bool {
    switch self {
    case .line, .output, .break, .breakFor: true
    case .purge, .pen, .watch, .status: false
    }
  }

  static let longest = 4096
  static let mostBits: UInt64 = 20_000_000
  static let longestBreak: UInt64 = 5000

  // MARK: - The table

  enum Kind {
    case flag
    case number(ClosedRange<UInt64>)
    /// Words; numbers are taken for the words they are, so that `"stop":1` is one stop bit.
    case words([String])
  }

  struct Verb {
    let name: String
    let summary: String
    let keys: [(name: String, kind: Kind)]
    /// How many of the keys it needs at least.
    var least = 1
  }

  static let verbs = [
    Verb(
      name: "line", summary: "sets the line, behind the bytes that were sent before; what is not said stays",
      keys: [
        ("baud", .number(1...mostBits)), ("data", .number(5...8)),
        ("parity", .words(LineSettings.Parity.allCases.map(\.rawValue))),
        ("stop", .words(LineSettings.StopBits.allCases.map(\.rawValue))),
        ("flow", .words(LineSettings.FlowControl.allCases.map(\.rawValue))),
      ]),
    Verb(name: "dtr", summary: "raises or drops DTR, behind the bytes that were sent before", keys: [("on", .flag)]),
    Verb(name: "rts", summary: "raises or drops RTS, behind the bytes that were sent before", keys: [("on", .flag)]),
    Verb(
      name: "break", summary: "begins or ends a break, or sends one of so many milliseconds",
      keys: [("on", .flag), ("ms", .number(1...longestBreak))]),
    Verb(
      name: "purge", summary: "throws away at once what came from the device, what was not sent yet, or both",
      keys: [("what", .words(["input", "output", "both"]))]),
    Verb(
      name: "pen", summary: "takes the pen where one writes and the takeover allows it, or leaves it to another",
      keys: [("wish", .words(PenWish.allCases.map(\.rawValue)))]),
    Verb(
      name: "watch", summary: "asks for events of modem lines, breaks and errors on the line, or for no more of them",
      keys: [("on", .flag)]),
    Verb(name: "status", summary: "asks for the events that tell how things stand now", keys: [], least: 0),
  ]

  // MARK: - Reading

  /// What names a request in its reply: a number, or a text of up to 64 bytes.
  typealias ID = JSONValue

  struct Fault: Error, Hashable {
    let id: ID?
    let message: String
    var suggestion: String?
  }

  static func parse(_ bytes: [UInt8]) throws(Fault) -> (id: ID?, request: DeskRequest) {
    guard bytes.count <= longest else { throw Fault(id: nil, message: "a request has at most \(longest) bytes") }
    let json: JSONValue
    do throws(JSONFault) {
      json = try JSONReader.read(bytes)
    } catch {
      throw Fault(id: nil, message: "not JSON at byte \(error.offset): \(error.message)")
    }
    guard let members = json.members else { throw Fault(id: nil, message: "a request is an object") }
    let id = try id(json)
    guard Set(members.map(\.key)).count == members.count else {
      throw Fault(id: id, message: "a key stands there twice")
    }
    guard let name = json["request"]?.text else {
      throw Fault(id: id, message: "'request' is missing, such as \"request\":\"line\"")
    }
    guard let verb = verbs.first(where: { $0.name == name }) else {
      throw Fault(
        id: id, message: "unknown request \(Suggestion.quote(name)); expected \(Suggestion.list(verbs.map(\.name)))",
        suggestion: Suggestion.nearest(to: name, in: verbs.map(\.name)))
    }
    return (id, try Reader(verb: verb, id: id, members: members).request())
  }

  private static func id(_ json: JSONValue) throws(Fault) -> ID? {
    switch json["id"] {
    case nil: return nil
    case .integer(let number)?: return .integer(number)
    case .text(let text)? where text.utf8.count <= 64: return .text(text)
    default: throw Fault(id: nil, message: "an id is a whole number from 0, or a text of up to 64 bytes")
    }
  }

  private struct Reader {
    let verb: Verb
    let id: ID?
    let members: [JSONValue.Member]

    func request() throws(Fault) -> DeskRequest {
      var said = 0
      for member in members where member.key != "request" && member.key != "id" {
        guard let key = verb.keys.first(where: { $0.name == member.key }) else {
          let names = verb.keys.map(\.name)
          throw Fault(
            id: id, message: "'\(verb.name)' knows no \(Suggestion.quote(member.key))",
            suggestion: Suggestion.nearest(to: member.key, in: names))
        }
        try check(member.value, key.name, key.kind)
        said += 1
      }
      guard said >= verb.least else {
        throw Fault(id: id, message: "'\(verb.name)' needs \(Suggestion.list(verb.keys.map { "'\($0.name)'" }))")
      }
      return try made()
    }

    private func check(_ value: JSONValue, _ name: String, _ kind: Kind) throws(Fault) {
      switch kind {
      case .flag: if value.flag == nil { throw Fault(id: id, message: "'\(name)' is true or false") }
      case .number(let range):
        guard let number = value.integer, range.contains(number) else {
          throw Fault(
            id: id, message: "'\(name)' is a whole number from \(range.lowerBound) to \(range.upperBound)")
        }
      case .words(let words):
        guard let word = word(value), words.contains(word) else {
          throw Fault(
            id: id, message: "'\(name)' is \(Suggestion.list(words))",
            suggestion: value.text.flatMap { Suggestion.nearest(to: $0, in: words) })
        }
      }
    }

    private func word(_ value: JSONValue?) -> String? {
      switch value {
      case .text(let text)?: text
      case .integer(let number)?: String(number)
      case .decimal(let number)?: "\(number)"
      default: nil
      }
    }

    private subscript(name: String) -> JSONValue? { members.first { $0.key == name }?.value }

    private func made() throws(Fault) -> DeskRequest {
      switch verb.name {
      case "line":
        return .line(
          LineChange(
            bitsPerSecond: self["baud"]?.integer.map { UInt32($0) }, dataBits: self["data"]?.integer.map { Int($0) },
            parity: word(self["parity"]).flatMap { .init(rawValue: $0) },
            stopBits: word(self["stop"]).flatMap { .init(rawValue: $0) },
            flowControl: word(self["flow"]).flatMap { .init(rawValue: $0) }))
      case "dtr": return .output(.dtr, isOn: self["on"]?.flag ?? false)
      case "rts": return .output(.rts, isOn: self["on"]?.flag ?? false)
      case "break":
        switch (self["on"]?.flag, self["ms"]?.integer) {
        case (let isOn?, nil): return .break(isOn: isOn)
        case (nil, let time?): return .breakFor(.milliseconds(Int64(time)))
        default: throw Fault(id: id, message: "'break' takes 'on' or 'ms', not both")
        }
      case "purge":
        let what: [String: Purge] = ["input": .input, "output": .output]
        return .purge(what[self["what"]?.text ?? ""] ?? .both)
      case "pen": return .pen(self["wish"]?.text == "take" ? .take : .leave)
      case "watch": return .watch(isOn: self["on"]?.flag ?? false)
      default: return .status
      }
    }
  }
}
