// The texts that the gateway sends to a client of `baudway.v1`: events and replies. One JSON object per text message.

import ByteStreams
import StreamBroker

enum ControlChannelEvent: Hashable, Sendable {
  /// The first event: route, session, role and user; `banner` is the route's text for every client.
  case hello(route: String, session: UInt64, role: Config.Listen.Role, user: String?, banner: String? = nil)
  case link(LinkStatus)
  /// The line's settings in force.
  case line(LineSettings)
  /// DTR, RTS and break as clients have set them.
  case outputs(ModemOutputStates, isBreak: Bool)
  /// The modem lines now, after a `watch` request. `changes` since the last such event, as far as the driver counts
  /// them.
  case modem(ModemInputs, changes: UInt32)
  /// The driver's counts since the `watch` request.
  case errors(LineCounts)
  /// The session that has the writer role, on routes with one writer; `isMine` if it is this client's.
  case writer(holder: UInt64?, isMine: Bool)
  /// Bytes from the device that were dropped because the client is slow.
  case drops(bytes: UInt64, total: UInt64)
  /// The client waits for a slot, at this position of the queue.
  case queue(position: Int)
  /// This many texts were dropped, because the client did not read.
  case lost(UInt64)
  /// The last event: why the connection ends, with the same word as in the log.
  case end(Ending.Word, reason: String?)

  static let names: [(name: String, summary: String)] = [
    ("hello", "the first event: route, session, role and user"), ("link", "the link's state, and why it is not open"),
    ("line", "the line settings in force"),
    ("outputs", "whether DTR, RTS and a break are on; null where that is unknown"),
    ("modem", "the modem lines, and how often they changed since the last such event, as far as the driver counts"),
    ("errors", "the driver's counts since the client began to watch the line"),
    ("writer", "the session that has the writer role, on routes with one writer"),
    ("drops", "bytes that were dropped because the client was slow"), ("queue", "the client's place in the queue"),
    ("lost", "how many events were dropped because the client did not read"),
    ("end", "the last event: why the connection ends"),
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
        [JSONValue.Member(key: "event", value: .text("line"))] + (ControlChannelEvent.settings(settings).members ?? []))
    case .outputs(let states, let isBreak):
      .object([
        "event": .text("outputs"), "dtr": states.dtr.map { .bool($0) } ?? .null,
        "rts": states.rts.map { .bool($0) } ?? .null, "break": .bool(isBreak),
      ])
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
    case .writer(let holder, let isMine):
      .object([
        "event": .text("writer"), "holder": holder.map { .integer($0) } ?? .null, "mine": .bool(isMine),
      ])
    case .drops(let bytes, let total):
      .object(["event": .text("drops"), "bytes": .integer(bytes), "total": .integer(total)])
    case .queue(let position): .object(["event": .text("queue"), "place": .integer(position)])
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
struct ControlChannelReply: Hashable, Sendable {
  /// Nil if the request had no id.
  let id: ControlChannelRequest.ID?
  let result: Result<LineSettings?, ControlChannelRequest.Fault>
  /// The settings in force after a failed request about the line's settings.
  var inForce: LineSettings?
  /// The endpoint has no line, or its line does not have this. Then nobody can tell whether it was carried out.
  var isUnsupported = false
  /// The link is away; the request is carried out when it is open again.
  var isRemembered = false

  /// The line refused the request.
  struct LineFault: Error {
    let message: String
    var inForce: LineSettings?
    var isUnsupported = false
  }

  /// Success; `line` has the settings in force if the request was about them.
  static func done(_ id: ControlChannelRequest.ID?, _ line: LineSettings? = nil) -> ControlChannelReply {
    ControlChannelReply(id: id, result: .success(line))
  }

  static func remembered(_ id: ControlChannelRequest.ID?) -> ControlChannelReply {
    var reply = done(id)
    reply.isRemembered = true
    return reply
  }

  static func failed(_ id: ControlChannelRequest.ID?, _ message: String, suggestion: String? = nil)
    -> ControlChannelReply
  {
    ControlChannelReply(id: id, result: .failure(.init(id: id, message: message, suggestion: suggestion)))
  }

  var json: JSONValue {
    switch result {
    case .success(let line):
      .object(["reply": id ?? .null, "ok": .bool(true), "line": line.map { ControlChannelEvent.settings($0) }])
    case .failure(let fault):
      .object([
        "reply": id ?? .null, "ok": .bool(false), "error": .text(fault.message),
        "suggestion": fault.suggestion.map { .text($0) }, "line": inForce.map { ControlChannelEvent.settings($0) },
      ])
    }
  }
}

extension ControlChannelReply {
  init(_ id: ControlChannelRequest.ID?, _ result: Result<LineSettings?, LineFault>) {
    switch result {
    case .success(let line): self = .done(id, line)
    case .failure(let fault):
      self = .failed(id, fault.message)
      inForce = fault.inForce
      isUnsupported = fault.isUnsupported
    }
  }
}
