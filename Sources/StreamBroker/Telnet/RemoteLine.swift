// The line of a serial port behind an RFC 2217 server. Each call sends requests and does not wait for earlier answers.
// The server keeps their place among the bytes: it sends what came before a change first.

import ByteStreams
import Glibc
import StreamBrokerCore
import StreamTelnet

final class RemoteLine: SerialLine, PollHandler {
  private(set) var settings = LineSettings()
  private(set) var outputStates = ModemOutputStates()
  /// The server's signature is the device's name.
  let metadata = StreamMetadata()

  // Weak: the stream keeps the line.
  private weak var stream: TelnetStream?
  private let poller: Poller
  private var requests = PendingRequests()
  private var timer: Timers.Token?
  // Results are reported in the lane's next round: an answer arrives in the middle of a read.
  private var results: [() -> Void] = []
  private var condition = LineCondition(counts: LineCounts())
  private var watching: RemoteWatch?
  private var changed: (() -> Void)?
  private var isOpen = false

  /// How long a server may take for an answer.
  static let timeout = Duration.seconds(5)
  /// The same while nobody reads the stream, so that data may be before the answer.
  private static let longestTimeout = Duration.seconds(30)

  /// Give it each event of the stream, by `handle`.
  init(of stream: TelnetStream, on poller: Poller) {
    self.stream = stream
    self.poller = poller
  }

  deinit { poller.timers.cancel(timer) }

  // MARK: - Opening

  /// What a URL asks for.
  struct Wish: Sendable {
    let settings: LineSettings
    /// Nil keeps a line as it is.
    let outputs: ModemOutputStates

    init(_ url: EndpointURL) {
      settings = LineSettings(url)
      func output(_ word: String?) -> Bool? { word == "on" ? true : word == "off" ? false : nil }
      outputs = ModemOutputStates(dtr: output(url.string("dtr")), rts: output(url.string("rts")))
    }
  }

  /// Why the port cannot be used as the URL asks.
  struct Fault: Error {
    let cause: SystemError?
    let text: String?
  }

  /// Puts everything in force that the URL asks for. All requests are sent at once. `done` is called on the lane.
  func open(_ wish: Wish, discardingInput: Bool, _ done: @escaping (Result<Void, Fault>) -> Void) {
    // Not every server answers these. To a client with this name a gateway reports what others change.
    send(.signature(Self.name))
    request(.signature([])) { _ in }
    for line in [ModemOutput.dtr, .rts] where wish.outputs[line] == nil { request(line.query) { _ in } }
    send(.lineStateMask(0))
    send(.modemStateMask(0))
    var left = 0
    var fault: Fault?
    let answered: (Fault?) -> Void = {
      left -= 1
      fault = fault ?? $0
      if left == 0 { done(fault.map { .failure($0) } ?? .success(())) }
    }
    left += 1
    for line in [ModemOutput.dtr, .rts] {
      guard let isOn = wish.outputs[line] else { continue }
      left += 1
      set(line, isOn) { result in
        guard case .failure(let error) = result else { return answered(nil) }
        let name = line == .dtr ? "DTR" : "RTS"
        answered(
          Fault(
            cause: error.errno == ETIMEDOUT ? error : nil,
            text: error.errno == ETIMEDOUT
              ? "the server does not answer the request for \(name), as some do for a port without this line: try \(name.lowercased())=keep"
              : "the port does not change \(name); a port without this line needs \(name.lowercased())=keep"))
      }
    }
    apply(wish.settings.messages) { result in
      switch result {
      case .success(let inForce):
        answered(inForce.refusal(of: wish.settings).map { Fault(cause: nil, text: "the port does not support \($0)") })
      case .failure(let error): answered(Fault(cause: error, text: nil))
      }
    }
    // A server may have no answer to a purge. What it sent before is dropped by the caller.
    if discardingInput { request(.purge(Purge.input.code)) { _ in } }
  }

  /// The stream is open, and from now on somebody else reads it.
  func begin() {
    isOpen = true
    readAhead()
  }

  // MARK: - SerialLine

  func apply(_ settings: LineSettings, _ done: @escaping (Result<LineSettings, SystemError>) -> Void) {
    let inForce = self.settings.messages
    // A value that waits for its answer may still change.
    apply(settings.messages.filter { !inForce.contains($0) || requests.contains(kind: $0.kind) }, done)
  }

  private func apply(_ messages: [ComPortMessage], _ done: @escaping (Result<LineSettings, SystemError>) -> Void) {
    guard !isClosed, !messages.isEmpty else {
      let settings = settings
      return later { [isClosed] in done(isClosed ? .failure(Self.closed) : .success(settings)) }
    }
    var left = messages.count
    var answers: [ComPortMessage] = []
    var failure: SystemError?
    for message in messages {
      request(message) { [weak self] result in
        left -= 1
        switch result {
        case .success(let answer): answers.append(answer)
        case .failure(let error): failure = failure ?? error
        }
        guard left == 0, let self else { return }
        if let failure { return done(.failure(failure)) }
        // The server may have reported another change since.
        var inForce = self.settings
        for answer in answers { _ = inForce.take(answer) }
        done(.success(inForce))
      }
    }
  }

  func set(_ line: ModemOutput, _ isOn: Bool, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    carryOut(line.message(isOn), done)
  }

  func setBreak(_ isOn: Bool, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    carryOut(.control(isOn ? 5 : 6), done)
  }

  func purge(_ what: Purge, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    carryOut(.purge(what.code), done)
  }

