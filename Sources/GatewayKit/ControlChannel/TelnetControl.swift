// The control channel of a telnet client: requests of RFC 2217 become requests of the line, and each gets an answer
// with the value in force, also when it was refused. A client that does not use RFC 2217 is a person at a terminal, and
// gets events as lines of text among the bytes.

import ByteStreams
import StreamBroker
import StreamTelnet

final class TelnetControl: ControlProtocol {
  private let stream: TelnetStream
  private let sendsNotices: Bool
  let hasTexts = false
  let showsEvents = true

  // In force, as last reported; nil where there is no line, or nothing is known yet.
  private var settings: LineSettings? { didSet { if let settings { ownSettings = settings } } }
  private var outputs = ModemOutputStates()
  private var isBreak = false
  /// The client is a gateway like this one, and is told what others change.
  private var isGateway = false
  // What the client has asked of an endpoint that has no such line, or is away: it gets its own values as answers.
  private var ownSettings = LineSettings()
  private var ownOutputs = ModemOutputStates()
  private var ownBreak = false

  // Notifications.
  private var modemMask: UInt8 = 0xFF  // RFC 2217 section 3
  private var lineMask: UInt8 = 0
  private var inputs: ModemInputs?
  private var hasNoLines = false
  private var errors = LineCounts()

  // Notices.
  private var route = ""
  private var wasOpen = false
  private var isWaiting = false
  /// The latest notice, until the client has shown that it is no program with RFC 2217.
  private var heldNotice: String?

  /// IAC BREAK has no length; this is that of Linux's tcsendbreak(3).
  private static let breakLength = Duration.milliseconds(250)
  /// IAC BREAK gets no answer. Its id tells its reply from that of `watch`, which has none.
  private static let breakKeyID = ControlChannelRequest.ID.text("break key")

  init(_ stream: TelnetStream, sendsNotices: Bool) {
    self.stream = stream
    self.sendsNotices = sendsNotices
  }

  private var usesComPort: Bool { stream.negotiation.hasComPort }

  // MARK: - Requests

  func takeRequest() -> ControlChannelRequest.Parsed? {
    while let event = stream.takeEvent() {
      switch event {
      case .comPortAgreed: return .success((nil, .watch(isOn: true)))
      case .comPortRefused: if let notice = heldNotice.take() { _ = sendNotice(notice) }
      case .breakKey: return .success((Self.breakKeyID, .breakFor(Self.breakLength)))
      case .comPort(let message): if let request = request(message) { return .success(request) }
      case .lineChanged: break  // for clients
      }
    }
    return nil
  }

  /// Nil for a message that needs no request: it is answered.
  private func request(_ message: ComPortMessage) -> (id: ControlChannelRequest.ID?, request: ControlChannelRequest)? {
    switch message {
    case .signature(let text):
      if text.isEmpty { stream.send(.signature(Array(Version.name.utf8))) }
      if text.starts(with: Version.product.utf8) { isGateway = true }
      return nil
    case .lineState:
      stream.send(.lineState(0))
      return nil
    case .modemState:
      stream.send(.modemState((inputs ?? []).modemStatus))
      return nil
    case .lineStateMask(let mask), .modemStateMask(let mask):
      if case .lineStateMask = message { lineMask = mask } else { modemMask = mask }
      if lineMask == 0 && modemMask == 0 { errors = LineCounts() }  // the next watch counts from 0
      stream.send(message)
      return (nil, .watch(isOn: lineMask != 0 || modemMask != 0))
    case .purge(let number):
      guard let what = Purge(code: number) else {
        stream.send(message)
        return nil
      }
      return (id(message), .purge(what))
    case .suspend, .resume: return nil
    case .control(5): return (id(message), .break(isOn: true))
    case .control(6): return (id(message), .break(isOn: false))
    default: break
    }
    for output in [ModemOutput.dtr, .rts] {
      for isOn in [true, false] where message == output.message(isOn) {
        return (id(message), .output(output, isOn: isOn))
      }
    }
    let change = ControlChannelRequest.LineChange(message)
    return (id(message), change == ControlChannelRequest.LineChange() ? .query : .line(change))
  }

  // The request itself, so that its answer needs no list of requests.

  private func id(_ message: ComPortMessage) -> ControlChannelRequest.ID? {
    .integer(message.content(from: .client).reduce(0) { $0 << 8 | UInt64($1) })
  }

