// The requests of a client of `baudway.v1` and their parser: one JSON object per text message. A pure function of
// bytes; one table drives parsing, messages and the published schema (ControlChannelSchema.swift).

import ByteStreams
import StreamBroker

enum ControlChannelRequest: Hashable, Sendable {
  /// Changes settings of the line; missing ones stay as they are.
  case line(LineChange)
  case output(ModemOutput, isOn: Bool)
  case `break`(isOn: Bool)
  /// A break of this length.
  case breakFor(Duration)
  case purge(Purge)
  case writer(WriterWish)
  /// Asks for the settings in force, after the bytes that were sent before. RFC 2217 has it.
  case query
  /// Starts or stops events about modem lines and errors.
  case watch(isOn: Bool)
  /// Asks for the present state, as events.
  case status

  enum WriterWish: String, CaseIterable, Sendable { case take, leave }

  struct LineChange: Hashable, Sendable {
    var bitsPerSecond: UInt32?
    var dataBits: Int?
    var parity: LineSettings.Parity?
    var stopBits: LineSettings.StopBits?
    var flowControl: LineSettings.FlowControl?

    /// This change, and then `later`.
    func merged(with later: LineChange) -> LineChange {
      LineChange(
        bitsPerSecond: later.bitsPerSecond ?? bitsPerSecond, dataBits: later.dataBits ?? dataBits,
        parity: later.parity ?? parity, stopBits: later.stopBits ?? stopBits,
        flowControl: later.flowControl ?? flowControl)
    }

    func applied(to settings: LineSettings) -> LineSettings {
      var next = LineSettings(
        bitsPerSecond: bitsPerSecond ?? settings.bitsPerSecond, dataBits: dataBits ?? settings.dataBits,
        parity: parity ?? settings.parity, stopBits: stopBits ?? settings.stopBits,
        flowControl: flowControl ?? settings.flowControl)
      // RFC 2217 changes one setting at a time: a port that leaves five data bits has two stop bits, as a UART.
      if dataBits != nil, stopBits == nil, next.stopBits == .oneAndHalf, next.dataBits != 5 { next.stopBits = .two }
      return next
    }
  }

  /// Whether it is carried out at its position among the bytes. A purge must not wait for the bytes that it discards.
  var isInSequence: Bool {
    switch self {
    case .line, .output, .break, .breakFor, .query: true
    case .purge, .writer, .watch, .status: false
    }
  }

  static let longest = 4096
  static let mostBits: UInt64 = 20_000_000
  static let longestBreak: UInt64 = 5000

  // MARK: - The table

  enum Kind {
    case flag
    case number(ClosedRange<UInt64>)
    /// Words. A JSON number counts as the word with its digits, so that `"stop":1` is one stop bit.
    case words([String])

    /// Throws what is wrong with the value of the key `name`.
    func check(_ value: JSONValue, _ name: String, id: ID? = nil) throws(Fault) {
      switch self {
      case .flag: if value.flag == nil { throw Fault(id: id, message: "'\(name)' must be true or false") }
      case .number(let range):
        guard let number = value.integer, range.contains(number) else {
          throw Fault(
            id: id, message: "'\(name)' must be a whole number from \(range.lowerBound) to \(range.upperBound)")
        }
      case .words(let words):
        guard let word = ControlChannelRequest.word(value), words.contains(word) else {
          throw Fault(
            id: id, message: "'\(name)' must be \(Suggestion.list(words))",
            suggestion: value.text.flatMap { Suggestion.nearest(to: $0, in: words) })
        }
      }
    }
  }

  struct Verb {
    let name: String
    let summary: String
    let keys: [(name: String, kind: Kind)]
    /// The fewest keys that it needs.
    var least = 1
  }

  static let verbs = [
    Verb(
      name: "line", summary: "changes line settings, after the bytes that were sent before; missing settings stay",
      keys: [
        ("baud", .number(1...mostBits)), ("data", .number(5...8)),
        ("parity", .words(LineSettings.Parity.allCases.map(\.rawValue))),
        ("stop", .words(LineSettings.StopBits.allCases.map(\.rawValue))),
        ("flow", .words(LineSettings.FlowControl.allCases.map(\.rawValue))),
      ]),
    Verb(name: "dtr", summary: "raises or drops DTR, after the bytes that were sent before", keys: [("on", .flag)]),
    Verb(name: "rts", summary: "raises or drops RTS, after the bytes that were sent before", keys: [("on", .flag)]),
    Verb(
      name: "break", summary: "begins or ends a break, or sends one of this many milliseconds",
      keys: [("on", .flag), ("ms", .number(1...longestBreak))]),
    Verb(
      name: "purge", summary: "discards at once what came from the device, what was not sent yet, or both",
      keys: [("what", .words(["input", "output", "both"]))]),
    Verb(
      name: "writer",
      summary: "takes the writer role if the takeover allows it, or gives it up, on routes with one writer",
      keys: [("wish", .words(WriterWish.allCases.map(\.rawValue)))]),
    Verb(
      name: "watch", summary: "starts or stops events about modem lines, breaks and errors on the line",
      keys: [("on", .flag)]),
    Verb(name: "status", summary: "asks for the present state, as events", keys: [], least: 0),
  ]

