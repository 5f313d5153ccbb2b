// A byte stream of WebSocket messages over another stream, either end of RFC 6455. Binary messages are bytes; so are text messages,
// unless the sub-protocol keeps them for control (`baudway.v1`). Reading decodes in the very run it is given, writing sends
// from the run it is given; only what compression, a blocked frame or control needs has buffers, and they are bounded.
// What goes out stands in WebSocketStream+Output.swift.

import ByteStreams
import Glibc

public final class WebSocketStream: ByteStream, ByteStreamDelegate {
  public struct Settings: Sendable {
    public var terms: WebSocketTerms
    /// The longest message of the other side, in bytes as they are after expansion; a longer one is answered 1009.
    public var longestMessage: Int
    /// The longest control text of `baudway.v1`, in bytes.
    public var longestControlText = 64 << 10
    /// So many control texts wait to be taken, then reading waits. With one, what was read before a text stands before it, and what
    /// is read once it is taken stands behind it.
    public var mostControlTexts = 64
    /// Nobody will take them.
    public var dropsControlTexts = false
    /// Silence after which the other side is asked whether it is there, and again until it counts as gone. Nil: never.
    public var pingInterval: Duration?
    /// A read ends at the end of a message: `endedMessage`. For programs to whom messages matter; a gateway's bytes have none.
    public var marksMessages = false

    public init(
      terms: WebSocketTerms = WebSocketTerms(), longestMessage: Int = 16 << 20, pingInterval: Duration? = .seconds(20)
    ) {
      self.terms = terms
      self.longestMessage = longestMessage
      self.pingInterval = pingInterval
    }
  }

  /// A text message of the other side where those are control, whole and valid UTF-8.
  public struct ControlText: Equatable, Sendable {
    public let bytes: [UInt8]
    /// How many bytes of payload `read` hands out before it: its place among them.
    public let position: UInt64
  }

  public var delegate: (any ByteStreamDelegate)? {
    didSet { if isClosed && delegate != nil { delegate = nil } }
  }
  public var readerWaits: Readiness = [] {
    didSet { if readerWaits != oldValue && !isClosed { below.readerWaits = readerWaits } }
  }
  public var writerWaits: Readiness = [] {
    didSet { if writerWaits != oldValue { waitsChanged() } }
  }

  public let role: WebSocketRole
  public let settings: Settings
  /// What a close frame of this side will say. Set it before `finishWriting()` or `close()`.
  public var closing = WebSocketClose.normal
  /// What the other side's close frame said; nil as long as there was none.
  public private(set) var heardClose: WebSocketClose?
  /// What kind of message ended with the last read, where messages are marked.
  public private(set) var endedMessage: WebSocketMessageKind?
  /// Says on the lane, within a read, that control texts have come. Take them later in the same turn, not in the call.
  public var controlTextsCame: (() -> Void)?
  /// Payload handed out by `read` so far, in bytes.
  public private(set) var position: UInt64 = 0

  let below: any ByteStream
  let poller: Poller
  private(set) var isClosed = false

  // In.
  private var decoder: FrameDecoder
  // Read from below, or before this stream was made, and not yet decoded: from `hiddenStart` on.
  private var hidden: [UInt8]
  private var hiddenStart = 0
  // How it ends, once what came before has been handed out.
  private var end: Result<Void, any Error>?
  private var endIsTold = false
  // Nothing comes any more: what is below ended, or broke, or does not answer.
  private var belowHasEnded = false
  private var texts: [ControlText] = []

  // Out; see WebSocketStream+Output.swift.
  var output = Output()

  // Ping.
  private var timer: Timers.Token?
  private var heardSomething = false
  private var pongIsAwaited = false

  /// Takes over `below`, whose upgrade is done, and becomes its delegate. `early`: what was read from it past the head.
  public init(
    over below: any ByteStream, as role: WebSocketRole, _ settings: Settings, early: [UInt8] = [], on poller: Poller
  ) {
    self.below = below
    self.role = role
    self.settings = settings
    self.poller = poller
    hidden = early
    decoder = FrameDecoder(
      .init(
        role: role, longestMessage: settings.longestMessage,
        longestControlText: settings.terms.subprotocol == .baudwayV1 ? settings.longestControlText : nil,
        marksMessages: settings.marksMessages, deflate: settings.terms.deflate))
    below.delegate = self
    setTimer()
  }

