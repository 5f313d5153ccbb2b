// Input: data is decoded in the caller's run if possible; options are answered, and events are handed out.

import ByteStreams

extension TelnetStream {
  struct Input {
    var decoder: TelnetDecoder
    // Bytes from the stream below that are not decoded yet, from `start` on.
    private(set) var hidden: [UInt8]
    private(set) var start = 0
    var events: [Event] = []
    /// A read waits until an event is taken, or until answers are sent.
    var isPaused = false
    var fault: TelnetFault?
    /// The stream below has ended.
    var hasEnded = false

    // See `ReadAhead`: data that was read for the next read, how many bytes of it were dropped, and the end after it.
    var ahead: [UInt8] = []
    private var aheadStart = 0
    var lostAhead: UInt64 = 0
    var aheadEnd: Result<Void, any Error>?
    /// What reading ahead waits for.
    var aheadWish = Readiness.readable
    /// A read has returned the end. With data read ahead, a hang-up is reported only after that.
    var endIsRead = false
    var hasHungUp = false

    init(_ early: [UInt8], _ decoder: TelnetDecoder) {
      hidden = early
      self.decoder = decoder
    }

    var hasHidden: Bool { hidden.count > start }
    var hasAhead: Bool { !ahead.isEmpty || aheadEnd != nil }
    var aheadCount: Int { ahead.count - aheadStart }

    mutating func hide(_ bytes: UnsafeRawBufferPointer) {
      hidden = Array(bytes)
      start = 0
    }

    mutating func use(_ count: Int) {
      start += count
      if start >= hidden.count { forgetHidden() }
    }

    mutating func takeAhead(into run: UnsafeMutableRawBufferPointer) -> Int {
      let count = min(run.count, aheadCount)
      run.copyBytes(from: ahead[aheadStart..<aheadStart + count])
      dropAhead(count)
      return count
    }

    mutating func dropAhead(_ count: Int) {
      aheadStart += count
      if aheadStart >= ahead.count {
        ahead = []
        aheadStart = 0
      } else if aheadStart > TelnetStream.mostAhead {
        ahead.removeFirst(aheadStart)
        aheadStart = 0
      }
    }

    private mutating func forgetHidden() {
      hidden = []
      start = 0
    }

    mutating func forget() {
      events = []
      dropAhead(aheadCount)
      forgetHidden()
    }
  }

  /// A client that sends requests without reading the answers is not read while this many bytes of answers wait.
  static let mostAnswers = 4096

  // MARK: - Reading

