// One client as it should fare: what it must and may be sent, what of its own must and may reach the device, what is dropped,
// and how its session may end.

import Glibc
import StreamBroker

@testable import ByteStreams
@testable import GatewayKit

final class ClientModel: StreamAccount {
  unowned let run: PolicyRun
  let link: LinkModel
  let number: UInt64
  let slot: Int
  let role: Config.Listen.Role
  private(set) var stream: PlayedStream!
  var isShared: Bool { run.isShared }
  /// Nil before the hub has it. Kept behind its end.
  private(set) var session: Session?
  private var banner: ArraySlice<UInt8>
  let joinedIn: Int

  // Down.
  private let starts: ClosedRange<Int>
  /// Where it began to listen, and the place of the next byte for it.
  private(set) var start: Int?
  private(set) var next = 0
  private var received = 0
  private let hasBanner: Bool
  /// What is left of the words of ours that come behind everything else, once they have begun.
  private var lastWords: ArraySlice<UInt8>?
  /// They could not begin before the session was over.
  private var lastWordsMayCome = false
  /// Its stream broke, or its session is over: no byte behind this place is for it.
  private var takesUpTo: Int?
  private var outputHasFailed = false
  /// The policy may drop what it does not take.
  var mayLose: Bool
  private var fullSince: UInt64?
  private var fullFor: UInt64 = 0
  var hadCompany = false

  // Up.
  /// What it says before anything else, in the steps to come.
  var opening: ArraySlice<UInt8> = []
  private(set) var screen: ScreenModel
  /// Its end, or its failure, was met behind bytes that its session has not read.
  private var endIsHeld = false
  private var hasHungUp = false
  /// It could take the answer to its request at once.
  private var couldBeAnswered = false
  private var reads: [(end: Int, step: Int)] = []
  /// How much of what was read has come to its session, and what the hub keeps of that, in order.
  private var taken = 0
  private var kept: [Range<Int>] = []
  private var skimmed: UInt64 = 0
  private var rights: [(from: Int, to: Int)] = []
  /// It could write as soon as it was there, and not only later in that step.
  var couldWriteAtOnce = false
  /// It may not write since: what is read in the rest of that step is dropped.
  private var lostRightIn: Int?
  private(set) var delivered = 0
  private var upNext = 0
  var upPacket = UpPacket()
  private(set) var wroteAt: UInt64 = 0
  private(set) var activeAt: UInt64
  private var upActiveAt: UInt64

  // The end.
  private(set) var finishedAt: UInt64?
  /// What it was told to go with.
  var told: Ending.Word?
  private(set) var ending: Ending.Word?
  var isOver: Bool { ending != nil }

  init(
    _ run: PolicyRun, _ link: LinkModel, number: UInt64, slot: Int, kind: UInt8, starts: ClosedRange<Int>,
    banner: [UInt8]
  ) {
    self.run = run
    self.link = link
    self.number = number
    self.slot = slot
    self.starts = starts
    self.banner = banner[...]
    hasBanner = !banner.isEmpty
    screen = ScreenModel(isOn: run.isShared && run.route.clients.refuseHttp)
    role = kind & 1 == 0 ? .writer : .monitor
    joinedIn = run.step
    activeAt = run.now
    upActiveAt = run.now
    mayLose = run.route.clients.slow == .dropOldest
    stream = PlayedStream(PlayedStream.Kind(rawValue: kind >> 1 & 15), account: self)
    if kind & 32 != 0 { stream.room = 0 }
    if kind & 64 != 0 { stream.room = 20 }
    if kind & 128 != 0 {
      let words = HTTPOpening.of(slot: slot)
      stream.content = words.atOnce
      opening = words.later[...]
      stream.arrived()
    }
  }

  private func fail(_ rule: String) { run.fail("client \(number): \(rule)") }

  /// Finds its session as soon as the hub has it.
  func meet() -> Session? {
    if session == nil { session = link.hub?.sessions.first { $0.number == number } }
    return session
  }

  // MARK: - Down

