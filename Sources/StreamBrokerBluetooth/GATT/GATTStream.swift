// A ByteStream over a device's characteristics: reads notifications and indications, and sends writes. Values,
// confirmations and the device's own requests share one socket.

internal import CBluetooth
import ByteStreams
import Glibc

final class GATTStream: PolledStream {
  var delegate: (any ByteStreamDelegate)? {
    didSet { if !socket.isOpen && delegate != nil { delegate = nil } }
  }
  var readerWaits: Readiness = [] {
    didSet { if readerWaits != oldValue { readerChanged() } }
  }
  var writerWaits: Readiness = [] {
    didSet { if writerWaits != oldValue { waitsChanged() } }
  }
  /// The payload of a notification, in bytes.
  var largestUnit: Int { plan.mtu - 3 }
  var hasBufferedInput: Bool { !held.isEmpty }
  /// The kernel disconnects an unused link two seconds after close(2), even if output is still queued.
  var undelivered: UndeliveredOutput {
    guard socket.isOpen, !socket.isHungUp else { return .none }
    return .lostAtClose(Int(bluetooth_unsent(socket.raw)) + (awaitsAnswer ? 1 : 0))
  }

  let metadata: StreamMetadata?
  let socket: PolledSocket
  private(set) var plan: GATTPlan
  private var batch = ATTBatch()
  // Bytes that had no room in the reader's run, or that arrived before the stream was made.
  private(set) var held: ArraySlice<UInt8>
  // Answers that the socket did not accept. While there are any, nothing is read, so they stay few.
  private(set) var pendingReplies: [[UInt8]] = []
  // Our requests to the device: see GATTStream+Answers.swift.
  var awaitsAnswer = false
  var answerDeadline: Timers.Token?
  var lossesAtRequest: Int32 = 0
  var identity: GATTIdentity?
  var identityDeadline: Timers.Token?
  var identityEnd: UInt64 = 0
  // The header of each value that is written: opcode and handle.
  private let head: [UInt8]
  // The last write was short, so the queue is full: the next write blocks without asking the kernel. Cleared when the
  // socket is writable.
  private var isFull = false
  private var hasNews = false
  var poller: Poller { socket.poller }
  private let losses: DroppedNotifications
  /// Called when a confirmed write fails, before the stream breaks.
  var writeFailed: (WriteFault) -> Void = { _ in }

  enum WriteFault: Hashable, Sendable {
    case refused(ATTError)
    case unconfirmed
  }

  /// Takes over a connected, non-blocking socket of the message kind. `tellLoss` is called with the number of
  /// notifications that the kernel dropped because nobody read them; `facts` are what is already known about the
  /// device.
  init(
    _ descriptor: consuming Descriptor, _ plan: GATTPlan, on poller: Poller, knowing facts: DeviceFacts = DeviceFacts(),
    tellLoss: @escaping (Int) -> Void = { _ in }
  ) {
    socket = PolledSocket(descriptor, on: poller)
    metadata = StreamMetadata(facts)
    self.plan = plan
    losses = DroppedNotifications(of: socket.raw, on: poller.timers) { [metadata] lost in
      metadata?.note { $0.lostMessages = ($0.lostMessages ?? 0) + lost }
      tellLoss(lost)
    }
    held = plan.early[...]
    head = [plan.asksForAnswers ? ATTRequest.writeRequest : ATTRequest.writeCommand] + LittleEndian.bytes(plan.tx)
    self.plan.early = []
  }

