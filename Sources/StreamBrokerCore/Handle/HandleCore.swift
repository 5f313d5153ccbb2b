// The part of a handle that lives on a lane: the open stream, and the link that opens it again. Moves bytes between the
// stream and `HandleInput`, and carries out the calls of tasks. StreamHandle is its face for tasks.

import ByteStreams
import Glibc

final class HandleCore: ByteStreamDelegate {
  let poller: Poller
  private let shared: HandleShared
  private(set) var stream: (any ByteStream)?
  private var link: HandleLink?
  private var write: HandleWrite?
  private var flush: HandleCall?
  private var flushTimer: Timers.Token?
  private var alarm: Timers.Token?
  private var inputHasEnded = false
  /// The program ends its output as soon as the stream holds none of it.
  private var endsOutput = false
  private var outputHasEnded = false
  private var finish: HandleCall?
  /// When the open stream, or the last one, took the program's first bytes; on the lane's clock. Nil before that.
  private(set) var firstTakenAt: UInt64?
  private var isClosed = false
  /// The endpoint is free again.
  private var isReleased = false
  private var releaseWaits: [HandleCall] = []
  /// What `close()` waits for: the port's last output, then the other side. A stream that the other side has ended may
  /// still have to send its last unit.
  private var lastOutput: (close: OrderlyClose, stream: any ByteStream)?
  private var lastStream: ClosingStreams?
  /// When this handle began to open or to close something that has not ended yet. An earlier cleanup belongs to another
  /// stream of the lane, whose driver may hang; later ones of other streams can't be told from ours.
  private var cleanups: (closings: PendingCleanups.Mark, connects: PendingCleanups.Mark)?
  /// The question that the line has not answered yet.
  private var question: HandleCall?
  /// Settings that the program has applied, for the stream that opens next.
  private var appliedSettings: LineSettings?
  /// Writes wait until the line has the applied settings.
  private var isSettling = false
  /// Bytes were sent since the last flush. If the link is lost first, the next flush fails with the reason.
  private var hasSent = false
  private var lossOfSent: (any Error)?
  /// The last look found that a program has read everything.
  private var wasAllRead = false
  private static let pieceSize = 16 * 1024
  private static let terminalRead = 4095
  /// Bytes of one turn, so that other streams of the lane get theirs.
  private static let mostPerTurn = 64 * 1024
  /// The same for writes, which go on after a wait for space. That also lets a deadline or a cancellation in.
  private static let mostWrittenPerTurn = 256 * 1024
  // The pauses between two looks at a queue that empties without an event.
  private static let shortestLook = Duration.milliseconds(2)
  private static let longestLook = Duration.milliseconds(50)
  private static let untilSecondLook = Duration.milliseconds(20)
  private static let drain = Duration.seconds(5)
  /// Of a link that broke, no more unread bytes than this are kept.
  private static let mostAtBreak = 8 << 20

  init(_ shared: HandleShared, on poller: Poller) {
    self.shared = shared
    self.poller = poller
  }

  /// Opens by `link`, which calls `attach` for each stream.
  func start(_ link: HandleLink) {
    guard !isClosed else { return }  // the task was cancelled before this arrived
    self.link = link
    link.start(self)
  }

  // MARK: - The stream

  func attach(_ stream: any ByteStream) {
    self.stream = stream
    forgetCleanups()
    firstTakenAt = nil
    shared.canHalfClose = stream.closeBehavior.canHalfClose
    stream.delegate = self
    noteFacts(of: stream)
    settle(stream)
    readOn()
    writeOn()
  }

  private func settle(_ stream: any ByteStream) {
    guard let appliedSettings, let line = stream.serialLine else { return }
    isSettling = true
    line.apply(appliedSettings) { [weak self, weak stream] _ in
      guard let self, let stream, stream === self.stream else { return }
      isSettling = false
      writeOn()
    }
  }