  func takes(_ stream: PlayedStream, _ bytes: UnsafeRawBufferPointer, _ count: Int) {
    if stream.isToldEnd { fail("is written to behind our end") }
    if !banner.isEmpty {
      if !banner.starts(with: bytes[..<count]) { fail("reads something else before the banner") }
      banner = banner.dropFirst(count)
      return
    }
    if let words = lastWords {
      if !words.starts(with: bytes[..<count]) { fail("reads something else behind our last words") }
      lastWords = words.dropFirst(count)
      return
    }
    if screen.state == .isRefused {
      let isHead = stream.content.starts(with: "HEAD ".utf8)
      if !ScreenModel.isAnswer(bytes, toHead: isHead) { fail("reads something else than the answer to its request") }
      lastWords = ArraySlice(bytes[count...])
      return
    }
    if isOver ? lastWordsMayCome : session?.isOver == true && isToldWhy {
      if !Self.notices.contains(where: { bytes.starts(with: $0.utf8) }) { fail("reads no reason") }
      lastWords = ArraySlice(bytes[count...])
      return
    }
    if isOver { return fail("is written to behind its end") }
    activeAt = run.now
    if let since = fullSince { fullFor += run.now - since }
    fullSince = nil
    guard let session = meet() else { return fail("reads before it has a session") }
    link.followCuts()
    begin(session)
    let place = place(in: session)
    if place != next { skips(to: place) }
    guard place + bytes.count <= link.head else { return fail("reads what the device has not said") }
    let isRight = link.down.withUnsafeBytes { memcmp($0.baseAddress! + place, bytes.baseAddress!, bytes.count) == 0 }
    if !isRight { return fail("reads something else than bytes \(place)..<\(place + bytes.count)") }
    if link.packets != nil {
      if place + bytes.count > link.lastEnd && session.leaving == nil { fail("reads a packet that is not complete") }
      for inside in place + 1..<max(place + 1, place + bytes.count)
      where inside > max(link.packetsFrom, link.mayMergeBefore) && link.isEnd(inside) {
        return fail("reads two packets in one write")
      }
    }
    next = place + count
    received += count
  }

  /// Of its next byte: behind what it was given and what it has lost, but that the rest of a packet goes out before a gap.
  private func place(in session: Session) -> Int {
    session.hasRest ? next : (start ?? 0) + received + Int(session.droppedAsSlow)
  }

  private func begin(_ session: Session) {
    guard start == nil else { return }
    let start = Int(session.cursor) - Int(session.droppedAsSlow)
    if !starts.contains(start) { fail("begins at \(start), not within \(starts)") }
    self.start = start
    next = start
  }

  private func skips(to place: Int) {
    if place < next { return fail("reads byte \(place) again, was at \(next)") }
    if !mayLose { return fail("loses \(place - next) bytes at \(next)") }
    if next != start, !link.isEnd(next) { fail("loses the rest of a packet at \(next)") }
    if !link.isEnd(place) { fail("loses the beginning of a packet before \(place)") }
  }

  /// A line of ours is for one that got nothing: why its session is over.
  private var isToldWhy: Bool {
    run.route.clients.notices && isShared && run.closeWas && received == 0 && !hasBanner && !outputHasFailed
  }
  private static let notices = ["baudway: the device of x can't be opened", "baudway: the device of x is gone\r\n"]

  func isFull(_ stream: PlayedStream) { if fullSince == nil { fullSince = run.now } }

  var isBlocked: Bool { fullSince != nil }

  /// It has got everything there is for now, and could take more.
  var waitsForMore: Bool {
    guard let session, start != nil, !isOver, session.leaving == nil, takesUpTo == nil else { return false }
    return next >= link.available && stream.takesBytes && !stream.isBroken
  }

  /// In the quiet: nothing is left that could be delivered.
  func mustBeServed() {
    guard let session = meet(), !isOver, session.leaving == nil else { return }
    follow()
    if hasHungUp, session.pump.count == 0, taken == stream.readCount { fail("is gone, and its session is not over") }
    guard !stream.isBroken else { return }
    begin(session)
    if takesUpTo == nil, place(in: session) != link.available {
      fail("was given \(place(in: session)) of \(link.available) bytes, and nothing moves any more")
    }
    guard link.hub?.takesInput == true || link.hub?.dropsInput == true else { return }
    if taken < stream.readCount, !session.pump.sourceEnded {
      fail("\(stream.readCount - taken) of its bytes are held back, and nothing moves any more")
    }
    if stream.left > 0, !session.pump.sourceEnded {
      fail("\(stream.left) of its bytes are not read, and nothing moves any more")
    }
    if session.pump.count > 0 { fail("\(session.pump.count) of its bytes are kept, and nothing moves any more") }
  }

