// A byte stream of telnet data over another stream, for either end: RFC 854 with BINARY, ECHO, SGA and COM-PORT (RFC
// 2217). Reading decodes in the caller's run; writing sends from it, and copies only where a byte must be doubled.
// Options are negotiated here; requests and notifications about a serial line are handed out. Input is in
// TelnetStream+Input.swift, output in TelnetStream+Output.swift.

import ByteStreams
import Glibc

package final class TelnetStream: LayeredStream, PollHandler {
  package struct Settings: Sendable {
    package var role: TelnetRole
    /// Silence of our own output after which IAC NOP is sent. Nil: never.
    package var keepalive: Duration?
    /// Whether this end stops the other side by FLOWCONTROL-SUSPEND when it does not read for a while.
    package var suspends = true

    package init(_ role: TelnetRole, keepalive: Duration? = .seconds(20)) {
      self.role = role
      self.keepalive = keepalive
    }
  }

  /// What the other side sends besides data.
  package enum Event: Equatable, Sendable {
    /// Both sides agree on COM-PORT.
    case comPortAgreed
    /// The other side does not have COM-PORT.
    case comPortRefused
    case comPort(ComPortMessage)
    /// See `send(reporting:)`.
    case lineChanged(ComPortMessage)
    /// IAC BREAK.
    case breakKey
  }

  package var delegate: (any ByteStreamDelegate)? {
    didSet { if isClosed && delegate != nil { delegate = nil } }
  }
  package var readerWaits: Readiness = [] {
    didSet { if readerWaits != oldValue && !isClosed { readerWaitsChanged() } }
  }
  package var writerWaits: Readiness = [] {
    didSet { if writerWaits != oldValue { waitsChanged() } }
  }

  /// How the input is read while nobody else reads it, to find answers and notifications among the data. The data is
  /// kept for the next read.
  package enum ReadAhead: Sendable {
    case off
    /// Up to `mostAhead` bytes of data.
    case kept
    /// On and on: of the data, the latest `mostAhead` bytes are kept.
    case latest
  }

  package let settings: Settings
  /// Gets each event while it is decoded. Without it, a read ends at an event, and goes on when `takeEvent` has taken
  /// it: so all bytes read before came before the event.
  package var observer: ((Event) -> Void)?
  package internal(set) var negotiation: TelnetNegotiation
  /// Called while the answer is decoded that settles BINARY (`isBinarySettled`).
  package var binarySettled: (() -> Void)?
  package var readAhead = ReadAhead.off {
    didSet { if readAhead != oldValue && !isClosed { readAheadChanged() } }
  }
  /// The line at the other side, for a client.
  package var serialLine: (any SerialLine)? {
    get { remoteLine ?? below.serialLine }
    set { remoteLine = newValue }
  }
  package var metadata: StreamMetadata? {
    get { remoteMetadata ?? below.metadata }
    set { remoteMetadata = newValue }
  }
  private var remoteLine: (any SerialLine)?
  private var remoteMetadata: StreamMetadata?

  /// Writing failed; reading goes on up to the end of what has arrived.
  package var isBroken: Bool { brokenBy != nil }

  package let below: any ByteStream
  package let largestUnit: Int
  let poller: Poller
  package private(set) var isClosed = false

  // See TelnetStream+Input.swift.
  var input: Input
  // See TelnetStream+Output.swift.
  var output = Output()
  /// Why own output could not be sent; the next read or write reports it.
  var brokenBy: (any Error)?

  private var keepaliveTimer: Timers.Token?
  // Pauses of the reader, for FLOWCONTROL-SUSPEND.
  private var pauses: UInt64 = 0
  private var pauseTimer: Timers.Token?
  private var hasSuspended = false
  /// A pause this long makes the other side stop. Shorter ones are usual, and TCP's window covers them.
  static let longestPause = Duration.milliseconds(100)

  /// Takes over `below` and becomes its delegate. `early`: bytes already read from it, which continue what `decoder`
  /// has begun. Call `begin()` next, or `goOn()` if the negotiation has begun before.
  package init(
    over below: any ByteStream, _ settings: Settings, _ negotiation: TelnetNegotiation, early: [UInt8] = [],
    _ decoder: TelnetDecoder = TelnetDecoder(), on poller: Poller
  ) {
    self.below = below
    largestUnit = below.largestUnit
    self.settings = settings
    self.negotiation = negotiation
    self.poller = poller
    input = Input(early, decoder)
    adoptBinary()
    below.delegate = self
    setKeepalive()
  }

  /// Asks the other side for all options that this end agrees to.
  package func begin() {
    negotiation.askForAll(&output.own)
    adoptBinary()
    sendOwn()
  }

  /// Instead of `begin()`: reports what was agreed upon before.
  package func goOn() { if negotiation.hasComPort { report(.comPortAgreed) } }

  /// No event reports the bytes that are in here, nor an event for `takeEvent`.
  package var hasBufferedInput: Bool {
    input.hasAhead || input.hasHidden || !input.events.isEmpty || below.hasBufferedInput
  }
  package var hasPendingOutput: Bool { !output.isEmpty || below.hasPendingOutput }
  package var undelivered: UndeliveredOutput { below.undelivered.adding(output.own.count) }

  // MARK: - Events of the stream below

  package func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    if event == .hasBytesAvailable && readerWaits.isEmpty && readAhead != .off { return readOnAhead() }
    if event == .endEncountered && input.hasAhead && !input.endIsRead {
      input.hasHungUp = true  // what was read ahead comes first, also for a delegate that closes at this
      return
    }
    guard event == .hasSpaceAvailable else { delegate?.stream(self, handle: event); return }
    guard let transfer = try? flush() else {
      if !readerWaits.isEmpty { delegate?.stream(self, handle: .hasBytesAvailable) }
      if !writerWaits.isEmpty && !isClosed { delegate?.stream(self, handle: .hasSpaceAvailable) }
      return
    }
    if case .moved = transfer, !writerWaits.isEmpty, !output.isSuspended {
      delegate?.stream(self, handle: .hasSpaceAvailable)
    }
  }

  // MARK: - Keepalive

  static let noOperation = [TelnetCommand.iac.rawValue, TelnetCommand.noOperation.rawValue]

  private func setKeepalive() {
    guard let interval = settings.keepalive else { return }
    keepaliveTimer = poller.timers.after(interval) { [weak self] in
      guard let self, !isClosed else { return }
      if !output.hasSent && output.isEmpty {
        output.own += Self.noOperation
        sendOwn()
      }
      output.hasSent = false
      setKeepalive()
    }
  }

  // MARK: - Suspend

  private func readerWaitsChanged() {
    updateReaderWaits()
    if !readerWaits.isEmpty && input.hasAhead { poller.again(self) }
    guard settings.suspends, negotiation.hasComPort else { return }
    guard readerWaits.isEmpty else {
      guard hasSuspended else { return }
      hasSuspended = false
      output.own += ComPortMessage.resume.bytes(from: settings.role)  // even if much waits: it must not be lost
      sendOwn()
      return
    }
    pauses &+= 1
    if pauseTimer == nil { watchPause() }
  }

  /// One timer for all pauses: under load they are short and come often.
  private func watchPause() {
    pauseTimer = poller.timers.after(Self.longestPause) { [weak self, pauses] in
      guard let self, !isClosed else { return }
      pauseTimer = nil
      guard readerWaits.isEmpty, !hasSuspended, !input.isPaused else { return }
      guard pauses == self.pauses else { return watchPause() }
      hasSuspended = send(.suspend)
    }
  }

  /// COM-PORT is off: nobody will end a pause by it.
  func forgetPauses() {
    hasSuspended = false
    setSuspended(false)
  }

  // MARK: - The end

  /// Answers and keepalives end as well: after our end they would break the connection, which can still be read. So
  /// events are dropped: nobody can answer them, and reading must not wait for somebody to take them.
  package func finishWriting() {
    output.isFinished = true
    below.finishWriting()
    input.events = []
    readOn()
  }

  /// A server of serial ports takes the end of our output for our end, and drops what it still had for us.
  package var closeBehavior: CloseBehavior {
    var behavior = below.closeBehavior
    guard remoteLine != nil else { return behavior }
    behavior.hasClosingHandshake = behavior.canHalfClose && !input.hasEnded && !isClosed
    behavior.canHalfClose = false
    return behavior
  }

  package func close() {
    guard !isClosed else { return }
    _ = try? flush()
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
    poller.timers.cancel(keepaliveTimer)
    poller.timers.cancel(pauseTimer)
    observer = nil
    binarySettled = nil
    readAhead = .off
    input.forget()
    output = Output()
    dismissDelegate()
  }
}