  private func message(_ id: UInt64) -> ComPortMessage? {
    let count = id > UInt64(UInt16.max) ? 5 : 2  // only a bit rate has four bytes
    let content = (0..<count).reversed().map { UInt8(truncatingIfNeeded: id >> (8 * UInt64($0))) }
    return ComPortMessage(content, from: .client)
  }

  // MARK: - Answers

  func send(_ reply: ControlChannelReply) -> Bool {
    guard let id = reply.id else { return reply.isUnsupported && usesComPort ? sendWithoutLines() : true }
    guard case .integer(let number) = id, let message = message(number) else { return true }
    switch (message.kind, request(message)?.request) {
    case (.purge, _): return stream.send(message)
    case (.dtr, let request): return answer(about: .dtr, request, reply)
    case (.rts, let request): return answer(about: .rts, request, reply)
    case (.breakState, let request):
      if case .break(let isOn)? = request {
        if keepsOwn(reply) { ownBreak = isOn } else if isDone(reply) { isBreak = isOn }
      }
      return stream.send(.control(isBreak || ownBreak ? 5 : 6))
    default: break
    }
    let before = settings?.messages
    if case .success(let now?) = reply.result { settings = now } else if let now = reply.inForce { settings = now }
    guard !keepsOwn(reply), let settings else {
      ownSettings = ControlChannelRequest.LineChange(message).applied(to: ownSettings)
      return answer(message, with: ownSettings)
    }
    // Other data bits may bring other stop bits with them, which the answer does not say.
    let asked = message.kind == .inboundFlowControl ? .flowControl : message.kind
    let others = settings.messages.filter { $0.kind != asked && before?.contains($0) == false }
    return answer(message, with: settings) && report(others)
  }

  private func isDone(_ reply: ControlChannelReply) -> Bool { if case .success = reply.result { true } else { false } }

  /// Nobody can tell what is in force: the client gets its own value.
  private func keepsOwn(_ reply: ControlChannelReply) -> Bool { reply.isUnsupported || reply.isRemembered }

  private func answer(_ message: ComPortMessage, with settings: LineSettings) -> Bool {
    // Inbound flow control (13 to 19) is the same as outbound on Linux. Its numbers are 13 higher.
    if case .inboundFlowControl = message.kind {
      let outbound = settings.messages.first { $0.kind == .flowControl }
      guard case .control(let number)? = outbound else { return true }
      return stream.send(.control(number + ComPortMessage.inbound))
    }
    return settings.messages.first { $0.kind == message.kind }.map { stream.send($0) } ?? true
  }

  /// The answer to a request about DTR or RTS.
  private func answer(
    about output: ModemOutput, _ request: ControlChannelRequest?, _ reply: ControlChannelReply
  ) -> Bool {
    var asked = true  // a port that was just opened
    if case .output(_, let isOn)? = request {
      asked = isOn
      if keepsOwn(reply) {
        ownOutputs[output] = isOn
        outputs[output] = isOn
        return stream.send(output.message(isOn))
      }
      if isDone(reply) { outputs[output] = isOn }
    }
    return stream.send(output.message(outputs[output] ?? ownOutputs[output] ?? asked))
  }

  /// The endpoint has no modem lines. Programs that wait for them before they send see all of them on.
  private func sendWithoutLines() -> Bool {
    hasNoLines = true
    defer { inputs = Self.withoutLines }
    return notify(Self.withoutLines, 0)
  }

  private static let withoutLines: ModemInputs = [.cts, .dsr, .dcd]

  // MARK: - Events

  func send(_ event: ControlChannelEvent) -> Bool {
    switch event {
    case .line(let settings):
      defer { self.settings = settings }
      let before = self.settings?.messages ?? []
      return report(settings.messages.filter { !before.contains($0) })
    case .outputs(let states, let isBreak):
      defer { (outputs, self.isBreak) = (states, isBreak) }
      return report(
        [.dtr, .rts].compactMap { line in states[line] == outputs[line] ? nil : states[line].map(line.message) })
    case .modem(let inputs, let changes):
      defer { self.inputs = inputs }
      return usesComPort ? notify(inputs, changes) : true
    case .errors(let counts):
      defer { errors = counts }
      return usesComPort ? notify(counts.since(errors)) : true
    case .hello(let route, _, _, _, _):
      self.route = route
      return true
    case .lost: return true
    case .link(let status) where usesComPort: return notify(status)
    case .end: return notice(event).map { sendNotice($0, isLast: true) } ?? true
    default: return notice(event).map { sendNotice($0) } ?? true
    }
  }

