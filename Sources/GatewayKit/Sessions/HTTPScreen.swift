// Refuses web pages: a browser can be made to send an HTTP request to a port behind which a console executes each line. Stands in
// front of a client's stream until the client's first bytes show whether they are a request, and then goes. What it keeps
// meanwhile is bounded in size and time.

import ByteStreams
import Glibc
import StreamWebSocket

/// Why such a client is refused.
struct HTTPRequestFault: CountedRefusal, Equatable, CustomStringConvertible {
  var counter: String? { "http-request" }
  var description: String { "began with an HTTP request; 'clients.refuse-http: no' would forward it" }
}

final class HTTPScreen: ByteStream, ByteStreamDelegate {
  var delegate: (any ByteStreamDelegate)? {
    didSet { if stream.delegate == nil && delegate != nil { delegate = nil } }  // it is closed
  }
  var readerWaits: Readiness {
    get { stream.readerWaits }
    set { stream.readerWaits = newValue }
  }
  var writerWaits: Readiness {
    get { stream.writerWaits }
    set { stream.writerWaits = newValue }
  }

  private enum State {
    /// Nothing has come.
    case fresh
    /// The bytes so far may become a request.
    case holds
    /// They are none; what was kept is handed out.
    case forwards
    case refused
  }
  private var state = State.fresh
  private var stream: any ByteStream
  private let poller: Poller
  private var line = HTTPRequestLine()
  private var held: [UInt8] = []
  private var handedOut = 0
  /// What ended the client's input behind the bytes that are held.
  private var end: Result<Transfer, any Error>?
  private var endIsRead = false
  /// An event said that the client is gone, for both directions. The delegate hears of it once it has read the end.
  private var isGone = false
  private var timer: Timers.Token?

  /// A line that does not end within this is not a browser's.
  static let longest = Duration.seconds(1)

  init(_ stream: any ByteStream, on poller: Poller) {
    self.stream = stream
    self.poller = poller
    stream.delegate = self
  }

  /// The client's bytes wait for a decision.
  var isUndecided: Bool { state == .holds }
  /// Bytes that are kept. More than none only while it is undecided, or until they have been read.
  var kept: Int { held.count - handedOut }