  // MARK: - Up

  /// It may write in this step.
  func mayWrite() {
    if let last = rights.last, last.to >= run.step - 1, last.to != lostRightIn {
      rights[rights.count - 1].to = run.step
    } else {
      if !rights.isEmpty { upPacket.mayEnd() }
      rights.append((run.step, run.step))
    }
  }

  func losesRight() { if session?.isOver == false, rights.last?.to == run.step { lostRightIn = run.step } }

  func willRead(_ stream: PlayedStream, room: Int) {
    if room < stream.largestUnit { fail("a read has room for \(room) of \(stream.largestUnit)") }
    link.settlePen()
  }

  func didRead(_ stream: PlayedStream, _ bytes: UnsafeRawBufferPointer) {
    if isOver { return }  // it lingers
    activeAt = run.now
    follow()
    screen.reads(stream.content[..<(stream.readCount + bytes.count)], at: run.now)
    if screen.state == .isRefused { couldBeAnswered = banner.isEmpty && stream.takesBytes }
  }

  /// What was read has come to its session, unless it is held, and is kept there, or was dropped at once; and what was kept before may
  /// have been dropped since. Called before anything changes that, so what was kept came before what was dropped at once.
  func follow() {
    link.settlePen()
    sortReads()
  }

  /// While somebody's bytes go: who may be handed what was held, and has got a right by it, is looked at before.
  func followHeld() { if taken < stream.readCount { sortReads() } }

  private func sortReads() {
    guard let session = meet() else { return }
    let pump = session.pump
    let place = Int(pump.taken)
    if place > taken {
      if screen.state == .holds {
        let isLong = run.now - screen.since >= ScreenModel.longest.nanoseconds
        if !isLong, session.leaving == nil { fail("sends on what may become a request") }
        screen.opens()
      }
      let end = place - Int(pump.skimmed - skimmed)
      if end > taken { kept.append(taken..<end) }
      if reads.last?.step == run.step { reads[reads.count - 1].end = place } else { reads.append((place, run.step)) }
      taken = place
      skimmed = pump.skimmed
    }
    var dropped = kept.reduce(0) { $0 + $1.count } - pump.count
    while dropped > 0, let first = kept.first { dropped -= takeKept(min(dropped, first.count)).count }
    if dropped < 0 { fail("more of its bytes are kept than were read") }
  }

  private func takeKept(_ count: Int) -> Range<Int> {
    let first = kept[0]
    if first.count == count { kept.removeFirst() } else { kept[0] = first.lowerBound + count..<first.upperBound }
    return first.lowerBound..<first.lowerBound + count
  }

  /// Whether these could be its next bytes for the device.
  func offers(_ bytes: UnsafeRawBufferPointer) -> Bool {
    guard let session, session.pump.count > 0 else { return false }
    sortReads()
    var rest = bytes
    for part in kept where !rest.isEmpty {
      let count = min(part.count, rest.count)
      let isRight = stream.content.withUnsafeBytes { content in
        memcmp(content.baseAddress! + part.lowerBound, rest.baseAddress!, count) == 0
      }
      guard isRight else { return false }
      rest = UnsafeRawBufferPointer(rebasing: rest[count...])
    }
    return rest.isEmpty
  }

  func delivered(_ count: Int, _ packets: Config.Packets?) {
    var left = count
    while left > 0, let first = kept.first {
      let bytes = takeKept(min(left, first.count))
      left -= bytes.count
      delivered(bytes, packets)
    }
    upActiveAt = run.now
    delivered += count
  }