  public var holdsBytes: Bool {
    hidden.count > hiddenStart || decoder.holdsOutput || (end != nil && !endIsTold) || below.holdsBytes
  }
  public var holdsUnit: Bool { !output.isEmpty || below.holdsUnit }
  public var unacknowledged: Int { output.count + below.unacknowledged }
  public var unread: Int? { below.unread.map { output.count + $0 } }
  /// Until the other side's close frame has come. One that broke the rules is told so, and may take its time to hear it.
  public var hasClosingHandshake: Bool { heardClose == nil && !belowHasEnded && !isClosed }

  // MARK: - Reading

  public func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    guard !isClosed else { return .ended }
    endedMessage = nil
    if let end { return try tell(end, run) }
    guard texts.count < settings.mostControlTexts else { return .blocked(until: []) }
    if hidden.count > hiddenStart || decoder.holdsOutput { return try readHidden(into: run) }
    if settings.terms.deflate != nil || settings.marksMessages {
      // What is inside can be more than what came, so they can't share a place.
      var transfer = Transfer.moved(0)
      hidden = try [UInt8](unsafeUninitializedCapacity: 16 << 10) { bytes, count in
        transfer = try readBelow(into: UnsafeMutableRawBufferPointer(bytes))
        if case .moved(let came) = transfer { count = came }
      }
      hiddenStart = 0
      guard case .moved = transfer else { return try belowDidNotRead(transfer) }
      guard !hidden.isEmpty else { return .moved(0) }
      return try readHidden(into: run)
    }
    let transfer = try readBelow(into: run)
    guard case .moved(let count) = transfer else { return try belowDidNotRead(transfer) }
    let came = UnsafeMutableRawBufferPointer(rebasing: run[..<count])
    var progress = FrameDecoder.Progress()
    decode(came, into: came, &progress)
    if progress.used < count && end == nil { hidden = Array(came[progress.used...]) }
    return try handOut(progress)
  }

  private func readBelow(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    do {
      let transfer = try below.read(into: run)
      if case .moved = transfer { heardSomething = true }
      return transfer
    } catch {
      belowHasEnded = true
      throw error
    }
  }

  /// How it ends. What comes behind a fault is dropped when somebody goes on reading: unread it would turn our close frame
  /// into a reset.
  private func tell(_ end: Result<Void, any Error>, _ run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    if endIsTold, !belowHasEnded, case .failure = end {
      let transfer = try readBelow(into: run)
      belowHasEnded = transfer == .ended
      if case .moved = transfer { return .moved(0) }
      return transfer
    }
    endIsTold = true
    try end.get()
    // Nobody takes anything any more, and who only waits to write would not learn it.
    poller.timers.after(.zero) { [weak self] in
      if let self, !self.isClosed { self.delegate?.stream(self, handle: .endEncountered) }
    }
    return .ended
  }

  private func readHidden(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    var progress = FrameDecoder.Progress()
    let start = hiddenStart
    var bytes = hidden
    hidden = []  // so that it is not copied
    bytes.withUnsafeMutableBytes { decode(UnsafeMutableRawBufferPointer(rebasing: $0[start...]), into: run, &progress) }
    hidden = bytes
    hiddenStart += progress.used
    if hiddenStart >= hidden.count || end != nil { forgetHidden() }
    return try handOut(progress)
  }

  private func forgetHidden() {
    hidden = []
    hiddenStart = 0
  }

  private func handOut(_ progress: FrameDecoder.Progress) throws -> Transfer {
    position += UInt64(progress.made)
    // `holdsBytes` makes a reader ask again at once for the end behind these.
    return .moved(progress.made)
  }

  // Of more in one piece the last alone is answered (RFC 6455 section 5.5.3): a call each would keep the lane.
  private static let mostPongs = 16

  /// Goes through what came, and answers what is to be answered, up to an end of some kind.
  private func decode(
    _ source: UnsafeMutableRawBufferPointer, into run: UnsafeMutableRawBufferPointer,
    _ progress: inout FrameDecoder.Progress
  ) {
    var pings = 0
    var lastPing: [UInt8]?
    defer { if let lastPing { answerPing(lastPing) } }
    do {
      while true {
        switch try decoder.decode(source, into: run, &progress) {
        case .sourceIsUsed, .placeIsFull: return
        case .messageEnd(let kind):
          endedMessage = kind
          return
        case .control(.ping):
          pings += 1
          if pings <= Self.mostPongs { answerPing(decoder.control) } else { lastPing = decoder.control }
        case .control(.close):
          if let ping = lastPing.take() { answerPing(ping) }
          try heardClose(decoder.control)
          return
        case .control: break  // a pong, which any byte is as good as
        case .text where settings.dropsControlTexts: break
        case .text:
          texts.append(ControlText(bytes: decoder.text, position: position + UInt64(progress.made)))
          controlTextsCame?()
          if texts.count >= settings.mostControlTexts { return }
        }
      }
    } catch {
      fail(error)
    }
  }

  private func belowDidNotRead(_ transfer: Transfer) throws -> Transfer {
    guard transfer == .ended else { return transfer }
    belowHasEnded = true
    // Without a close frame nobody has said that this is all; only where it is plainly not it is an error.
    let isWhole = decoder.isBetweenMessages
    end =
      isWhole ? .success(()) : .failure(WebSocketFault(.truncated, "the connection ended within a message"))
    endIsTold = true
    try end?.get()
    return .ended
  }

  /// The other side broke the rules: it is told, and nothing of it is read any more.
  private func fail(_ error: any Error) {
    end = .failure(error)
    output.endsBelow = role == .server  // RFC 6455 section 7.1.7
    if let fault = error as? WebSocketFault {
      sayClose(WebSocketClose(fault.code.rawValue, fault.words))
    } else {
      sayClose(WebSocketClose(1011))
    }
  }

  private func heardClose(_ payload: [UInt8]) throws(WebSocketFault) {
    var close = WebSocketClose(nil)
    if !payload.isEmpty {
      guard payload.count >= 2 else { throw WebSocketFault(.protocolError, "a close frame has half a code") }
      let code = UInt16(payload[0]) << 8 | UInt16(payload[1])
      guard WebSocketClose.isAllowed(code) else {
        throw WebSocketFault(.protocolError, "a close frame has the code \(code)")
      }
      guard let reason = String(validating: payload[2...], as: UTF8.self) else {
        throw WebSocketFault(.invalidPayload, "the reason of a close frame is not UTF-8")
      }
      close = WebSocketClose(code, reason)
    }
    heardClose = close
    end = .success(())
    // RFC 6455 section 5.5.1: the answer usually says the same code.
    sayClose(WebSocketClose(close.code))
  }

  // MARK: - Control texts

  /// The oldest control text that was not taken yet. Reading goes on by itself when it had waited for that.
  public func takeControlText() -> ControlText? {
    guard !texts.isEmpty else { return nil }
    if texts.count == settings.mostControlTexts && !isClosed { poller.again(self) }
    return texts.removeFirst()
  }

  // MARK: - Events of what is below

  public func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .hasSpaceAvailable:
      do {
        guard case .moved = try flush() else { return }
        if !writerWaits.isEmpty { delegate?.stream(self, handle: .hasSpaceAvailable) }
      } catch {
        delegate?.stream(self, handle: .errorOccurred(error as? SystemError ?? SystemError("write", EIO)))
      }
    default: delegate?.stream(self, handle: event)
    }
  }

  // MARK: - Ping

  private func setTimer() {
    guard let interval = settings.pingInterval else { return }
    timer = poller.timers.after(interval) { [weak self] in self?.intervalIsOver() }
  }

  private func intervalIsOver() {
    guard !isClosed, end == nil, !output.closeIsSaid else { return }
    let isSilent = !heardSomething && !readerWaits.isEmpty && !holdsUnit
    heardSomething = false
    // Who is not read, or can't be written to, owes no answer.
    guard isSilent else {
      pongIsAwaited = false
      return setTimer()
    }
    guard !pongIsAwaited else {
      belowHasEnded = true
      delegate?.stream(self, handle: .errorOccurred(SystemError("ping", ETIMEDOUT)))
      return
    }
    pongIsAwaited = true
    setTimer()
    sendPing()
  }

  // MARK: - The end

  /// Says the close frame. The other side can't answer with anything but its own: what else it says then is read and is of no
  /// use to anybody.
  public func finishWriting() { if !isClosed { sayClose(closing) } }

  public func close() {
    guard !isClosed else { return }
    sayClose(closing)
    letGo()
    below.close()
  }

  public func abort() {
    guard !isClosed else { return }
    letGo()
    below.abort()
  }

  private func letGo() {
    isClosed = true
    poller.timers.cancel(timer)
    controlTextsCame = nil
    texts = []
    forgetHidden()
    output = Output()
    dismissDelegate()
  }
}