  private func report(_ changes: [ComPortMessage]) -> Bool {
    !isGateway || changes.allSatisfy { stream.send(reporting: $0) }
  }

  /// RFC 2217 has no message about the device itself: while it is away, its modem lines are off.
  private func notify(_ status: LinkStatus) -> Bool {
    switch status {
    case .waiting where inputs != nil:
      defer { inputs = [] }
      return notify([], 0)
    case .open where hasNoLines: return sendWithoutLines()
    default: return true
    }
  }

  /// The mask hides bits, and a notification without a bit of the mask is not sent.
  private func notify(_ inputs: ModemInputs, _ changes: UInt32) -> Bool {
    let now = inputs.modemStatus
    var deltas: UInt8 = 0
    if let before = self.inputs {
      let changed = inputs.symmetricDifference(before)
      if changed.contains(.cts) { deltas |= 0x01 }
      if changed.contains(.dsr) { deltas |= 0x02 }
      if changed.contains(.ri), before.contains(.ri) { deltas |= 0x04 }  // its trailing edge
      if changed.contains(.dcd) { deltas |= 0x08 }
      // A pulse came and went; the driver does not tell on which line.
      if changed.isEmpty, changes > 0 { deltas |= 0x0F }
    }
    let changes = deltas | (self.inputs.map { $0.modemStatus ^ now } ?? 0xF0)
    return changes & modemMask == 0 ? true : stream.send(.modemState((now | deltas) & modemMask))
  }

  private func notify(_ more: LineCounts) -> Bool {
    var bits: UInt8 = 0
    if more.breaks > 0 { bits |= 0x10 }
    if more.framing > 0 { bits |= 0x08 }
    if more.parity > 0 { bits |= 0x04 }
    if more.overruns > 0 || more.bufferOverruns > 0 { bits |= 0x02 }
    return bits & lineMask == 0 ? true : stream.send(.lineState(bits & lineMask))
  }

  // MARK: - Notices

  /// The last notice waits for nothing: a session may end before the client has answered.
  private func sendNotice(_ text: String, isLast: Bool = false) -> Bool {
    guard sendsNotices, !usesComPort else { return true }
    guard isLast || !stream.negotiation.hopesForComPort else {
      heldNotice = text
      return true
    }
    let texts = isLast ? [heldNotice.take(), text].compactMap(\.self) : [text]
    return texts.allSatisfy { stream.send(text: "\r\nbaudway: \($0)\r\n") }
  }

  private func notice(_ event: ControlChannelEvent) -> String? {
    switch event {
    case .link(.open):
      defer { (wasOpen, isWaiting) = (true, false) }
      return isWaiting ? "the device of \(route) is here" : nil
    case .link(.waiting(let reason)):
      guard !isWaiting else { return nil }
      isWaiting = true
      return "the device of \(route) is \(wasOpen ? "gone" : "absent") (\(reason)); waiting for it"
    case .writer(let holder, let isMine):
      guard !isMine else { return "you have the writer role" }
      return holder.map { "session \($0) has the writer role; your input is dropped" } ?? "nobody has the writer role"
    case .drops(let bytes, _): return "\(bytes) bytes were dropped, because you read too slowly"
    case .queue(let position): return "\(route) is full; you are number \(position) in the queue"
    case .end(let word, let reason): return "\(word.rawValue)" + (reason.map { ": \($0)" } ?? "")
    default: return nil
    }
  }
}

extension ControlChannelRequest.LineChange {
  /// The setting that an RFC 2217 request changes; none for a query, or a number without a meaning on Linux.
  fileprivate init(_ message: ComPortMessage) {
    var message = message
    // 14 to 16 are inbound flow control. 17 to 19 are by DCD, DTR and DSR, which Linux does not have.
    if case .control(let number) = message, (14...16).contains(number) {
      message = .control(number - ComPortMessage.inbound)
    }
    var settings = LineSettings()
    self.init()
    guard settings.take(message), settings.bitsPerSecond <= ControlChannelRequest.mostBits else { return }
    switch message.kind {
    case .baudRate: bitsPerSecond = settings.bitsPerSecond
    case .dataSize: dataBits = settings.dataBits
    case .parity: parity = settings.parity
    case .stopSize: stopBits = settings.stopBits
    default: flowControl = settings.flowControl
    }
  }
}

extension ComPortMessage {
  /// How much higher the numbers of inbound flow control are.
  fileprivate static let inbound: UInt8 = 13
}