  private func delivered(_ bytes: Range<Int>, _ packets: Config.Packets?) {
    let place = bytes.lowerBound
    if place < upNext { return fail("its byte \(place) is sent again, was at \(upNext)") }
    if place > upNext, !mayDropInput(upNext..<place) { fail("its bytes \(upNext)..<\(place) are left out") }
    if place > upNext { upPacket.mayEnd() }
    checkRight(bytes)
    if let packets {
      let silence = run.now - wroteAt
      if let idle = packets.idle {
        if silence >= idle.nanoseconds { upPacket.restart() }
      } else if silence >= Duration.seconds(1).nanoseconds {
        upPacket.mayEnd()  // for somebody who waited, and then could not write
      }
      upPacket.add(stream.content[bytes], packets)
    }
    wroteAt = run.now
    upNext = bytes.upperBound
  }

  var isUpDelivered: Bool {
    upNext == stream.readCount || stream.isBroken || isOver || mayDropInput(upNext..<stream.readCount)
  }

  /// Another writer goes on: this one's packet must be over, or nothing more of it may come.
  func packetMayEnd(_ packets: Config.Packets) -> Bool {
    if !upPacket.mustStayWhole || isOver || finishedAt != nil || stream.isBroken { return true }
    if session?.leaving != nil, upNext == stream.readCount { return true }
    return run.now - wroteAt >= (packets.idle ?? .seconds(1)).nanoseconds || (rights.last?.to ?? 0) < run.step
      || run.step == lostRightIn || run.step == run.reloadedIn
  }

  private func checkRight(_ bytes: Range<Int>) {
    for read in reads where read.end > bytes.lowerBound {
      if !rights.contains(where: { $0.from <= read.step && read.step <= $0.to }) {
        return fail("its byte \(max(bytes.lowerBound, 0)) is sent, though it may not write")
      }
      if read.end >= bytes.upperBound { return }
    }
  }

  /// Whether a policy may have dropped what it sent.
  private func mayDropInput(_ bytes: Range<Int>) -> Bool {
    if run.mayDropAnyInput { return true }
    for read in reads where read.end > bytes.lowerBound {
      if !rights.contains(where: { $0.from < read.step && read.step < $0.to }) { return true }
      if read.end >= bytes.upperBound { break }
    }
    return false
  }

  // MARK: - The end

  func finishes() {
    guard !stream.hasEnded, stream.readFailure == nil else { return }
    stream.hasEnded = true
    finishedAt = run.now
    stream.arrived()
  }

  func takesNoMore() { if takesUpTo == nil { takesUpTo = link.head } }
  func hasFailed(_ stream: PlayedStream, reading: Bool) {
    if reading { return meetsEnd() }
    if banner.isEmpty { outputFails() } else { banner = [] }
  }
  func readsEnd(_ stream: PlayedStream) { screen.opens() }
  func hangsUp(_ stream: PlayedStream) {
    hasHungUp = true
    meetsEnd()
  }
  /// It is gone, for both directions. Its session learns of that behind what is held.
  private func meetsEnd() {
    if isOver { return }
    follow()
    screen.opens()
    endIsHeld = taken < stream.readCount
    if endIsHeld { return }
    banner = []
    outputFails()
  }
  /// Before the device says more: whether its session has learnt of it.
  func followEnd() { if endIsHeld, session?.takesOutput == false { outputFails() } }
  private func outputFails() {
    outputHasFailed = true
    takesNoMore()
  }

  /// The route refuses HTTP no more.
  func screenEnds() { screen.opens() }

  /// After each step.
  func look() {
    follow()
    guard !isOver, let session, !session.isOver else { return }
    if screen.state == .isRefused { return fail("has sent a request, and is not sent away") }
    if isHeldWhileLeaving { fail("is sent away, and held back as before") }
    let held = run.now - screen.since
    guard taken == 0, stream.readCount > 0, screen.state == .isThrough || held >= ScreenModel.longest.nanoseconds else {
      return
    }
    fail("is held back since \(held / 1_000_000) ms")
  }
  private var isHeldWhileLeaving: Bool {
    guard screen.state == .holds, let leavingSince = session?.leavingSince else { return false }
    return screen.since < leavingSince
  }
  func isFinished(_ stream: PlayedStream) {}
  func isClosed(_ stream: PlayedStream) {
    if !isOver, session?.isOver == false { fail("is closed before its session is over") }
  }