  /// RFC 2217 cannot ask for this. The server itself waits for the bytes before a change.
  func unsent(_ done: @escaping (Result<Int, SystemError>) -> Void) {
    later { [isClosed] in done(isClosed ? .failure(Self.closed) : .success(0)) }
  }

  func watch(_ reported: @escaping (Result<LineCondition, SystemError>) -> Void) {
    endWatch()
    guard !isClosed else { return }
    watching = RemoteWatch(on: poller) { [weak self] in
      guard let self, !isClosed else { return }
      reported(.success($0))
    }
    condition.inputs = nil  // they may have changed since somebody watched
    watching?.begin(condition)
    send(.lineStateMask(LineStateBits.reported))
    send(.modemStateMask(0xFF))
    send(.modemState(0))  // the lines as they are; many servers send them without this
  }

  func endWatch() {
    guard let watching = watching.take() else { return }
    watching.end()
    send(.lineStateMask(0))
    send(.modemStateMask(0))
  }

  func observe(_ changed: @escaping () -> Void) { self.changed = changed }

  // MARK: - Requests

  private static let name = Array(Version.name.utf8)
  private static let closed = SystemError("write", EPIPE)
  private var isClosed: Bool { stream?.isClosed ?? true }

  private func carryOut(_ message: ComPortMessage, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    request(message) { result in
      done(
        result.flatMap { answer in
          // The server reports the state that is in force. EINVAL would mean that the port has no such line.
          answer == message ? .success(()) : .failure(SystemError(message.name, EPERM))
        })
    }
  }

  private func send(_ message: ComPortMessage) { stream?.send(message) }

  private func request(_ message: ComPortMessage, _ done: @escaping (Result<ComPortMessage, SystemError>) -> Void) {
    guard let stream, !stream.isClosed else { return later { done(.failure(Self.closed)) } }
    // The end of a broken stream has the reason, so it is not reported here.
    guard stream.send(message) || stream.isBroken else {
      return later { done(.failure(SystemError(message.name, ENOBUFS))) }
    }
    requests.add(message, at: poller.timers.now, done)
    readAhead()
    if timer == nil { wait() }
  }

  /// While answers are due they are looked for, even if nobody reads the stream.
  private func readAhead() {
    if isOpen { stream?.readAhead = requests.isEmpty ? .off : .kept }
  }

  /// One timer for all requests.
  private func wait() {
    guard let first = requests.firstTime else { return }
    let end = first &+ Self.timeout.nanoseconds
    // Those that are late because nobody reads are looked at now and then.
    timer = poller.timers.at(max(end, poller.timers.now &+ 100_000_000)) { [weak self] in
      guard let self else { return }
      timer = nil
      expire()
      wait()
    }
  }

  private func expire() {
    let limit = (stream?.isReadingBlocked == true ? Self.longestTimeout : Self.timeout).nanoseconds
    let now = poller.timers.now
    for request in requests.takeAll(sentBefore: now > limit ? now &- limit : 0) {
      later { request.done(.failure(SystemError(request.message.name, ETIMEDOUT))) }
    }
    readAhead()
  }

  private func later(_ result: @escaping () -> Void) {
    results.append(result)
    if results.count == 1 { poller.nextRound(self) }
  }

  func ready(_ events: PollEvents) {
    let due = results
    results = []
    for result in due { result() }
  }

  // MARK: - What the server sends

  func handle(_ event: TelnetStream.Event) {
    switch event {
    case .comPort(let message): handle(message)
    case .lineChanged(let change):
      if settings.take(change) || outputStates.take(change), let changed { later(changed) }
    case .comPortAgreed, .comPortRefused, .breakKey: break
    }
  }

  private func handle(_ message: ComPortMessage) {
    switch message {
    case .signature([]): return send(.signature(Self.name))
    case .signature(let text): metadata.update { $0.name = DeviceFacts.text(text) ?? $0.name }
    case .lineState(let bits): return noteErrors(LineStateBits(rawValue: bits))
    case .modemState(let bits): return noteInputs(bits)
    default: break
    }
    let isMeaningful = settings.take(message) || outputStates.take(message) || !message.isSetting
    let answered = requests.take(answeredBy: message)
    for request in answered {
      later { request.done(isMeaningful ? .success(message) : .failure(SystemError(request.message.name, EPROTO))) }
    }
    if requests.isEmpty { readAhead() }
  }

  private func noteErrors(_ bits: LineStateBits) {
    var counts = condition.counts ?? LineCounts()
    if bits.contains(.break) { counts.breaks &+= 1 }
    if bits.contains(.framing) { counts.framing &+= 1 }
    if bits.contains(.parity) { counts.parity &+= 1 }
    if bits.contains(.overrun) { counts.overruns &+= 1 }
    condition.counts = counts
    watching?.changed(to: condition)
  }

  private func noteInputs(_ bits: UInt8) {
    let inputs = ModemInputs(modemStatus: bits)
    let isChanged = condition.inputs.map { $0 != inputs } ?? false
    condition.changes &+= max(UInt32((bits & 0x0F).nonzeroBitCount), isChanged ? 1 : 0)
    condition.inputs = inputs
    watching?.changed(to: condition)
  }
}

/// Bits of the line status register of a UART, as RFC 2217 reports them.
private struct LineStateBits: OptionSet {
  let rawValue: UInt8
  static let overrun = LineStateBits(rawValue: 2)
  static let parity = LineStateBits(rawValue: 4)
  static let framing = LineStateBits(rawValue: 8)
  static let `break` = LineStateBits(rawValue: 16)
  static let reported: UInt8 = 2 | 4 | 8 | 16
}
