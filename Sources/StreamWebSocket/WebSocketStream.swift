// A byte stream of WebSocket messages over another stream, for either end of RFC 6455. Binary messages are bytes. So
// are text messages, unless the sub-protocol uses them for control (`baudway.v1`). Reading decodes in the caller's run,
// writing sends from it. Only compression, a blocked frame and control need buffers, which are bounded. Input is in
// WebSocketStream+Input.swift, output in WebSocketStream+Output.swift.

import ByteStreams
import Glibc

package final class WebSocketStream: LayeredStream {
  package struct Settings: Sendable {
    package var terms: WebSocketTerms
    /// The longest message of the other side, in bytes after expansion; a longer one is answered with 1009.
    package var longestMessage: Int
    /// The longest control text of `baudway.v1`, in bytes.
    package var longestControlText = 64 << 10
    /// Reading pauses while this many control texts wait to be taken. With 1, each text keeps its position: bytes read
    /// before the text was taken came before it, later bytes came after it.
    package var mostControlTexts = 64
    /// Control texts are dropped, because nothing takes them.
    package var dropsControlTexts = false
    /// Silence after which the other side gets a ping; after another such interval it counts as gone. Nil: never.
    package var pingInterval: Duration?
    /// A read ends at the end of a message: `endedMessage`. For programs to which messages matter; the gateway only
    /// handles bytes.
    package var marksMessages = false
    /// A server sends its bytes as text messages, with U+FFFD in place of what is no UTF-8.
    package var sendsText = false

    package init(
      terms: WebSocketTerms = WebSocketTerms(), longestMessage: Int = 16 << 20, pingInterval: Duration? = .seconds(20)
    ) {
      self.terms = terms
      self.longestMessage = longestMessage
      self.pingInterval = pingInterval
    }
  }

  /// A text message of the other side, where these are control; complete, and valid UTF-8.
  package struct ControlText: Equatable, Sendable {
    package let bytes: [UInt8]
    /// Bytes of payload that `read` hands out before it: its position among them.
    package let position: UInt64
  }

  package var delegate: (any ByteStreamDelegate)? {
    didSet { if isClosed && delegate != nil { delegate = nil } }
  }
  package var readerWaits: Readiness = [] {
    didSet { if readerWaits != oldValue && !isClosed { below.readerWaits = readerWaits } }
  }
  package var writerWaits: Readiness = [] {
    didSet { if writerWaits != oldValue { waitsChanged() } }
  }

  package let role: WebSocketRole
  package let settings: Settings
  /// The close frame that this side will send. Set it before `finishWriting()` or `close()`.
  package var closing = WebSocketClose.normal
  /// The other side's close frame; nil until it arrives.
  package internal(set) var receivedClose: WebSocketClose?
  /// The kind of the message that ended with the last read, if messages are marked.
  package internal(set) var endedMessage: WebSocketMessageKind?
  /// Payload handed out by `read` so far, in bytes.
  package internal(set) var position: UInt64 = 0

  package let below: any ByteStream
  package let largestUnit: Int
  let poller: Poller
  private(set) var isClosed = false

  // See WebSocketStream+Input.swift.
  var input: Input
  /// Why writing a held frame failed: the connection is unusable, except for input that has arrived.
  var brokenBy: (any Error)?
  // See WebSocketStream+Output.swift.
  var output = Output()

  // Ping.
  private var timer: Timers.Token?
  var heardSomething = false
  private var pongIsAwaited = false

  /// Takes over `below`, whose upgrade is finished, and becomes its delegate. `early`: bytes read from it after the
  /// head.
  package init(
    over below: any ByteStream, as role: WebSocketRole, _ settings: Settings, early: [UInt8] = [], on poller: Poller
  ) {
    self.below = below
    largestUnit = below.largestUnit
    self.role = role
    self.settings = settings
    self.poller = poller
    input = Input(as: role, settings, early: early)
    below.delegate = self
    setTimer()
  }

  package var hasBufferedInput: Bool {
    input.hasBufferedInput || below.hasBufferedInput
  }
  package var hasPendingOutput: Bool { !output.isEmpty || below.hasPendingOutput }
  package var undelivered: UndeliveredOutput { below.undelivered.adding(output.count) }
  /// The handshake lasts until the other side's close frame arrives. After a fault the other side has time to read
  /// ours. A close frame ends both directions, so there is no half-close.
  package var closeBehavior: CloseBehavior {
    CloseBehavior(hasClosingHandshake: receivedClose == nil && !input.belowHasEnded && !isClosed)
  }

  // MARK: - Events of the stream below

  package func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .hasSpaceAvailable:
      guard let transfer = try? flush() else { return reportFailure() }
      if case .moved = transfer, !writerWaits.isEmpty { delegate?.stream(self, handle: .hasSpaceAvailable) }
    default: delegate?.stream(self, handle: event)
    }
  }

  /// A held frame can't be sent. A waiting reader gets the earlier input, and then the error. A waiting writer gets the
  /// error at once. Otherwise the next read or write reports it.
  private func reportFailure() {
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
    let isSilent = !heardSomething && !readerWaits.isEmpty && !hasPendingOutput
    heardSomething = false
    // While we do not read, or can't write, the other side owes no answer.
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

  /// Sends the close frame. The other side can only answer with its own; anything else it still sends is read, but has
  /// no use.
  package func finishWriting() {
    guard !isClosed else { return }
    queueClose(closing)
    dropControlTexts()
  }

  package func close() {
    guard !isClosed else { return }
    queueClose(closing)
    letGo()
    below.close()
  }

  package func abort() {
    guard !isClosed else { return }
    letGo()
    below.abort()
  }

  private func letGo() {
    isClosed = true
    poller.timers.cancel(timer)
    input.forget()
    output = Output()
    dismissDelegate()
  }
}
