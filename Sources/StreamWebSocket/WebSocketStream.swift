// A byte stream of WebSocket messages over another stream, either end of RFC 6455. Binary messages are bytes; so are text messages,
// unless the sub-protocol keeps them for control (`baudway.v1`). Reading decodes in the very run it is given, writing sends
// from the run it is given; only what compression, a blocked frame or control needs has buffers, and they are bounded.
// What comes in stands in WebSocketStream+Input.swift, what goes out in WebSocketStream+Output.swift.

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
  public internal(set) var heardClose: WebSocketClose?
  /// What kind of message ended with the last read, where messages are marked.
  public internal(set) var endedMessage: WebSocketMessageKind?
  /// Says on the lane, within a read, that control texts have come. Take them later in the same turn, not in the call.
  public var controlTextsCame: (() -> Void)?
  /// Payload handed out by `read` so far, in bytes.
  public internal(set) var position: UInt64 = 0

  let below: any ByteStream
  let poller: Poller
  private(set) var isClosed = false

  // See WebSocketStream+Input.swift.
  var input: Input
  /// Why a write of a frame that was held failed: the connection is of no use any more, but for what has come.
  var brokenBy: (any Error)?
  // See WebSocketStream+Output.swift.
  var output = Output()

  // Ping.
  private var timer: Timers.Token?
  var heardSomething = false
  private var pongIsAwaited = false

  /// Takes over `below`, whose upgrade is done, and becomes its delegate. `early`: what was read from it past the head.
  public init(
    over below: any ByteStream, as role: WebSocketRole, _ settings: Settings, early: [UInt8] = [], on poller: Poller
  ) {
    self.below = below
    self.role = role
    self.settings = settings
    self.poller = poller
    input = Input(as: role, settings, early: early)
    below.delegate = self
    setTimer()
  }

  public var holdsBytes: Bool {
    input.holdsBytes || below.holdsBytes
  }
  public var holdsUnit: Bool { !output.isEmpty || below.holdsUnit }
  public func makeRoomForEnd() { below.makeRoomForEnd() }
  public var unacknowledged: Int { output.count + below.unacknowledged }
  public var unread: Int? { below.unread.map { output.count + $0 } }
  /// Until the other side's close frame has come. One that broke the rules is told so, and may take its time to hear it.
  public var hasClosingHandshake: Bool { heardClose == nil && !input.belowHasEnded && !isClosed }

  // MARK: - Events of what is below

  public func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .hasSpaceAvailable:
      guard let transfer = try? flush() else { return tellOfBreak() }
      if case .moved = transfer, !writerWaits.isEmpty { delegate?.stream(self, handle: .hasSpaceAvailable) }
    default: delegate?.stream(self, handle: event)
    }
  }

  /// A frame that was held can't leave. Who reads gets what came before that, and then the error; who waits to write meets it
  /// at once; anybody else when he does either.
  private func tellOfBreak() {
    if !readerWaits.isEmpty { delegate?.stream(self, handle: .hasBytesAvailable) }
    if !writerWaits.isEmpty && !isClosed { delegate?.stream(self, handle: .hasSpaceAvailable) }
  }

  // MARK: - Ping

  private func setTimer() {
    guard let interval = settings.pingInterval else { return }
    timer = poller.timers.after(interval) { [weak self] in self?.intervalIsOver() }
  }

  private func intervalIsOver() {
    guard !isClosed, input.end == nil, !output.closeIsSaid else { return }
    let isSilent = !heardSomething && !readerWaits.isEmpty && !holdsUnit
    heardSomething = false
    // Who is not read, or can't be written to, owes no answer.
    guard isSilent else {
      pongIsAwaited = false
      return setTimer()
    }
    guard !pongIsAwaited else {
      input.belowHasEnded = true
      output.silence()
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
  public func finishWriting() {
    guard !isClosed else { return }
    sayClose(closing)
    dropControlTexts()
  }

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
    input.forget()
    output = Output()
    dismissDelegate()
  }
}
