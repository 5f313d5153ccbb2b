// A ByteStream over a device's characteristics: it says notifications and indications, and hears writes. All of it
// goes through one socket: values, confirmations, the device's own questions.

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
  /// The payload of a notification.
  var largestUnit: Int { plan.mtu - 3 }
  var holdsBytes: Bool { !held.isEmpty }
  /// A link that nobody uses any more is cut by the kernel two seconds after close(2), whatever waits to be sent.
  var unread: Int? {
    guard socket.isOpen, !socket.isHungUp else { return nil }
    return Int(bluetooth_unsent(socket.raw)) + (awaitsAnswer ? 1 : 0)
  }

  let metadata: StreamMetadata?
  let socket: PolledSocket
  private(set) var plan: GATTPlan
  private var batch = ATTBatch()
  // What was read and found no room, or came before the stream was made.
  private(set) var held: ArraySlice<UInt8>
  // Answers that the socket did not take. While there are some nothing is read, so they stay few.
  private(set) var owed: [[UInt8]] = []
  // What the device is asked: see GATTStream+Answers.swift.
  var awaitsAnswer = false
  var answerDeadline: Timers.Token?
  var lossesAtRequest: Int32 = 0
  var identity: GATTIdentity?
  var identityDeadline: Timers.Token?
  var identityEnd: UInt64 = 0
  // What stands before each value that is written.
  private let head: [UInt8]
  // The last write was short, so the queue is full: the next try need not ask the kernel. Until it says otherwise.
  private var isFull = false
  private var hasNews = false
  var poller: Poller { socket.poller }
  private let losses: LossWatch
  /// Hears what became of a write that was to be confirmed, before the stream breaks off.
  var writeFailed: (WriteFault) -> Void = { _ in }

  enum WriteFault: Hashable, Sendable {
    case refused(ATTError)
    case unconfirmed
  }

  /// Takes over a connected, non-blocking socket of the message kind. `tellLoss` hears how many notifications the kernel has dropped
  /// because nobody took them; `facts` are known of the device already.
  init(
    _ descriptor: consuming Descriptor, _ plan: GATTPlan, on poller: Poller, knowing facts: DeviceFacts = DeviceFacts(),
    tellLoss: @escaping (Int) -> Void = { _ in }
  ) {
    socket = PolledSocket(descriptor, on: poller)
    metadata = StreamMetadata(facts)
    self.plan = plan
    losses = LossWatch(of: socket.raw, on: poller.timers) { [metadata] lost in
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
    // `metadata`'s listener may close it in the middle.
    while socket.isOpen, held.isEmpty, owed.isEmpty, filled == 0 || run.count - filled >= largestUnit {
      // As many as there is room for.
      let most = min(ATTBatch.most, max(1, (run.count - filled) / largestUnit))
      guard let count = try receive(most: most, sparing: filled > 0) else { break }
      for place in 0..<count where socket.isOpen { take(place, into: run, &filled) }
      if count < most, filled > 0 { break }  // all that was there: looking once more would cost a call
    }
    if filled > 0 { return .moved(filled) }
    guard socket.isOpen else { return .ended }
    return socket.readEnded ? sawEnd() : .blocked(until: .readable)
  }

  /// One message of the batch; what has no room is held.
  private func take(_ place: Int, into run: UnsafeMutableRawBufferPointer, _ filled: inout Int) {
    let rest = UnsafeMutableRawBufferPointer(rebasing: run[filled...])
    // Nearly all are the device's bytes: those go straight where they belong.
    if held.isEmpty, let value = batch.value(at: place, of: plan.rx) {
      let count = batch.copy(value, into: rest)
      if count < value.count { held += batch[value.dropFirst(count)] }
      filled += count
    } else {
      held += handle(batch[place])
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

  /// How many messages came; nil when there is none. With `sparing`, what broke the stream is left for the next call.
  private func receive(most: Int, sparing: Bool) throws -> Int? {
    while socket.isOpen {
      let count = batch.receive(most, from: socket.raw)
      if count == most { losses.readerHadMuch() }
      if count > 0 && count < most || count < 0 && errno == EAGAIN { socket.noteDry() }
      if count > 0 { return count }
      // Nobody waits for more from here on, or what lies behind the end would wake the lane for ever.
      if count == 0 { socket.readEnded = true }
      if count < 0 && errno != EAGAIN {
        hangUp(SystemError("read"))  // a message may lie behind the error
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

  /// What it says of our bytes.
  private func handle(_ bytes: ArraySlice<UInt8>) -> ArraySlice<UInt8> {
    guard let message = try? ATTMessage(bytes) else { return [] }
    if let answer = message.answer(mtu: plan.ourMTU) { say(answer) }
    switch message {
    case .notification(plan.rx, let value), .indication(plan.rx, let value): return value
    case .written where awaitsAnswer: answered()
    case .refusal(of: ATTRequest.writeRequest, let code) where awaitsAnswer:
      answered()
      // It does not take our bytes: whether it is encryption, a right or a length, more of them will fare no better.
      let error = ATTError(code: code)
      writeFailed(.refused(error))
      hangUp(SystemError("write", error.wantsEncryption ? EACCES : EIO))
    default: hearIdentity(message)
    }
    return []
  }

  func say(_ answer: [UInt8]) {
    owed.append(answer)
    flush()
    if !owed.isEmpty { waitsChanged() }
  }

  private func flush() {
    while socket.isOpen, let first = owed.first {
      if Glibc.send(socket.raw, first, first.count, Int32(MSG_NOSIGNAL)) != first.count {
        if errno == EINTR { continue }
        guard errno != EAGAIN else { return socket.noteFull() }
        _ = breakOff()
      }
      owed.removeFirst()
    }
  }

  // MARK: - Writing

  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    flush()
    guard socket.isOpen else { return .ended }
    if socket.isHungUp, let fault = socket.fault { throw fault }
    guard owed.isEmpty, !holdsWrites else { return .blocked(until: .writable) }
    if isFull {
      isFull = false
      return .blocked(until: .writable)
    }
    // A request is one value, and commands are as many as the kernel has room for.
    let longest = min(plan.mtu - 3, ATTMessage.longestValue)
    let count = plan.asksForAnswers ? min(run.count, longest) : run.count
    // Before: the answer may come while the call returns.
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

  /// It hung up: no answer comes any more.
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

  /// Those who wait are told in a turn of their own.
  func announce() {
    guard !hasNews, socket.isOpen else { return }
    hasNews = true
    poller.nextRound(self)
  }

  var waits: Readiness {
    var waits: Readiness = []
    if held.isEmpty, owed.isEmpty, !socket.readEnded, holdsWrites || !readerWaits.isEmpty { waits.insert(.readable) }
    if !owed.isEmpty || (!writerWaits.isEmpty && !holdsWrites) { waits.insert(.writable) }
    return waits
  }

  func ready(_ events: PollEvents) {
    guard socket.isOpen else { return }
    if events.isEmpty { hasNews = false }  // the round that was asked for
    let hungUp = !events.isDisjoint(with: .hangUp)
    if hungUp && !socket.isHungUp { hangUp(SocketOptions.takeError(of: socket.raw, "read")) }
    if events.contains(.writable) || hungUp {
      isFull = false
      flush()
    }
    // Nobody reads, and a confirmation is awaited: it is looked for, up to the first value.
    if events.contains(.readable), readerWaits.isEmpty { lookForAnswer() }
    let canRead = events.contains(.readable) || !held.isEmpty || socket.readEnded
    let canWrite = events.contains(.writable) || (events.isEmpty && !holdsWrites)
    tellAll(canRead: canRead, canWrite: canWrite && owed.isEmpty, hangUp: hungUp || socket.isHungUp)
    askOn()
    waitsChanged()
  }

  private func lookForAnswer() {
    while socket.isOpen, holdsWrites, held.isEmpty, owed.isEmpty, (try? receive(most: 1, sparing: true)) != nil {
      var none = 0
      take(0, into: UnsafeMutableRawBufferPointer(start: nil, count: 0), &none)
    }
  }

  /// The writer first: what it makes room for, the reader's turn can fill.
  func tellAll(canRead: Bool = false, canWrite: Bool = false, hangUp: Bool) {
    let (reader, writer) = (!readerWaits.isEmpty, !writerWaits.isEmpty)
    if writer && (canWrite || hangUp) { tell(.hasSpaceAvailable) }
    if reader && (canRead || hangUp) { tell(.hasBytesAvailable) }
    if hangUp && socket.readEnded && !reader && !writer { tell(.endEncountered) }
  }

  // MARK: - The end

  // What the kernel still holds is lost with it: whoever cares waits until nothing is `unread`.
  func close() {
    guard socket.isOpen else { return }
    losses.end()
    poller.timers.cancel(answerDeadline)
    poller.timers.cancel(identityDeadline)
    leave()
  }
}
