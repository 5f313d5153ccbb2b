// Input: frames from the stream below become payload, in the caller's run itself if possible, and are answered where
// needed, until the input ends.

import ByteStreams

extension WebSocketStream {
  /// Input that has arrived and was not handed out, and how it ends.
  struct Input {
    var decoder: FrameDecoder
    // Bytes from the stream below, or from before this stream was made, that are not decoded yet: from `hiddenStart`
    // on.
    var hidden: [UInt8]
    var hiddenStart = 0
    /// How the input ends; reported after all earlier bytes have been handed out.
    var end: Result<Void, any Error>?
    var endIsReported = false
    /// No more input comes: the stream below ended, failed, or does not answer.
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

    var hasBufferedInput: Bool {
      end == nil ? hidden.count > hiddenStart || decoder.holdsOutput : !endIsReported
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

  package func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    guard !isClosed else { return .ended }
    endedMessage = nil
    if let end = input.end { return try report(end, run) }
    guard !waitsForTexts else { return .blocked(until: []) }
    if input.hasBufferedInput { return try readHidden(into: run) }
    if settings.terms.deflate != nil || settings.marksMessages {
      // The payload can be larger than the bytes that arrived, so they can't share memory.
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
      // All input from before the failure has been read now.
      case .blocked: if let brokenBy { throw brokenBy }
      case .ended: break
      }
      return transfer
    } catch {
      input.belowHasEnded = true
      throw error
    }
  }

  /// Reports how the input ends. After a fault, further input is read and dropped while the caller keeps reading:
  /// unread, it would turn our close frame into a reset.
  private func report(_ end: Result<Void, any Error>, _ run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    if input.endIsReported, !input.belowHasEnded, case .failure = end {
      let transfer = try readBelow(into: run)
      input.belowHasEnded = transfer == .ended
      if case .moved = transfer { return .moved(0) }
      return transfer
    }
    return try ended(end)
  }

  /// A WebSocket has no half-close, so nothing can be written any more. A caller that only waits to write must learn of
  /// that.
  private func ended(_ end: Result<Void, any Error>) throws -> Transfer {
    input.endIsReported = true
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
    // `hasBufferedInput` makes a reader ask again at once for the end after these bytes.
    return .moved(progress.made)
  }

  // If more pings than this arrive in one piece, only the last of the others is answered (RFC 6455 section 5.5.3): a
  // call for each would block the lane.
  private static let mostPongs = 16

  /// Decodes input, and answers where needed, until an end of some kind.
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
        case .sourceIsUsed, .outputIsFull: return
        case .messageEnd(let kind):
          endedMessage = kind
          return
        case .control(.ping):
          pings += 1
          if pings <= Self.mostPongs { answerPing(input.decoder.control) } else { lastPing = input.decoder.control }
        case .control(.close):
          if let ping = lastPing.take() { answerPing(ping) }
          try receivedClose(input.decoder.control)
          return
        case .control: break  // a pong: any byte shows that the other side is there
        case .text where dropsControlTexts: break
        case .text:
          input.texts.append(
            ControlText(bytes: input.decoder.text, position: position + UInt64(progress.made)))
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
    // Without a close frame, nothing shows that this was all. It is an error only if a message is incomplete.
    let isWhole = input.decoder.isBetweenMessages
    let end: Result<Void, any Error> =
      if let brokenBy { .failure(brokenBy) } else if isWhole { .success(()) } else {
        .failure(WebSocketFault(.truncated, "the connection ended within a message"))
      }
    input.end = end
    if case .failure = end { output.silence() }
    return try ended(end)
  }

  /// The other side broke the rules: send a close frame, and hand out no more of its input.
  private func fail(_ error: any Error) {
    input.end = .failure(error)
    output.endsBelow = role == .server  // RFC 6455 section 7.1.7
    if let fault = error as? WebSocketFault {
      queueClose(WebSocketClose(fault.code.rawValue, fault.words))
    } else {
      queueClose(WebSocketClose(1011))
    }
  }

  private func receivedClose(_ payload: [UInt8]) throws(WebSocketFault) {
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
    receivedClose = close
    input.end = .success(())
    // RFC 6455 section 5.5.1: the answer usually has the same code.
    queueClose(WebSocketClose(close.code))
  }

  // MARK: - Control texts

  /// The oldest control text that was not taken yet. If reading was waiting for this, it continues by itself. Also nil
  /// while the other side does not read our texts: `.hasBytesAvailable` follows when it does.
  package func takeControlText() -> ControlText? {
    guard !input.texts.isEmpty, !output.isFullOfTexts else { return nil }
    if waitsForTexts && !isClosed { poller.again(self) }
    return input.texts.removeFirst()
  }

  var waitsForTexts: Bool { input.texts.count >= settings.mostControlTexts }

  /// After our close frame, nothing answers control texts any more. Drop them, since the other side's close frame may
  /// come after them.
  private var dropsControlTexts: Bool { settings.dropsControlTexts || output.closeIsSaid }

  func dropControlTexts() {
    guard !input.texts.isEmpty else { return }
    if waitsForTexts { poller.again(self) }
    input.texts = []
  }
}