  func ended(_ report: SessionReport) {
    let word = report.ending.word
    if let ending { return fail("ends as \(word.rawValue) after \(ending.rawValue)") }
    follow()
    followEnd()
    if let session { begin(session) }
    if let since = fullSince { fullFor += run.now - since }
    ending = word
    sayLastWords(word)
    if screen.state == .isRefused, delivered > 0 { fail("has sent a request, of which \(delivered) bytes went") }
    if isHeldWhileLeaving || mustHaveSentOn(word) && screen.state == .holds {
      fail("leaves in order, and what was held of it is dropped")
    }
    if !mayEnd(as: word) { fail("ends as \(word.rawValue)") }
    if report.up != delivered { fail("\(report.up) bytes up are counted, \(delivered) went") }
    if report.down != received { fail("\(report.down) bytes down are counted, \(received) went") }
    if let start {
      let meant = (takesUpTo ?? link.head) - start
      let dropped = stream.readCount - delivered + meant - received
      if report.dropped != dropped { fail("\(report.dropped) dropped bytes are counted, \(dropped) were") }
    }
    if mustHaveDelivered(word) {
      if upNext != stream.readCount { fail("\(stream.readCount - upNext) of its bytes are dropped at its end") }
      if word == .clientLeft, !stream.isBroken, stream.left > 0 { fail("\(stream.left) bytes are unread at its end") }
    }
    if isShared, takesUpTo == nil, word == .clientLeft, !mayLose, next < link.available, fullFor == 0, fullSince == nil
    {
      fail("ends with \(link.available - next) bytes that it could have taken")
    }
  }

  /// It was sent away behind what it had sent, and its device takes that.
  private func mustHaveSentOn(_ word: Ending.Word) -> Bool {
    guard let session, session.leaving?.word == word, session.mayWrite, link.hub?.canReachEndpoint == true else {
      return false
    }
    return !run.dropsByPolicy && run.leastDrain > .milliseconds(20)
  }

  private func sayLastWords(_ word: Ending.Word) {
    let areDue: Bool
    if screen.state == .isRefused {
      areDue = true
      if couldBeAnswered, lastWords == nil { fail("is not answered") }
    } else {
      areDue = isToldWhy && (word == .openFailed || word == .deviceLost)
      if areDue, lastWords == nil, stream.takesBytes { fail("is not told why") }
    }
    if !areDue, lastWords != nil { fail("reads a line of ours") }
    lastWordsMayCome = areDue
  }

  private func mayEnd(as word: Ending.Word) -> Bool {
    if screen.state == .isRefused { return word == .denied }
    return switch word {
    case .clientLeft: finishedAt != nil || stream.isBroken || !stream.canHalfClose
    case .clientLost: stream.isBroken
    case .endpointLeft: !isShared && link.deviceIsOver
    case .openFailed, .deviceLost: !isShared || run.closeWas
    case .tooSlow: mayBeTooSlow
    case .idle: run.idleLimits.contains { run.now - activeAt >= $0.nanoseconds }
    case .shutdown: run.isStopping
    default: word == told
    }
  }

  private var mayBeTooSlow: Bool {
    switch run.route.clients.slow {
    case .block, .dropOldest: false
    case .automatic: hadCompany && fullFor >= 40_000_000
    case .disconnect: fullFor >= 40_000_000 && (hadCompany || fullFor >= 5_000_000_000)
    }
  }

  private func mustHaveDelivered(_ word: Ending.Word) -> Bool {
    guard isShared, word == .clientLeft || word == .clientLost, !run.mayDropAnyInput, !run.closeWas, told == nil else {
      return false
    }
    guard rights.count == 1, couldWriteAtOnce, rights[0].from == joinedIn, rights[0].to >= reads.last?.step ?? 0,
      reads.isEmpty || lostRightIn != reads.last?.step
    else { return false }
    return run.now - max(finishedAt ?? upActiveAt, upActiveAt) < run.leastDrain.nanoseconds
  }
}