  // MARK: - Reading

  /// The id that a reply repeats: a number, or a text of up to 64 bytes.
  typealias ID = JSONValue

  typealias Parsed = Result<(id: ID?, request: ControlChannelRequest), Fault>

  struct Fault: Error, Hashable {
    let id: ID?
    let message: String
    var suggestion: String?
  }

  static func parse(_ bytes: [UInt8]) throws(Fault) -> (id: ID?, request: ControlChannelRequest) {
    guard bytes.count <= longest else { throw Fault(id: nil, message: "a request has at most \(longest) bytes") }
    let json: JSONValue
    do throws(JSONFault) {
      json = try JSONReader.read(bytes)
    } catch {
      throw Fault(id: nil, message: "not JSON at byte \(error.offset): \(error.message)")
    }
    guard let members = json.members else { throw Fault(id: nil, message: "a request must be an object") }
    let id = try id(json)
    guard Set(members.map(\.key)).count == members.count else {
      throw Fault(id: id, message: "a key is given twice")
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
    default: throw Fault(id: nil, message: "an id must be a whole number from 0, or a text of up to 64 bytes")
    }
  }

  private static func word(_ value: JSONValue?) -> String? {
    switch value {
    case .text(let text)?: text
    case .integer(let number)?: String(number)
    case .decimal(let number)?: "\(number)"
    default: nil
    }
  }

  private struct Reader {
    let verb: Verb
    let id: ID?
    let members: [JSONValue.Member]

    func request() throws(Fault) -> ControlChannelRequest {
      var said = 0
      for member in members where member.key != "request" && member.key != "id" {
        guard let key = verb.keys.first(where: { $0.name == member.key }) else {
          let names = verb.keys.map(\.name)
          throw Fault(
            id: id, message: "'\(verb.name)' has no key \(Suggestion.quote(member.key))",
            suggestion: Suggestion.nearest(to: member.key, in: names))
        }
        try key.kind.check(member.value, key.name, id: id)
        said += 1
      }
      guard said >= verb.least else {
        throw Fault(id: id, message: "'\(verb.name)' needs \(Suggestion.list(verb.keys.map { "'\($0.name)'" }))")
      }
      return try made()
    }

    private subscript(name: String) -> JSONValue? { members.first { $0.key == name }?.value }

    private func made() throws(Fault) -> ControlChannelRequest {
      switch verb.name {
      case "line":
        return .line(
          LineChange(
            bitsPerSecond: self["baud"]?.integer.map { UInt32($0) }, dataBits: self["data"]?.integer.map { Int($0) },
            parity: ControlChannelRequest.word(self["parity"]).flatMap { .init(rawValue: $0) },
            stopBits: ControlChannelRequest.word(self["stop"]).flatMap { .init(rawValue: $0) },
            flowControl: ControlChannelRequest.word(self["flow"]).flatMap { .init(rawValue: $0) }))
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
      case "writer": return .writer(self["wish"]?.text == "take" ? .take : .leave)
      case "watch": return .watch(isOn: self["on"]?.flag ?? false)
      default: return .status
      }
    }
  }
}

extension ControlChannelRequest: CustomStringConvertible {
  /// For the log: "baud 115200, parity even", "dtr on", "break 250 ms".
  var description: String {
    switch self {
    case .line(let change):
      let parts: [String?] = [
        change.bitsPerSecond.map { "baud \($0)" }, change.dataBits.map { "data \($0)" },
        change.parity.map { "parity \($0.rawValue)" }, change.stopBits.map { "stop \($0.rawValue)" },
        change.flowControl.map { "flow \($0.rawValue)" },
      ]
      return parts.compactMap(\.self).joined(separator: ", ")
    case .output(let output, let isOn): return "\(output == .dtr ? "dtr" : "rts") \(isOn ? "on" : "off")"
    case .break(let isOn): return "break \(isOn ? "on" : "off")"
    case .breakFor(let time): return "break \(time.nanoseconds / 1_000_000) ms"
    case .purge(let what): return "purge \(what)"
    case .writer(let wish): return "writer \(wish.rawValue)"
    case .watch(let isOn): return "watch \(isOn ? "on" : "off")"
    case .query: return "query"
    case .status: return "status"
    }
  }
}