  private func noteFacts(of stream: any ByteStream) {
    guard let metadata = stream.metadata else { return }
    let note = { [weak self, weak metadata] in
      if let self, let metadata { shared.note(metadata.facts) }
    }
    metadata.changed = note
    note()
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .openCompleted: break
    case .inputEnded: readToEnd()
    case .hasBytesAvailable: readOn()
    case .hasSpaceAvailable:
      stream.writerWaits = []
      writeOn()
    case .errorOccurred(let error): broke(error)
    case .endEncountered: if inputHasEnded { lost(nil) } else { readOn() }
    }
  }

  /// The stream broke while it was written, or while nobody read it. Keeps what arrived before.
  private func broke(_ error: any Error) {
    guard let stream else { return }
    if !inputHasEnded { _ = try? readRest(of: stream) }
    lost(error)
  }

  /// The other side ended its output or reset the connection, while nobody read. Only a read after the last byte tells
  /// which: a flush would wait for ever for a peer that has reset the connection.
  private func readToEnd() {
    guard let stream, !inputHasEnded else { return }
    defer { if let next = shared.input.serve() { setAlarm(next) } }
    do {
      if try readRest(of: stream) { inputEnded(stream) }
    } catch {
      lost(error)
    }
  }

  /// Reads what has arrived, beyond the usual limit. Returns whether the end was reached.
  private func readRest(of stream: any ByteStream) throws -> Bool {
    var left = Self.mostAtBreak - shared.input.count
    while left > 0 {
      switch try readPiece(stream, max(stream.largestUnit, Self.pieceSize)) {
      case .moved(let count): left -= max(count, 1)
      case .blocked(let wish):
        stream.readerWaits = wish
        return false
      case .ended: return true
      }
    }
    return false
  }

  /// The stream broke, or ended. All its bytes have been read.
  private func lost(_ error: (any Error)?) {
    guard let stream = stream.take() else { return }
    markCleanups()
    // Its last unit may be held, such as an answer to the other side's end.
    if error == nil { closeInOrder(stream, otherSideFinished: true) } else { stream.close() }
    question.take()?.finish(SystemError("line", ENOTCONN))
    isSettling = false
    if hasSent { lossOfSent = error ?? SystemError("flush", EPIPE) }
    hasSent = false
    if flush != nil { finishFlush(takeLoss()) }
    write?.taken = 0  // what was sent may be lost with the link, so the next one gets all of it
    if link?.lost(error) == true {
      shared.input.markBreak()
      if link?.holdsOutput == false { finishWrite(nil) }
      return
    }
    end(error)
  }

  /// Nothing more will come, and nothing more can be sent.
  func end(_ error: (any Error)?) {
    shared.input.end(error.map { .failed($0) } ?? .ended)
    shared.endOutput(error)
    finishWrite(error ?? SystemError("write", EPIPE))
    finish.take()?.finish(error ?? SystemError("shutdown", EPIPE))
  }

  // MARK: - Reading

  func readOn() {
    guard let stream, !inputHasEnded else { return }
    // Once a turn: each change of thread costs as much as many reads.
    defer { if let next = shared.input.serve() { setAlarm(next) } }
    do {
      var left = Self.mostPerTurn
      while left > 0 {
        let room = shared.input.room(for: stream.largestUnit)
        guard room > 0 else {
          stream.readerWaits = []
          return
        }
        let size = max(stream.largestUnit, min(room, Self.pieceSize))
        switch try readPiece(stream, size) {
        case .moved(let count):
          left -= max(count, 1)
          // A short read has emptied the stream, unless it holds bytes or is a terminal, whose reads give 4,095 bytes
          // at most; another read would cost a call.
          if count > 0 && count < min(size, Self.terminalRead) && !stream.hasBufferedInput {
            stream.readerWaits = .readable
            return
          }
        case .blocked(let wish):
          stream.readerWaits = wish
          return
        case .ended:
          stream.readerWaits = []
          return inputEnded(stream)
        }
      }
      stream.readerWaits = .readable
      poller.again(stream)
    } catch {
      lost(error)
    }
  }

  private func readPiece(_ stream: any ByteStream, _ size: Int) throws -> Transfer {
    try withUnsafeTemporaryAllocation(byteCount: size, alignment: 1) { piece in
      let transfer = try stream.read(into: piece).checked(of: size, at: "handle.read")
      if case .moved(let count) = transfer, count > 0 {
        shared.input.append(UnsafeRawBufferPointer(rebasing: piece[..<count]), at: poller.timers.now)
      }
      return transfer
    }
  }

  /// With a link that reconnects, the end counts as a loss. Otherwise the output may still go on.
  private func inputEnded(_ stream: any ByteStream) {
    guard link?.reconnects != true, stream.closeBehavior.canHalfClose, !outputHasEnded else { return lost(nil) }
    inputHasEnded = true
    shared.input.end(.ended)
  }

  func setAlarm(_ time: UInt64) {
    poller.timers.cancel(alarm)
    alarm = poller.timers.at(time) { [weak self] in
      guard let self else { return }
      if let next = shared.input.alarm(at: poller.timers.now) { setAlarm(next) }
    }
  }

  func setAlarm() { if let time = shared.input.alarmTime { setAlarm(time) } }

  // MARK: - Writing

  func send(_ bytes: [UInt8], before deadline: UInt64?, _ call: HandleCall) {
    guard !isClosed, shared.outputError == nil else { return call.finish(shared.outputError ?? Self.closed("write")) }
    if stream == nil, link?.holdsOutput == false { return call.finish() }
    write = HandleWrite(bytes: bytes, call: call)
    writeOn()
    call.setDeadline(deadline) { [weak self] in self?.dropWrite(call, SystemError("write", ETIMEDOUT)) }
  }

  private func writeOn() {
    guard let stream, !isSettling else { return }
    do {
      var left = Self.mostWrittenPerTurn
      while let write, !write.isSent {
        guard left > 0 else {
          stream.writerWaits = .writable
          return
        }
        let transfer = try write.bytes.withUnsafeBytes { bytes in
          let rest = UnsafeRawBufferPointer(rebasing: bytes[write.taken...])
          return try stream.write(rest).checked(of: rest.count, at: "handle.write")
        }
        switch transfer {
        case .moved(let count):
          if firstTakenAt == nil { firstTakenAt = poller.timers.now }
          hasSent = true
          self.write?.taken += count
          left -= max(count, 1)
        case .blocked(let wish):
          stream.writerWaits = wish
          return
        case .ended: return broke(SystemError("write", EPIPE))
        }
      }
    } catch {
      return broke(error)
    }
    finishWrite(nil)
    endOutput(stream)
    lookAtFlush(pause: Self.shortestLook)
  }

  private func finishWrite(_ error: (any Error)?) { write.take()?.call.finish(error) }

  private func dropWrite(_ call: HandleCall, _ error: any Error) {
    guard write?.call === call else { return }
    stream?.writerWaits = []
    finishWrite(error)
  }

  /// The task of a call was cancelled.
  func cancel(_ ticket: CallTicket) {
    if let call = write?.call, call.ticket === ticket { dropWrite(call, CancellationError()) }
    if flush?.ticket === ticket { finishFlush(CancellationError()) }
    if finish?.ticket === ticket { finish.take()?.finish(CancellationError()) }
    if question?.ticket === ticket { question.take()?.finish(CancellationError()) }
    for call in releaseWaits where call.ticket === ticket { dropReleaseWait(call, CancellationError()) }
  }

  // MARK: - The line

  /// Asks the line; `ask` gets a closure for the end of the question.
  func ask(
    before deadline: UInt64?, _ call: HandleCall,
    _ ask: (any SerialLine, @escaping (Result<Void, SystemError>) -> Void) -> Void
  ) {
    guard let stream else { return call.finish(SystemError("line", isClosed ? EPIPE : ENOTCONN)) }
    guard let line = stream.serialLine else { return call.finish(SystemError("line", ENOTTY)) }
    question = call
    let end = { [weak self] (error: (any Error)?) in
      guard let self, question === call else { return }
      question = nil
      call.finish(error)
    }
    call.setDeadline(deadline) { end(SystemError("line", ETIMEDOUT)) }
    ask(line) { result in
      if case .failure(let error) = result { end(error) } else { end(nil) }
    }
  }

  /// The line has these settings, and gets them again each time it is opened.
  func keep(_ settings: LineSettings) { appliedSettings = settings }

  // MARK: - Flushing

  /// The reason why bytes may not have left. Each is reported once, or for good if the link is not opened again.
  private func takeLoss() -> (any Error)? {
    let loss = lossOfSent
    if link?.reconnects == true { lossOfSent = nil }
    return loss
  }

  /// Waits until what was taken has left, as far as the kernel reports that.
  func flush(before deadline: UInt64?, _ call: HandleCall) {
    if let error = takeLoss() { return call.finish(error) }
    guard !isClosed else { return call.finish(Self.closed("flush")) }
    guard stream != nil else { return call.finish() }  // all that was sent had left before the link was lost
    flush = call
    wasAllRead = false
    call.setDeadline(deadline) { [weak self] in self?.finishFlush(SystemError("flush", ETIMEDOUT)) }
    lookAtFlush(pause: Self.shortestLook)
  }

  private func lookAtFlush(pause: Duration) {
    guard let flush, let stream else { return }
    poller.timers.cancel(flushTimer)
    if stream.hasPendingOutput {
      stream.writerWaits = .writable
      return
    }
    if let line = stream.serialLine {
      line.unsent { [weak self] answer in
        guard let self, self.flush === flush else { return }  // the answer is for this flush, not for the next one
        switch answer {
        case .success(let count) where count > 0: lookAgain(after: pause)
        case .failure(let error) where !error.isUnsupported: broke(error)  // the port is gone
        case .success, .failure: allHasLeft()
        }
      }
      return
    }
    switch stream.undelivered {
    case .onItsWay(0), .lostAtClose(nil): allHasLeft()
    case .lostAtClose(0?) where wasAllRead: allHasLeft()
    case .lostAtClose(0?):  // only a second 0 is certain
      wasAllRead = true
      lookAgain(after: Self.untilSecondLook)
    default:
      wasAllRead = false
      lookAgain(after: pause)
    }
  }

  private func lookAgain(after pause: Duration) {
    flushTimer = poller.timers.after(pause) { [weak self] in
      self?.lookAtFlush(pause: min(pause * 2, Self.longestLook))
    }
  }

  private func allHasLeft() {
    hasSent = false
    finishFlush(nil)
  }

  private func finishFlush(_ error: (any Error)?) {
    poller.timers.cancel(flushTimer)
    flush.take()?.finish(error)
  }

  // MARK: - The end

  /// Ends the output, after what was taken.
  func finishWriting(before deadline: UInt64?, _ call: HandleCall) {
    if outputHasEnded { return call.finish() }
    guard let stream else {
      let error = shared.outputError ?? SystemError("shutdown", isClosed ? EPIPE : ENOTCONN)
      return call.finish(error)
    }
    shared.endOutput(SystemError("write", EPIPE))
    link?.reconnects = false
    endsOutput = true
    finish = call
    call.setDeadline(deadline) { [weak self] in
      guard let self, finish === call else { return }
      finish = nil
      call.finish(SystemError("shutdown", ETIMEDOUT))
    }
    endOutput(stream)
  }

  /// The end comes after what the stream holds, even if the call is over by then.
  private func endOutput(_ stream: any ByteStream) {
    guard endsOutput, !outputHasEnded else { return }
    guard !stream.hasPendingOutput else { return stream.writerWaits = .writable }
    outputHasEnded = true
    stream.finishWriting()
    finish.take()?.finish()
    if inputHasEnded { lost(nil) }
  }

  /// Delivers what was taken, then closes; returns at once.
  func close() {
    guard !isClosed else { return }
    guard let stream = beginClosing() else { return leaveWhenClosed() }
    guard stream.serialLine != nil else { return leave(stream) }
    let drain = EndpointDrain([], to: stream, timeout: Self.drain, on: poller)
    let close = OrderlyClose(drain) { [self] _ in
      withExtendedLifetime(lastOutput.take()) { leave(stream) }
    }
    lastOutput = (close, stream)
    close.start()
  }

  /// Closes at once, also after `close()`.
  func abort() {
    guard !isClosed else {
      if let lastOutput {
        Self.dropOutput(of: lastOutput.stream)
        lastOutput.close.cutOff()
      }
      lastStream?.closeAll()
      return
    }
    if let stream = beginClosing() {
      Self.dropOutput(of: stream)
      stream.abort()
    }
    lastStream?.closeAll()
    left()
  }

  /// The port's close would wait for output that its flow control stops.
  private static func dropOutput(of stream: any ByteStream) { stream.serialLine?.purge(.output) { _ in } }

  private func leave(_ stream: any ByteStream) {
    closeInOrder(stream, otherSideFinished: inputHasEnded)
    leaveWhenClosed()
  }

  private func closeInOrder(_ stream: any ByteStream, otherSideFinished: Bool) {
    let closing = ClosingStreams(on: poller)
    lastStream = closing
    closing.close(stream, otherSideFinished: otherSideFinished)
  }

  private func leaveWhenClosed() {
    guard let lastStream else { return left() }
    lastStream.empty { [self] in
      self.lastStream = nil
      left()
    }
  }

  /// What this handle closes or gives up from now on are its own cleanups.
  func markCleanups() {
    if cleanups == nil { cleanups = (poller.closings.mark, poller.abandonedConnects.mark) }
  }

  private func forgetCleanups() {
    guard let cleanups, poller.closings.isOver(since: cleanups.closings) else { return }
    if poller.abandonedConnects.isOver(since: cleanups.connects) { self.cleanups = nil }
  }

  /// The stream is closed. What its close still does in the background, such as removing a lock file, ends later.
  private func left() {
    let answer = poller.expect { [self] (_: Bool) in
      isReleased = true
      shared.release()
      for call in releaseWaits { call.finish() }
      releaseWaits = []
    }
    guard let cleanups else { return answer(true) }
    let abandoned = poller.abandonedConnects
    poller.closings.whenTheseEnd(since: cleanups.closings) {
      abandoned.whenTheseEnd(since: cleanups.connects) { answer(true) }
    }
  }

  /// Waits until the endpoint is free.
  func whenReleased(before deadline: UInt64?, _ call: HandleCall) {
    guard !isReleased else { return call.finish() }
    releaseWaits.append(call)
    call.setDeadline(deadline) { [weak self] in self?.dropReleaseWait(call, SystemError("close", ETIMEDOUT)) }
  }

  private func dropReleaseWait(_ call: HandleCall, _ error: any Error) {
    releaseWaits.removeAll { $0 === call }
    call.finish(error)
  }

  private func beginClosing() -> (any ByteStream)? {
    isClosed = true
    markCleanups()
    link?.stop()
    poller.timers.cancel(alarm)
    shared.input.end(.ended, discarding: true)
    finishWrite(Self.closed("write"))
    finishFlush(Self.closed("flush"))
    finish.take()?.finish(Self.closed("shutdown"))
    question.take()?.finish(SystemError("line", EPIPE))
    guard let stream = stream.take() else { return nil }
    stream.readerWaits = []
    stream.writerWaits = []
    return stream
  }

  private static func closed(_ call: String) -> SystemError { SystemError(call, EPIPE) }
}
