// Refuses web pages: a page can make a browser send an HTTP request to this port, and a console behind the port would
// execute each line. The guard is in front of a client's stream until the first bytes show whether they are a request;
// then it removes itself. The bytes it keeps are bounded in size and time.

import ByteStreams
import Glibc
import StreamWebSocket

/// Why such a client is refused.
struct HTTPRequestFault: CountedRefusal, Equatable, CustomStringConvertible {
  var counter: String? { "http-request" }
  var description: String { "began with an HTTP request; 'clients.refuse-http: no' would forward it" }
}

final class HTTPRequestGuard: LayeredStream {
  var delegate: (any ByteStreamDelegate)? {
    didSet { if below.delegate == nil && delegate != nil { delegate = nil } }  // it is closed
  }

  private enum State {
    /// No byte has arrived.
    case fresh
    /// The bytes so far may become a request.
    case holds
    /// The bytes are no request; the kept ones are returned to the reader.
    case forwards
    case refused
  }
  private var state = State.fresh
  private(set) var below: any ByteStream
  private let poller: Poller
  private var line = HTTPRequestLine()
  private var held: [UInt8] = []
  private var handedOut = 0
  /// How the client's input ended after the kept bytes.
  private var end: Result<Transfer, any Error>?
  private var endIsRead = false
  /// An event reported that both directions have ended. The delegate gets it once it has read the end.
  private var isGone = false
  private var timer: Timers.Token?

  /// A browser completes its request line within this time.
  static let longest = Duration.seconds(1)

  init(_ stream: any ByteStream, on poller: Poller) {
    below = stream
    self.poller = poller
    stream.delegate = self
  }

  /// The client's bytes wait for a decision.
  var isUndecided: Bool { state == .holds }
  /// Kept bytes; 0 unless the guard is undecided or its reader has not read them yet.
  var kept: Int { held.count - handedOut }

  // MARK: - Reading

  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    switch state {
    case .fresh: try readFirst(into: run)
    case .holds: try readOn(into: run)
    case .forwards: try handOut(into: run)
    case .refused: try below.read(into: run)
    }
  }

  private func readFirst(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    let transfer = try below.read(into: run).checked(of: run.count, at: "requestGuard.readFirst")
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
      timer = poller.timers.after(Self.longest) { [weak self] in self?.forwardHeld() }
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
      let transfer = try below.read(into: scratch).checked(of: scratch.count, at: "requestGuard.readMore")
      if case .moved(let count) = transfer { held += scratch[..<count] }
      return transfer
    }
  }

  private func forward(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    decide()
    if end != nil { reportEndIfUnread() }
    return try handOut(into: run)
  }

  private func handOut(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    guard kept > 0 else {
      guard let end else { return try below.read(into: run) }
      endIsRead = true
      if isGone { reportLater(.endEncountered) }
      isGone = false
      return try end.get()
    }
    let count = min(kept, run.count)
    held.withUnsafeBytes { run.copyMemory(from: UnsafeRawBufferPointer(rebasing: $0[handedOut..<handedOut + count])) }
    handedOut += count
    // If the guard has read the end, it stays: the stream may report the end only once.
    if kept == 0 && end == nil { leave() }
    return .moved(count)
  }

  var hasBufferedInput: Bool { state == .forwards && (kept > 0 || end != nil) || below.hasBufferedInput }

  // MARK: - The decision

  /// Forwards the kept bytes: their time is over, or the client's session ends and they count as its input.
  func forwardHeld() {
    guard case .holds = state else { return }
    decide()
    if !readerWaits.isEmpty { delegate?.stream(self, handle: .hasBytesAvailable) }
  }

  /// The route no longer refuses HTTP.
  func giveUp() {
    if case .fresh = state { leave() } else { forwardHeld() }
  }

  /// The session is over, and the kept bytes are in its count. The guard removes itself now, unless it keeps the end of
  /// the input. The code that closes the stream recognises it by its identity, so the object must not be exchanged
  /// later.
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
    below.delegate = delegate
    // No closure: a closure would hold the session weakly. An object that was once held weakly counts references more
    // slowly, which costs time at each byte.
    (delegate as? Session)?.exchangeClient(for: below)
  }

  /// Answers the request. Returns the error that ends reading for the route.
  private func refuse() -> HTTPRequestFault {
    state = .refused
    poller.timers.cancel(timer)
    timer = nil
    var answer = HTTPRefusal(
      .badRequest,
      "This port is not a web server: it forwards to a device. To forward HTTP as well, set 'clients.refuse-http: no' in "
        + "the gateway's configuration.")
    answer.answersHead = held.starts(with: "HEAD ".utf8)
    below = PrefacedStream.send(answer.bytes, through: below)
    below.delegate = self
    return HTTPRequestFault()
  }

  // MARK: - A stream

  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer { try below.write(run) }
  func write(together runs: UnsafeMutableBufferPointer<iovec>) throws -> Transfer { try below.write(together: runs) }

  func close() {
    poller.timers.cancel(timer)
    below.close()
    dismissDelegate()
  }

  func abort() {
    poller.timers.cancel(timer)
    below.abort()
    dismissDelegate()
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .errorOccurred(let error) where kept > 0 && state != .refused: endIsReported(.failure(error))
    case .endEncountered where kept > 0 && state != .refused:
      isGone = true
      endIsReported(.success(.ended))
    default: delegate?.stream(self, handle: event)
    }
  }

  /// Bytes that came before the end are read first.
  private func endIsReported(_ end: Result<Transfer, any Error>) {
    self.end = self.end ?? end  // a failure that was read has more detail
    decide()
    delegate?.stream(self, handle: .hasBytesAvailable)
    reportEndIfUnread()
  }

  /// The reader may have no room before it reaches the end, and the stream reports the end only once.
  private func reportEndIfUnread() {
    reportLater(.inputEnded) { !$0.endIsRead }
  }

  /// Reports in a separate turn: the delegate may be in the middle of a read.
  private func reportLater(_ event: ByteStreamEvent, if isDue: @escaping (HTTPRequestGuard) -> Bool = { _ in true }) {
    poller.timers.after(.zero) { [weak self] in
      if let self, isDue(self) { delegate?.stream(self, handle: event) }
    }
  }
}
