// What a client of `baudway.v1` is told: replies to what he asked, and events. One object of JSON per text message.

import ByteStreams
import StreamBroker

enum DeskEvent: Hashable, Sendable {
  /// The first: where he is, and as whom; with what the route says to everybody who comes.
  case hello(route: String, session: UInt64, role: Config.Listen.Role, user: String?, banner: String? = nil)
  case link(LinkStatus)
  /// What is in force on the line.
  case line(LineSettings)
  /// The modem's lines now, for those who asked; how often they changed since this was told last, as far as the driver counts.
  case modem(ModemInputs, changes: UInt32)
  /// What the driver has counted since he asked.
  case errors(LineCounts)
  /// Who writes, where one does; `isMine` when it is he who is told.
  case pen(holder: UInt64?, isMine: Bool)
  /// Bytes of the device's that he lost by being slow.
  case drops(bytes: UInt64, total: UInt64)
  /// He waits for a place, at this one of the queue.
  case queue(place: Int)
  /// So many events were not told, for he did not read.
  case lost(UInt64)
  /// The last: why it is over. The word is that of the gateway's log.
  case end(Ending.Word, reason: String?)

  static let names: [(name: String, summary: String)] = [
    ("hello", "the first: where the client is, and as whom"), ("link", "the device comes or goes, and why"),
    ("line", "what is in force on the line"),
    ("modem", "the modem's lines, and how often they changed since this was told last, as far as the driver counts"),
    ("errors", "what the driver has counted since the client began to watch the line"),
    ("pen", "who writes, where one does"),
    ("drops", "bytes that were lost because the client was slow"), ("queue", "the client's place in the queue"),
    ("lost", "so many events were not told, because the client did not read"),
    ("end", "the last: why the connection ends"),
  ]

  var json: JSONValue {
    switch self {
    case .hello(let route, let session, let role, let user, let banner):
      .object([
        "event": .text("hello"), "protocol": .text("baudway.v1"), "route": .text(route), "session": .integer(session),
        "role": .text(role.rawValue), "user": user.map { .text($0) },
        "banner": banner.map { .text($0) },
      ])
    case .link(let status): Self.link(status)
    case .line(let settings):
      .object(
        [JSONValue.Member(key: "event", value: .text("line"))] + (DeskEvent.settings(settings).members ?? []))
    case .modem(let inputs, let changes):
      .object([
        "event": .text("modem"), "cts": .bool(inputs.contains(.cts)), "dsr": .bool(inputs.contains(.dsr)),
        "dcd": .bool(inputs.contains(.dcd)), "ri": .bool(inputs.contains(.ri)), "changes": .integer(UInt64(changes)),
      ])
    case .errors(let counts):
      .object([
        "event": .text("errors"), "breaks": .integer(UInt64(counts.breaks)),
        "framing": .integer(UInt64(counts.framing)), "parity": .integer(UInt64(counts.parity)),
        "overruns": .integer(UInt64(counts.overruns)),
        "bufferOverruns": .integer(UInt64(counts.bufferOverruns)),
      ])
    case .pen(let holder, let isMine):
      .object([
        "event": .text("pen"), "holder": holder.map { .integer($0) } ?? .null, "mine": .bool(isMine),
      ])
    case .drops(let bytes, let total):
      .object(["event": .text("drops"), "bytes": .integer(bytes), "total": .integer(total)])
    case .queue(let place): .object(["event": .text("queue"), "place": .integer(place)])
    case .lost(let count): .object(["event": .text("lost"), "count": .integer(count)])
    case .end(let word, let reason):
      .object(["event": .text("end"), "word": .text(word.rawValue), "reason": reason.map { .text($0) }])
    }
  }

  private static func link(_ status: LinkStatus) -> JSONValue {
    var reason: JSONValue?
    if case .waiting(let why) = status { reason = .text(why.description) }
    return .object(["event": .text("link"), "state": .text(status.word), "reason": reason])
  }

  static func settings(_ line: LineSettings) -> JSONValue {
    .object([
      "baud": .integer(UInt64(line.bitsPerSecond)), "data": .integer(line.dataBits),
      "parity": .text(line.parity.rawValue), "stop": .text(line.stopBits.rawValue),
      "flow": .text(line.flowControl.rawValue),
    ])
  }
}

/// The answer to one request.
struct DeskReply: Hashable, Sendable {
  /// Nil where the request named none.
  let id: DeskRequest.ID?
  let result: Result<LineSettings?, DeskRequest.Fault>
  /// What holds on the line though the request failed, where it was about that.
  var inForce: LineSettings?

  /// A line does not do what was asked of it.
  struct LineFault: Error {
    let message: String
    var inForce: LineSettings?
  }

  /// With what is in force on the line, where that was asked about.
  static func done(_ id: DeskRequest.ID?, _ line: LineSettings? = nil) -> DeskReply {
    DeskReply(id: id, result: .success(line))
  }

  static func failed(_ id: DeskRequest.ID?, _ message: String, suggestion: String? = nil) -> DeskReply {
    DeskReply(id: id, result: .failure(.init(id: id, message: message, suggestion: suggestion)))
  }

  var json: JSONValue {
    switch result {
    case .success(let line):
      .object(["reply": id ?? .null, "ok": .bool(true), "line": line.map { DeskEvent.settings($0) }])
    case .failure(let fault):
      .object([
        "reply": id ?? .null, "ok": .bool(false), "error": .text(fault.message),
        "suggestion": fault.suggestion.map { .text($0) }, "line": inForce.map { DeskEvent.settings($0) },
      ])
    }
  }
}

extension DeskReply {
  init(_ id: DeskRequest.ID?, _ result: Result<LineSettings?, LineFault>) {
    switch result {
    case .success(let line): self = .done(id, line)
    case .failure(let fault):
      self = .failed(id, fault.message)
      inForce = fault.inForce
    }
  }
}
