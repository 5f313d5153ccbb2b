// What comes in: frames of what is below become payload, in the very run that is to be filled where that can be, and are
// answered where they ask for it, up to an end of some kind.

import ByteStreams

extension WebSocketStream {
  /// What has come and was not handed out, and how it ends.
  struct Input {
    var decoder: FrameDecoder
    // Read from below, or before this stream was made, and not yet decoded: from `hiddenStart` on.
    var hidden: [UInt8]
    var hiddenStart = 0
    /// How it ends, once what came before has been handed out.
    var end: Result<Void, any Error>?
    var endIsTold = false
    /// Nothing comes any more: what is below ended, or broke, or does not answer.
    var belowHasEnded = false
    var texts: [ControlText] = []

    init(as role: WebSocketRole, _ settings: Settings, early: [UInt8]) {
      hidden = early
      decoder = FrameDecoder(
        .init(
          role: role, longestMessage: settings.longestMessage,
          longestControlText: settings.terms.subprotocol == .baudwayV1 ? settings.longestControlText : nil,
          marksMessages: settings.marksMessages, deflate: settings.terms.deflate))
    }

    var holdsBytes: Bool {
      end == nil ? hidden.count > hiddenStart || decoder.holdsOutput : !endIsTold
    }

    mutating func forgetHidden() {
      hidden = []
      hiddenStart = 0
    }

    mutating func forget() {
      texts = []
      forgetHidden()
    }
  }

  // MARK: - Reading

  public func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    guard !isClosed else { return .ended }
    endedMessage = nil
    if let end = input.end { return try tell(end, run) }
    guard !waitsForTexts else { return .blocked(until: []) }
    if input.holdsBytes { return try readHidden(into: run) }
    if settings.terms.deflate != nil || settings.marksMessages {
      // What is inside can be more than what came, so they can't share a place.
      var transfer = Transfer.moved(0)
      input.hidden = try [UInt8](unsafeUninitializedCapacity: 16 << 10) { bytes, count in
        transfer = try readBelow(into: UnsafeMutableRawBufferPointer(bytes))
        if case .moved(let came) = transfer { count = came }
      }
      input.hiddenStart = 0
      guard case .moved = transfer else { return try belowDidNotRead(transfer) }
      guard !input.hidden.isEmpty else { return .moved(0) }
      return try readHidden(into: run)
    }
    let transfer = try readBelow(into: run)
    guard case .moved(let count) = transfer else { return try belowDidNotRead(transfer) }
    let came = UnsafeMutableRawBufferPointer(rebasing: run[..<count])
    var progress = FrameDecoder.Progress()
    decode(came, into: came, &progress)
    if progress.used < count && input.end == nil { input.hidden = Array(came[progress.used...]) }
    return handOut(progress)
  }

  private func readBelow(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    do {
      let transfer = try below.read(into: run).checked(of: run.count, at: "websocket.read")
      switch transfer {
      case .moved: heardSomething = true
      // What came before it broke has been read now.
      case .blocked: if let brokenBy { throw brokenBy }
      case .ended: break
      }
      return transfer
    } catch {
      input.belowHasEnded = true
      throw error
    }
  }

  /// How it ends. What comes behind a fault is dropped when somebody goes on reading: unread it would turn our close frame
  /// into a reset.
  private func tell(_ end: Result<Void, any Error>, _ run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    if input.endIsTold, !input.belowHasEnded, case .failure = end {
      let transfer = try readBelow(into: run)
      input.belowHasEnded = transfer == .ended
      if case .moved = transfer { return .moved(0) }
      return transfer
    }
    return try ended(end)
  }

  /// Nobody takes anything any more, for there is no half of a WebSocket; and who only waits to write would not learn it.
  private func ended(_ end: Result<Void, any Error>) throws -> Transfer {
    input.endIsTold = true
    try end.get()
    poller.timers.after(.zero) { [weak self] in
      if let self, !self.isClosed { self.delegate?.stream(self, handle: .endEncountered) }
    }
    return .ended
  }

  private func readHidden(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    var progress = FrameDecoder.Progress()
    let start = input.hiddenStart
    var bytes = input.hidden
    input.hidden = []  // so that it is not copied
    bytes.withUnsafeMutableBytes { decode(UnsafeMutableRawBufferPointer(rebasing: $0[start...]), into: run, &progress) }
    input.hidden = bytes
    input.hiddenStart += progress.used
    if input.hiddenStart >= input.hidden.count || input.end != nil { input.forgetHidden() }
    return handOut(progress)
  }

  private func handOut(_ progress: FrameDecoder.Progress) -> Transfer {
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
        switch try input.decoder.decode(source, into: run, &progress) {
        case .sourceIsUsed, .placeIsFull: return
        case .messageEnd(let kind):
          endedMessage = kind
          return
        case .control(.ping):
          pings += 1
          if pings <= Self.mostPongs { answerPing(input.decoder.control) } else { lastPing = input.decoder.control }
        case .control(.close):
          if let ping = lastPing.take() { answerPing(ping) }
          try heardClose(input.decoder.control)
          return
        case .control: break  // a pong, which any byte is as good as
        case .text where dropsControlTexts: break
        case .text:
          input.texts.append(
            ControlText(bytes: input.decoder.text, position: position + UInt64(progress.made)))
          controlTextsCame?()
          if waitsForTexts { return }
        }
      }
    } catch {
      fail(error)
    }
  }

  private func belowDidNotRead(_ transfer: Transfer) throws -> Transfer {
    guard transfer == .ended else { return transfer }
    input.belowHasEnded = true
    // Without a close frame nobody has said that this is all; only where it is plainly not it is an error.
    let isWhole = input.decoder.isBetweenMessages
    let end: Result<Void, any Error> =
      if let brokenBy { .failure(brokenBy) } else if isWhole { .success(()) } else {
        .failure(WebSocketFault(.truncated, "the connection ended within a message"))
      }
    input.end = end
    if case .failure = end { output.silence() }
    return try ended(end)
  }

  /// The other side broke the rules: it is told, and nothing of it is read any more.
  private func fail(_ error: any Error) {
    input.end = .failure(error)
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
    input.end = .success(())
    // RFC 6455 section 5.5.1: the answer usually says the same code.
    sayClose(WebSocketClose(close.code))
  }

  // MARK: - Control texts

  /// The oldest control text that was not taken yet. Reading goes on by itself when it had waited for that. Nil also while the
  /// other side does not read what it was told: `.hasBytesAvailable` comes when it does.
  public func takeControlText() -> ControlText? {
    guard !input.texts.isEmpty, !output.isFullOfTexts else { return nil }
    if waitsForTexts && !isClosed { poller.again(self) }
    return input.texts.removeFirst()
  }

  var waitsForTexts: Bool { input.texts.count >= settings.mostControlTexts }

  /// Once this side has said its close nobody answers them, and the other side's close may stand behind them.
  private var dropsControlTexts: Bool { settings.dropsControlTexts || output.closeIsSaid }

  func dropControlTexts() {
    guard !input.texts.isEmpty else { return }
    if waitsForTexts { poller.again(self) }
    input.texts = []
  }
}