  // MARK: - Reading

  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    guard socket.isOpen else { return .ended }
    var filled = give(into: run)
    // A listener of `metadata` may close the stream in this loop.
    while socket.isOpen, held.isEmpty, pendingReplies.isEmpty, filled == 0 || run.count - filled >= largestUnit {
      // As many messages as there is room for.
      let most = min(ATTBatch.most, max(1, (run.count - filled) / largestUnit))
      guard let count = try receive(most: most, sparing: filled > 0) else { break }
      for index in 0..<count where socket.isOpen { take(index, into: run, &filled) }
      if count < most, filled > 0 { break }  // that was all: another call would only cost time
    }
    if filled > 0 { return .moved(filled) }
    guard socket.isOpen else { return .ended }
    return socket.readEnded ? sawEnd() : .blocked(until: .readable)
  }

  /// Handles one message of the batch. Bytes without room are held.
  private func take(_ index: Int, into run: UnsafeMutableRawBufferPointer, _ filled: inout Int) {
    let rest = UnsafeMutableRawBufferPointer(rebasing: run[filled...])
    // Nearly all messages are the device's bytes: copy these straight into the run.
    if held.isEmpty, let value = batch.value(at: index, of: plan.rx) {
      let count = batch.copy(value, into: rest)
      if count < value.count { held += batch[value.dropFirst(count)] }
      filled += count
    } else {
      held += handle(batch[index])
      filled += give(into: rest)
    }
  }

  private func give(into run: UnsafeMutableRawBufferPointer) -> Int {
    let count = min(held.count, run.count)
    guard count > 0 else { return 0 }
    run.copyBytes(from: held.prefix(count))
    held = held.dropFirst(count)
    if held.isEmpty {
      held = []
      waitsChanged()
    }
    return count
  }

  /// Returns how many messages came; nil if none did. With `sparing`, an error that broke the stream is kept for the
  /// next call.
  private func receive(most: Int, sparing: Bool) throws -> Int? {
    while socket.isOpen {
      let count = batch.receive(most, from: socket.raw)
      if count == most { losses.readerHadMuch() }
      if count > 0 && count < most || count < 0 && errno == EAGAIN { socket.noteDry() }
      if count > 0 { return count }
      // Stop waiting for input: what follows the end would wake the lane for ever.
      if count == 0 { socket.readEnded = true }
      if count < 0 && errno != EAGAIN {
        hangUp(SystemError("read"))  // a message may follow the error
        continue
      }
      if count < 0 && !socket.isHungUp { return nil }
      if sparing { return nil }
      if let fault = socket.fault { throw fault }
      socket.readEnded = true
      return nil
    }
    return nil
  }

  /// Handles one message and returns its bytes for the reader.
  private func handle(_ bytes: ArraySlice<UInt8>) -> ArraySlice<UInt8> {
    guard let message = try? ATTMessage(bytes) else { return [] }
    if let answer = message.answer(mtu: plan.ourMTU) { sendReply(answer) }
    switch message {
    case .notification(plan.rx, let value), .indication(plan.rx, let value): return value
    case .written where awaitsAnswer: answered()
    case .refusal(of: ATTRequest.writeRequest, let code) where awaitsAnswer:
      answered()
      // The device refuses our bytes. Whether the reason is encryption, a permission or a length, it would refuse more
      // of them, too.
      let error = ATTError(code: code)
      writeFailed(.refused(error))
      hangUp(SystemError("write", error.wantsEncryption ? EACCES : EIO))
    default: hearIdentity(message)
    }
    return []
  }

  func sendReply(_ answer: [UInt8]) {
    pendingReplies.append(answer)
    flush()
    if !pendingReplies.isEmpty { waitsChanged() }
  }

  private func flush() {
    while socket.isOpen, let first = pendingReplies.first {
      if Glibc.send(socket.raw, first, first.count, Int32(MSG_NOSIGNAL)) != first.count {
        if errno == EINTR { continue }
        guard errno != EAGAIN else { return socket.noteFull() }
        _ = breakOff()
      }
      pendingReplies.removeFirst()
    }
  }

  // MARK: - Writing

  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    flush()
    guard socket.isOpen else { return .ended }
    if socket.isHungUp, let fault = socket.fault { throw fault }
    guard pendingReplies.isEmpty, !holdsWrites else { return .blocked(until: .writable) }
    if isFull {
      isFull = false
      return .blocked(until: .writable)
    }
    // A request carries one value; of commands, as many are sent as the kernel has room for.
    let longest = min(plan.mtu - 3, ATTMessage.longestValue)
    let count = plan.asksForAnswers ? min(run.count, longest) : run.count
    // Before sending: the answer may arrive while the call returns.
    if plan.asksForAnswers { lossesAtRequest = bluetooth_drops(socket.raw) }
    let taken = bluetooth_send_values(socket.raw, head, run.baseAddress, count, longest)
    guard taken > 0 else {
      guard errno == EAGAIN else { throw breakOff() }
      socket.noteFull()
      return .blocked(until: .writable)
    }
    isFull = taken < count
    if isFull { socket.noteFull() }
    if plan.asksForAnswers { awaitAnswer() }
    return .moved(taken)
  }

  // MARK: - Waiting

  func hangUp(_ error: SystemError?) {
    socket.hangUp(error)
    stopWaiting()
  }

  private func breakOff() -> SystemError {
    let isNews = !socket.isHungUp
    let error = socket.breakOff()
    if isNews { stopWaiting() }
    return error
  }

  /// The link hung up: no answer will come.
  private func stopWaiting() {
    awaitsAnswer = false
    poller.timers.cancel(answerDeadline)
    endIdentity()
    announce()
  }

  private func readerChanged() {
    losses.readerChanged(isReading: !readerWaits.isEmpty)
    if !readerWaits.isEmpty, !held.isEmpty || socket.readEnded { announce() }
    waitsChanged()
  }

  /// Calls a reader or writer that waits, in a turn of its own.
  func announce() {
    guard !hasNews, socket.isOpen else { return }
    hasNews = true
    poller.nextRound(self)
  }

  var waits: Readiness {
    var waits: Readiness = []
    if held.isEmpty, pendingReplies.isEmpty, !socket.readEnded, holdsWrites || !readerWaits.isEmpty {
      waits.insert(.readable)
    }
    if !pendingReplies.isEmpty || (!writerWaits.isEmpty && !holdsWrites) { waits.insert(.writable) }
    return waits
  }

  func ready(_ events: PollEvents) {
    guard socket.isOpen else { return }
    if events.isEmpty { hasNews = false }  // the round that `announce` asked for
    let hungUp = !events.isDisjoint(with: .hangUp)
    if hungUp && !socket.isHungUp { hangUp(SocketOptions.takeError(of: socket.raw, "read")) }
    if events.contains(.writable) || hungUp {
      isFull = false
      flush()
    }
    // Nobody reads, but an answer is expected: read up to the first value.
    if events.contains(.readable), readerWaits.isEmpty { lookForAnswer() }
    let canRead = events.contains(.readable) || !held.isEmpty || socket.readEnded
    let canWrite = events.contains(.writable) || (events.isEmpty && !holdsWrites)
    tellAll(canRead: canRead, canWrite: canWrite && pendingReplies.isEmpty, hangUp: hungUp || socket.isHungUp)
    askOn()
    waitsChanged()
  }

  private func lookForAnswer() {
    while socket.isOpen, holdsWrites, held.isEmpty, pendingReplies.isEmpty,
      (try? receive(most: 1, sparing: true)) != nil
    {
      var none = 0
      take(0, into: UnsafeMutableRawBufferPointer(start: nil, count: 0), &none)
    }
  }

  /// The writer first: the reader's turn can then fill the room that the writer makes.
  func tellAll(canRead: Bool = false, canWrite: Bool = false, hangUp: Bool) {
    let (reader, writer) = (!readerWaits.isEmpty, !writerWaits.isEmpty)
    if writer && (canWrite || hangUp) { report(.hasSpaceAvailable) }
    if reader && (canRead || hangUp) { report(.hasBytesAvailable) }
    if hangUp && socket.readEnded && !reader && !writer { report(.endEncountered) }
  }

  // MARK: - The end

  // close(2) discards what the kernel still holds: a caller that needs it delivered waits until nothing is
  // `undelivered`.
  func close() {
    guard socket.isOpen else { return }
    losses.end()
    poller.timers.cancel(answerDeadline)
    poller.timers.cancel(identityDeadline)
    leave()
  }
}
