// `packets.exchange`: several clients poll the devices of one bus, and each gets the answers to its own questions. One
// client's packet at a time goes to the device. Output from then on, up to the end of the answer's packet or the end of
// the time, goes to that client and to monitors only. A hub with this key owns one; Upstream asks it whether a packet
// may begin, Downstream which output is for which client.

import ByteStreams

protocol ExchangeDelegate: AnyObject {
  /// The asker's packet is sent as far as anybody knows: none of it waits.
  var questionMayBeOver: Bool { get }
  /// The exchange is over, so the packet of its asker is, too.
  func exchangeIsOver()
  /// The next packet may begin.
  func nextMayBegin()
}

final class Exchange {
  /// How long an answer may take, from the question's last byte. Nil: off after a reload, but output that is kept may
  /// still be for one client.
  private var time: Duration? { packets?.exchange }
  /// The silence before the next packet.
  private var idle: Duration? { packets?.idle }
  private var packets: Config.Packets?
  private let poller: Poller
  private unowned let delegate: any ExchangeDelegate

  private struct Question {
    /// The session's number: the answer is for no other client, even if that session has ended.
    let asker: UInt64
    var deadline: UInt64
    /// The first bytes, to know an echo, and how many there were in all.
    var bytes: [UInt8] = []
    var length = 0
    /// A packet equal to the question has come.
    var wasRepeated = false
  }
  private var question: Question?
  /// Since when the output is not read.
  private var pausedAt: UInt64?
  /// When the last bit of either side went over the line, as far as anybody knows. The next packet comes `idle` later.
  private var lastBitAt: UInt64 = 0
  private var earliest: UInt64 = 0
  private var timer: Timers.Token?
  /// Whether the line returns what is sent, as an RS-485 adapter may whose receiver stays on. Nil: not known yet.
  private var echoes: Bool?
  private static let mostCompared = 1024

  init(_ packets: Config.Packets?, _ delegate: any ExchangeDelegate, on poller: Poller) {
    self.delegate = delegate
    self.poller = poller
    update(packets)
  }

  deinit { poller.timers.cancel(timer) }

  func update(_ packets: Config.Packets?) {
    guard packets != self.packets else { return }
    self.packets = packets
    if goesOnSince != nil { (goesOnSince, packetOwner) = (nil, nil) }
    if time == nil { forget() }
  }

  /// The next endpoint begins anew. Call it between two packets of output.
  func forget() {
    poller.timers.cancel(timer)
    (timer, question, echoes, earliest) = (nil, nil, nil, 0)
    (packetOwner, goesOnSince) = (nil, nil)
  }

  /// Output is not read, or read again: an answer may have waited, so this time does not count.
  func reading(isPaused: Bool) {
    let now = poller.timers.now
    if isPaused { return pausedAt = pausedAt ?? now }
    guard let since = pausedAt else { return }
    pausedAt = nil
    guard let time, let deadline = question?.deadline else { return }
    let longer = max(deadline, min(deadline &+ (now &- since), now &+ time.nanoseconds))
    question?.deadline = longer
    wait(until: longer)
  }

  // MARK: - Up

  /// Whether a packet may begin.
  var mayBegin: Bool { time == nil || question == nil && poller.timers.now >= earliest }

  /// The endpoint has taken bytes of the session's packet, which leave its line at `lastBitAt`.
  func sent(_ run: UnsafeRawBufferPointer, by session: UInt64, lastBitAt: UInt64) {
    guard let time else { return }
    var question = question ?? Question(asker: session, deadline: 0)
    self.lastBitAt = max(lastBitAt, poller.timers.now)
    question.deadline = self.lastBitAt &+ time.nanoseconds
    question.length += run.count
    question.bytes += run.prefix(max(0, Self.mostCompared - question.bytes.count))
    self.question = question
    if timer == nil { wait(until: question.deadline) }
  }

  private func wait(until time: UInt64) {
    poller.timers.cancel(timer)
    timer = poller.timers.at(time) { [weak self] in
      guard let self else { return }
      timer = nil
      guard let question else { return delegate.nextMayBegin() }
      if poller.timers.now < question.deadline { return wait(until: question.deadline) }
      if pausedAt == nil { timeIsOver() }
    }
  }

  private func timeIsOver() {
    // What came was no echo, but all that the device had to answer.
    if echoes == nil, question?.wasRepeated == true { echoes = false }
    if packetOwner != nil { lastBitAt = poller.timers.now }  // the device is still sending
    finish()
  }