  package func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    guard !isClosed else { return .ended }
    let transfer = try input.hasAhead ? readKept(into: run) : readNew(into: run)
    if transfer == .ended { noteEndIsRead() }
    return transfer
  }

  private func readNew(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    if let fault = input.fault { throw fault }
    guard mayRead else {
      input.isPaused = true
      return .blocked(until: [])
    }
    guard !input.hasHidden else { return try readHidden(into: run) }
    let transfer = try below.read(into: run).checked(of: run.count, at: "telnet.read")
    switch transfer {
    case .moved(let count):
      var progress = TelnetDecoder.Progress()
      let came = UnsafeRawBufferPointer(rebasing: run[..<count])
      decode(came, into: run, &progress)
      if progress.used < count && !isClosed { input.hide(UnsafeRawBufferPointer(rebasing: came[progress.used...])) }
      return try handOut(progress)
    case .blocked, .ended:
      if let brokenBy { throw brokenBy }  // all input from before the failure has been read
      if transfer == .ended { inputHasEnded() }
      return transfer
    }
  }

  /// Nobody can end a pause any more, but the other side may still read.
  private func inputHasEnded() {
    input.hasEnded = true
    if output.isSuspended { setSuspended(false) }
  }

  private var mayRead: Bool { input.events.isEmpty && output.own.count <= Self.mostAnswers }

  private func readHidden(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    var progress = TelnetDecoder.Progress()
    let (bytes, start) = (input.hidden, input.start)
    bytes.withUnsafeBytes { decode(UnsafeRawBufferPointer(rebasing: $0[start...]), into: run, &progress) }
    input.use(progress.used)
    return try handOut(progress)
  }

  /// Data before a fault is handed out first.
  private func handOut(_ progress: TelnetDecoder.Progress) throws -> Transfer {
    if let fault = input.fault, progress.made == 0 { throw fault }
    return .moved(progress.made)
  }

  // MARK: - Reading ahead

  /// The most data that is kept, in bytes.
  package static let mostAhead = 64 << 10

  private var readsAhead: Bool {
    guard readAhead != .off, readerWaits.isEmpty, input.aheadEnd == nil, !input.isPaused, !isClosed else {
      return false
    }
    return readAhead == .latest || input.aheadCount < Self.mostAhead
  }

  /// Nobody reads, and no more may be read ahead: an answer may be on its way.
  package var isReadingBlocked: Bool { readerWaits.isEmpty && input.aheadCount >= Self.mostAhead }

  /// Bytes of data that were dropped because reading ahead kept only the latest.
  package var lostReadAhead: UInt64 { input.lostAhead }

  /// Drops the data that was read ahead.
  package func dropReadAhead() { input.dropAhead(input.aheadCount) }

  func readAheadChanged() {
    updateReaderWaits()
    // Not at once: the caller may not be ready for what is found.
    if readsAhead { poller.nextRound(self) }
  }

  package func ready(_ events: PollEvents) { readOnAhead() }

  /// The stream below waits for the reader, or if there is none for reading ahead.
  func updateReaderWaits() {
    let waits = readsAhead ? input.aheadWish : readerWaits
    if below.readerWaits != waits { below.readerWaits = waits }
  }

  /// Reads once per turn.
  func readOnAhead() {
    guard readsAhead else { return updateReaderWaits() }
    do {
      let most = readAhead == .latest ? Self.mostAhead : Self.mostAhead - input.aheadCount
      let transfer = try withUnsafeTemporaryAllocation(byteCount: min(most, 16 << 10), alignment: 1) { run in
        let transfer = try readNew(into: run)
        if case .moved(let count) = transfer, !isClosed { input.ahead += run[..<count] }
        return transfer
      }
      switch transfer {
      case .moved:
        input.aheadWish = .readable
        if input.aheadCount > Self.mostAhead {
          input.lostAhead &+= UInt64(input.aheadCount - Self.mostAhead)
          input.dropAhead(input.aheadCount - Self.mostAhead)
        }
        if readsAhead && (input.hasHidden || below.hasBufferedInput) { poller.nextRound(self) }
      case .blocked(let wish): input.aheadWish = wish
      case .ended: endAhead(.success(()))
      }
    } catch {
      endAhead(.failure(error))
    }
    if !isClosed { updateReaderWaits() }
  }

  private func endAhead(_ end: Result<Void, any Error>) {
    guard !isClosed else { return }
    input.aheadEnd = end
    updateReaderWaits()
    delegate?.stream(self, handle: .inputEnded)
  }

  /// Reports a hang-up that was held back, in a separate turn: the delegate may be in the middle of a read.
  private func noteEndIsRead() {
    input.endIsRead = true
    guard input.hasHungUp else { return }
    input.hasHungUp = false
    poller.timers.after(.zero) { [weak self] in
      if let self { delegate?.stream(self, handle: .endEncountered) }
    }
  }

  private func readKept(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    if input.aheadCount == 0, let end = input.aheadEnd {
      try end.get()
      return .ended
    }
    let count = input.takeAhead(into: run)
    updateReaderWaits()  // it may have been full
    return .moved(count)
  }

  // MARK: - Decoding

  private func decode(
    _ source: UnsafeRawBufferPointer, into run: UnsafeMutableRawBufferPointer,
    _ progress: inout TelnetDecoder.Progress
  ) {
    let before = output.own.count
    do {
      while mayRead, !isClosed, let token = try input.decoder.decode(source, into: run, &progress) { handle(token) }
    } catch {
      input.fault = error
    }
    if output.own.count != before { sendOwn() }
  }

  private func handle(_ token: TelnetDecoder.Token) {
    switch token {
    case .negotiation(let verb, let option): negotiate(verb, option)
    case .subnegotiation(let option, let content):
      guard option == TelnetOption.comPort.rawValue else { return }
      guard let message = ComPortMessage(content, from: settings.role == .server ? .client : .server) else {
        guard settings.role == .client else { return }
        if let change = ComPortMessage(content, from: .client), change.isSetting { report(.lineChanged(change)) }
        return
      }
      let hadComPort = negotiation.hasComPort
      guard settings.role == .server ? negotiation.isUsingComPort() : hadComPort else { return }
      if !hadComPort { report(.comPortAgreed) }
      switch message {
      case .suspend: setSuspended(true)
      case .resume: setSuspended(false)
      default: report(.comPort(message))
      }
    case .command(.breakKey): report(.breakKey)
    case .command(.areYouThere):
      // A server sends what it gets to its device, so a client's answer is no text.
      output.own +=
        settings.role == .server ? output.encode("\r\n[baudway: yes]\r\n".utf8) : TelnetStream.noOperation
    case .command: break
    }
  }

  private func negotiate(_ verb: TelnetCommand, _ option: UInt8) {
    let (hadComPort, hopedForComPort) = (negotiation.hasComPort, negotiation.hopesForComPort)
    let wasBinarySettled = negotiation.isBinarySettled
    defer { if negotiation.isBinarySettled && !wasBinarySettled { binarySettled?() } }
    negotiation.receive(verb, option, &output.own)
    adoptBinary()
    if negotiation.hasComPort {
      if !hadComPort { report(.comPortAgreed) }
      return
    }
    if hadComPort { forgetPauses() }
    if hopedForComPort && !negotiation.hopesForComPort { report(.comPortRefused) }
  }

  /// Output is binary from our question on: a side that agrees takes what follows the question as it is, and one that
  /// refuses gets a CR without NUL, which harms nobody. So does one that never answers, and knows no telnet.
  func adoptBinary() {
    input.decoder.isBinary = negotiation.state(of: .binary, .remote) == .on
    let local = negotiation.state(of: .binary, .local)
    output.isBinary = local == .on || local == .asked
  }

  func report(_ event: Event) {
    if let observer {
      observer(event)
    } else if !output.isFinished {
      input.events.append(event)
    }
  }

  /// The oldest event. Reading goes on when all are taken.
  package func takeEvent() -> Event? {
    guard !input.events.isEmpty else { return nil }
    let event = input.events.removeFirst()
    readOn()
    return event
  }

  /// Reading waited for this.
  func readOn() {
    guard input.isPaused, mayRead, !isClosed else { return }
    input.isPaused = false
    if readsAhead { readAheadChanged() } else { poller.again(self) }
  }
}