  // MARK: - Reading

  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    switch state {
    case .fresh: try readFirst(into: run)
    case .holds: try readOn(into: run)
    case .forwards: try handOut(into: run)
    case .refused: try stream.read(into: run)
    }
  }

  private func readFirst(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    let transfer = try stream.read(into: run).checked(of: run.count, at: "screen.readFirst")
    guard case .moved(let count) = transfer, count > 0 else { return transfer }
    let first = UnsafeRawBufferPointer(rebasing: run[..<count])
    guard HTTPRequestLine.mayBegin(with: first) else {
      leave()
      return transfer
    }
    switch line.judge(first) {
    case .isNone:
      leave()
      return transfer
    case .isRequest:
      held = Array(first)
      throw refuse()
    case .undecided:
      state = .holds
      held = Array(first)
      timer = poller.timers.after(Self.longest) { [weak self] in self?.letThrough() }
      return try readOn(into: run)
    }
  }

  private func readOn(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    do {
      while true {
        switch try readMore() {
        case .moved: break
        case .blocked(let wish): return .blocked(until: wish)
        case .ended:
          end = .success(.ended)
          return try forward(into: run)
        }
        switch held.withUnsafeBytes({ line.judge($0) }) {
        case .undecided: break
        case .isNone: return try forward(into: run)
        case .isRequest: throw refuse()
        }
      }
    } catch let fault as HTTPRequestFault {
      throw fault
    } catch {
      end = .failure(error)
      return try forward(into: run)
    }
  }

  private func readMore() throws -> Transfer {
    try withUnsafeTemporaryAllocation(byteCount: 4096, alignment: 1) { scratch in
      let transfer = try stream.read(into: scratch).checked(of: scratch.count, at: "screen.readMore")
      if case .moved(let count) = transfer { held += scratch[..<count] }
      return transfer
    }
  }

  private func forward(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    decide()
    if end != nil { tellEndIfUnread() }
    return try handOut(into: run)
  }

  private func handOut(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    guard kept > 0 else {
      guard let end else { return try stream.read(into: run) }
      endIsRead = true
      if isGone { tellLater(.endEncountered) }
      isGone = false
      return try end.get()
    }
    let count = min(kept, run.count)
    held.withUnsafeBytes { run.copyMemory(from: UnsafeRawBufferPointer(rebasing: $0[handedOut..<handedOut + count])) }
    handedOut += count
    // An end that was met stays with the screen: the stream may tell of it only once.
    if kept == 0 && end == nil { leave() }
    return .moved(count)
  }

  var holdsBytes: Bool { state == .forwards && (kept > 0 || end != nil) || stream.holdsBytes }

  // MARK: - The decision

  /// What is held is forwarded: its time is over, or the client's session ends and this is what it sent.
  func letThrough() {
    guard case .holds = state else { return }
    decide()
    if !readerWaits.isEmpty { delegate?.stream(self, handle: .hasBytesAvailable) }
  }

  /// The route screens no more.
  func giveUp() {
    if case .fresh = state { leave() } else { letThrough() }
  }

  /// The session is over, and what is held is in its account. The screen goes now, unless it keeps the end of the input: whoever
  /// closes the stream knows it by its identity, so it may not change later.
  func forget() {
    guard state != .refused else { return }
    decide()
    held = []
    handedOut = 0
    if end == nil { leave() }
  }

  private func decide() {
    state = .forwards
    poller.timers.cancel(timer)
    timer = nil
  }

  private func leave() {
    state = .forwards
    held = []
    handedOut = 0
    guard let delegate else { return }
    self.delegate = nil
    stream.delegate = delegate
    // Not by a closure, which would hold the session weakly: what is held so has a slower count of references, at each byte.
    (delegate as? Session)?.exchangeClient(for: stream)
  }

  /// Answers, and says why nothing more is read for the route.
  private func refuse() -> HTTPRequestFault {
    state = .refused
    poller.timers.cancel(timer)
    timer = nil
    var answer = HTTPRefusal(
      .badRequest,
      "This port is no web server: what is sent to it goes to a device. Whoever runs this gateway can let HTTP through: "
        + "clients.refuse-http.")
    answer.answersHead = held.starts(with: "HEAD ".utf8)
    stream = PrefacedStream.send(answer.bytes, through: stream)
    stream.delegate = self
    return HTTPRequestFault()
  }

  // MARK: - A stream

  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer { try stream.write(run) }
  func write(together runs: UnsafeMutableBufferPointer<iovec>) throws -> Transfer { try stream.write(together: runs) }
  var holdsUnit: Bool { stream.holdsUnit }
  var unacknowledged: Int { stream.unacknowledged }
  var unread: Int? { stream.unread }
  var largestUnit: Int { stream.largestUnit }
  var canHalfClose: Bool { stream.canHalfClose }
  var hasClosingHandshake: Bool { stream.hasClosingHandshake }
  var saysFarewell: Bool { stream.saysFarewell }
  func finishWriting() { stream.finishWriting() }
  func makeRoomForEnd() { stream.makeRoomForEnd() }

  func close() {
    poller.timers.cancel(timer)
    stream.close()
    dismissDelegate()
  }

  func abort() {
    poller.timers.cancel(timer)
    stream.abort()
    dismissDelegate()
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .errorOccurred(let error) where kept > 0 && state != .refused: endIsTold(.failure(error))
    case .endEncountered where kept > 0 && state != .refused:
      isGone = true
      endIsTold(.success(.ended))
    default: delegate?.stream(self, handle: event)
    }
  }

  /// What came before the end is read first.
  private func endIsTold(_ end: Result<Transfer, any Error>) {
    self.end = self.end ?? end  // a failure that was read says more
    decide()
    delegate?.stream(self, handle: .hasBytesAvailable)
    tellEndIfUnread()
  }

  /// The reader may have no room before it comes to the end, and the stream tells of that only once.
  private func tellEndIfUnread() {
    tellLater(.lastByteIsIn) { !$0.endIsRead }
  }

  /// In a turn of its own: the delegate is reading.
  private func tellLater(_ event: ByteStreamEvent, if isDue: @escaping (HTTPScreen) -> Bool = { _ in true }) {
    poller.timers.after(.zero) { [weak self] in
      if let self, isDue(self) { delegate?.stream(self, handle: event) }
    }
  }
}