  private func finish() {
    question = nil
    earliest = lastBitAt &+ (idle ?? .zero).nanoseconds
    poller.timers.cancel(timer)
    timer = nil
    delegate.exchangeIsOver()
    if poller.timers.now < earliest { wait(until: earliest) } else { delegate.nextMayBegin() }
  }

  // MARK: - Down

  /// Output for one client, in positions of the link's output.
  private struct Answer {
    let start: UInt64
    var end: UInt64
    let asker: UInt64
  }
  /// Oldest first. Bounded by the bytes that the ring keeps.
  private var answers: [Answer] = []
  // The packet under way, and its client if it is for one.
  private var packetStart: UInt64 = 0
  private var packetOwner: UInt64?
  /// The ring had no room for the rest of the packet: when its last byte came. What follows belongs to it.
  private var goesOnSince: UInt64?

  /// A packet of the device begins.
  func outputBegins(at position: UInt64) {
    if let since = goesOnSince {
      goesOnSince = nil
      if idle.map({ poller.timers.now &- since < $0.nanoseconds }) ?? true { return }
      packetOwner = nil
    }
    if let question, poller.timers.now >= question.deadline { timeIsOver() }
    packetStart = position
    packetOwner = question?.asker
  }

  /// The packet ends, in `ring`, with the byte that came at `lastByteAt`; or a part of it, if the ring is full and it
  /// `goesOn`.
  func outputEnded(at end: UInt64, in ring: RingBuffer?, lastByteAt: UInt64, goesOn: Bool) {
    goesOnSince = goesOn ? lastByteAt : nil
    guard let owner = packetOwner else { return }
    lastBitAt = max(lastBitAt, lastByteAt)
    if let last = answers.last, last.end == packetStart, last.asker == owner {
      answers[answers.count - 1].end = end
    } else {
      answers.append(Answer(start: packetStart, end: end, asker: owner))
    }
    if goesOn { return packetStart = end }
    packetOwner = nil
    guard question?.asker == owner, delegate.questionMayBeOver, !isEcho(packetStart..<end, in: ring) else { return }
    finish()
  }

  /// A line may return the question: that is no answer. But an answer may be equal to its question (Modbus, writing a
  /// register): whether the line does that shows in what follows.
  private func isEcho(_ packet: Range<UInt64>, in ring: RingBuffer?) -> Bool {
    guard let question, echoes != false else { return false }
    guard begins(packet, with: question, in: ring) else {
      echoes = question.wasRepeated  // an echo comes first
      return false
    }
    if question.wasRepeated || packet.count > question.length {
      echoes = true
      return false
    }
    self.question?.wasRepeated = true
    return true
  }

  private func begins(_ packet: Range<UInt64>, with question: Question, in ring: RingBuffer?) -> Bool {
    guard let ring, packet.count >= question.length, question.length == question.bytes.count else { return false }
    var place = 0
    while place < question.length {
      let position = packet.lowerBound &+ UInt64(place)
      let count = try? ring.look(from: position, limit: question.length - place) { run -> Int in
        run.elementsEqual(question.bytes[place..<place + run.count]) ? run.count : 0
      }
      guard let count, count > 0 else { return false }
      place += count
    }
    return true
  }

  /// The ring no longer keeps output before `position`.
  func forgetOutput(before position: UInt64) {
    guard let first = answers.first, first.end <= position else { return }
    answers.removeFirst(answers.firstIndex { $0.end > position } ?? answers.count)
  }

  /// Whether all output is for all clients.
  var isEmpty: Bool { answers.isEmpty && packetOwner == nil }

  /// The next output at or after `position` that is not for the session; the packet under way ends at `.max`.
  func hidden(from session: Session, at position: UInt64) -> Range<UInt64>? {
    guard session.accepted.role != .monitor else { return nil }
    var (low, high) = (0, answers.count)
    while low < high {
      let middle = (low + high) / 2
      if answers[middle].end <= position { low = middle + 1 } else { high = middle }
    }
    if let answer = answers[low...].first(where: { $0.asker != session.number }) { return answer.start..<answer.end }
    return packetOwner.map { $0 == session.number } ?? true ? nil : packetStart..<UInt64.max
  }

  /// How much of this output is not for the session.
  func countHidden(from session: Session, in output: Range<UInt64>) -> UInt64 {
    var (position, count) = (output.lowerBound, UInt64(0))
    while position < output.upperBound, let range = hidden(from: session, at: position) {
      let part = range.clamped(to: position..<output.upperBound)
      count &+= part.upperBound &- part.lowerBound
      position = max(part.upperBound, range.upperBound)
    }
    return count
  }
}
