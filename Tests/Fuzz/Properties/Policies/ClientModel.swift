// Model of one client: what it must and may receive, which of its bytes must and may reach the device, what is dropped,
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
  /// Nil for a client that only sends and reads bytes.
  private(set) var telnet: TelnetModel?
  /// Its bytes for the device, how many of them its session has read, and the others.
  var content: [UInt8] { telnet?.plain ?? stream.content }
  private var readCount: Int { telnet?.readCount ?? stream.readCount }
  private var left: Int { telnet?.left ?? stream.left }
  /// Input that the device has not taken.
  var inputLeft: Int { isOver ? 0 : left + readCount - taken + (meet()?.pump.count ?? 0) }
  private var takesBytes: Bool { telnet?.takesBytes ?? stream.takesBytes }
  let getsNotices: Bool
  var isShared: Bool { run.isShared }
  /// nil before the hub has the session. Kept after its end.
  private(set) var session: Session?
  private var banner: ArraySlice<UInt8>
  let joinedIn: Int

  // Down.
  private let starts: ClosedRange<Int>
  /// Where its output began, and the position of its next byte.
  private(set) var start: Int?
  private(set) var next = 0
  private var received = 0
  private let hasBanner: Bool
  /// The rest of our final text (notice or HTTP answer) once it has begun. It comes after everything else.
  private var notice: ArraySlice<UInt8>?
  /// The final text could not begin before the session was over.
  private var lastWordsMayCome = false
  /// Its stream broke or its session is over: it gets no byte from this position on.
  private var takesUpTo: Int?
  private var outputHasFailed = false
  /// The policy may drop output that it does not take.
  var mayLose: Bool
  private var fullSince: UInt64?
  private var fullFor: UInt64 = 0
  var hadCompany = false

  // Up.
  /// Its first bytes, which it sends in the next steps.
  var opening: ArraySlice<UInt8> = []
  private(set) var screen: ScreenModel
  /// Its end or failure came after bytes that its session has not read.
  private var endIsHeld = false
  private var hasHungUp = false
  /// It could take the answer to its request at once.
  private var couldBeAnswered = false
  private var reads: [(end: Int, step: Int)] = []
  /// How many of the bytes read have reached its session, and which of them the hub keeps, in order.
  private var taken = 0
  private var kept: [Range<Int>] = []
  private var readAndDiscarded: UInt64 = 0
  private var rights: [(from: Int, to: Int)] = []
  /// It could write as soon as it was connected, not only later in that step.
  var couldWriteAtOnce = false
  /// The step in which it lost the right to write: what is read in the rest of that step is dropped.
  private var lostRightIn: Int?
  private(set) var delivered = 0
  private var upNext = 0
  var upPacket = UpPacket()
  private(set) var wroteAt: UInt64 = 0
  /// The line's at that time.
  private var holdings = 0
  private(set) var activeAt: UInt64
  private var upActiveAt: UInt64

  // The end.
  private(set) var finishedAt: UInt64?
  /// The ending word with which it was sent away.
  var reported: Ending.Word?
  private(set) var ending: Ending.Word?
  var isOver: Bool { ending != nil }

  init(
    _ run: PolicyRun, _ link: LinkModel, number: UInt64, slot: Int, kind: UInt8, starts: ClosedRange<Int>,
    banner: [UInt8], isTelnet: Bool
  ) {
    self.run = run
    self.link = link
    self.number = number
    self.slot = slot
    self.starts = starts
    self.banner = isTelnet ? [] : banner[...]
    getsNotices = run.route.clients.notices
    hasBanner = !banner.isEmpty
    screen = ScreenModel(isOn: run.isShared && run.route.clients.refuseHttp && !isTelnet)
    role = kind & 1 == 0 ? .writer : .monitor
    joinedIn = run.step
    activeAt = run.now
    upActiveAt = run.now
    mayLose = run.route.clients.slow == .dropOldest
    if isTelnet { telnet = TelnetModel(self, banner: banner) }
    stream = PlayedStream(PlayedStream.Kind(rawValue: kind >> 1 & 15), account: telnet ?? self)
    if kind & 32 != 0 { stream.room = 0 }
    if kind & 64 != 0 { stream.room = 20 }
    if kind & 128 != 0, !isTelnet {
      let words = HTTPOpening.of(slot: slot)
      stream.content = words.atOnce
      opening = words.later[...]
      stream.arrived()
    }
  }

  func fail(_ rule: String) { run.fail("client \(number): \(rule)") }

  /// Finds its session as soon as the hub has it.
  func meet() -> Session? {
    if session == nil { session = link.hub?.sessions.first { $0.number == number } }
    return session
  }

  // MARK: - Down

  func takes(_ stream: PlayedStream, _ bytes: UnsafeRawBufferPointer, _ count: Int) {
    if stream.isNotifiedOfEnd { fail("is written to behind our end") }
    if !banner.isEmpty {
      if !banner.starts(with: bytes[..<count]) { fail("reads something else before the banner") }
      banner = banner.dropFirst(count)
      return
    }
    if let words = notice {
      if !words.starts(with: bytes[..<count]) { fail("reads something else behind our last words") }
      notice = words.dropFirst(count)
      return
    }
    if screen.state == .isRefused {
      let isHead = stream.content.starts(with: "HEAD ".utf8)
      if !ScreenModel.isAnswer(bytes, toHead: isHead) { fail("reads something else than the answer to its request") }
      notice = ArraySlice(bytes[count...])
      return
    }
    let endsAtOnce = meet() == nil && run.isReleased && link.isAway && run.route.device.absent == .close
    if isOver ? lastWordsMayCome : (session?.isOver == true || endsAtOnce) && isToldWhy {
      if !Self.notices.contains(where: { bytes.starts(with: $0.utf8) }) {
        fail("reads no reason, but \(String(decoding: bytes.prefix(80), as: UTF8.self).debugDescription)")
      }
      notice = ArraySlice(bytes[count...])
      return
    }
    if isOver { return fail("is written to behind its end") }
    activeAt = run.now
    isNoLongerFull()
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
    if link.isHidden(place, from: self) { fail("reads the answer to another client at \(place)") }
    next = place + count
    received += count
  }

  /// The position of its next byte: after all that it was given and has lost. The rest of a packet comes before a gap.
  private func place(in session: Session) -> Int {
    if session.down.hasRest { return next }
    // What is for another client is left out and not counted.
    if link.hasExchanges { return max(next, Int(session.down.cursor)) }
    return (start ?? 0) + received + Int(session.down.droppedAsSlow)
  }

  private func begin(_ session: Session) {
    guard start == nil else { return }
    let start = Int(session.down.cursor) - Int(session.down.droppedAsSlow)
    if !starts.contains(start), !link.hasExchanges || start < starts.lowerBound {
      fail("begins at \(start), not within \(starts)")
    }
    self.start = start
    next = start
  }

  private func skips(to place: Int) {
    if place < next { return fail("reads byte \(place) again, was at \(next)") }
    if !mayLose, !link.mayHide(next..<place, from: self) { return fail("loses \(place - next) bytes at \(next)") }
    if next != start, !link.isEnd(next) { fail("loses the rest of a packet at \(next)") }
    if !link.isEnd(place) { fail("loses the beginning of a packet before \(place)") }
  }

  /// Only a client that received nothing gets our line on why its session is over.
  private var isToldWhy: Bool {
    telnet == nil && run.route.clients.notices && isShared && run.closeWas && received == 0 && !hasBanner
      && !outputHasFailed
  }
  private static let notices = [
    "baudway: the device of x can't be opened", "baudway: the device of x is gone\r\n",
    "baudway: the device of x is released\r\n",
  ]

  func isNoLongerFull() {
    if let since = fullSince { fullFor += run.now - since }
    fullSince = nil
  }

  func isFull(_ stream: PlayedStream) { if fullSince == nil { fullSince = run.now } }

  var isBlocked: Bool { fullSince != nil }

  /// It has everything available now, and could take more.
  var waitsForMore: Bool {
    guard let session, start != nil, !isOver, session.leaving == nil, takesUpTo == nil else { return false }
    return place(in: session) >= link.available && takesBytes && !stream.isBroken
  }

  /// In the quiet phase nothing deliverable is left.
  func mustBeServed() {
    guard let session = meet(), !isOver, session.leaving == nil else { return }
    follow()
    if hasHungUp, session.pump.count == 0, taken == readCount { fail("is gone, and its session is not over") }
    guard !stream.isBroken, telnet?.resumesBehindInput != true else { return }
    begin(session)
    if takesUpTo == nil, place(in: session) != link.available, telnet?.isSuspended != true {
      fail("was given \(place(in: session)) of \(link.available) bytes, and nothing moves any more")
    }
    guard link.hub?.upstream.takesInput == true || link.hub?.upstream.dropsInput == true else { return }
    // An answer does not end while a client that has suspended holds up the device.
    if link.hasExchanges,
      run.telnetClients(of: link).contains(where: { !$0.isOver && $0.telnet?.isSuspendedForSession == true })
    {
      return
    }
    if taken < readCount, !session.pump.sourceEnded {
      fail("\(readCount - taken) of its bytes are held back, and nothing moves any more")
    }
    if left > 0, !session.pump.sourceEnded {
      fail("\(left) of its bytes are not read, and nothing moves any more")
    }
    if session.pump.count > 0 { fail("\(session.pump.count) of its bytes are kept, and nothing moves any more") }
    if finishedAt == nil { telnet?.mustBeAnswered() }
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
    link.settleUndecided()
  }

  func didRead(_ stream: PlayedStream, _ bytes: UnsafeRawBufferPointer) {
    if isOver { return }  // its stream is lingering
    activeAt = run.now
    follow()
    if telnet == nil { screen.reads(stream.content[..<(stream.readCount + bytes.count)], at: run.now) }
    if screen.state == .isRefused { couldBeAnswered = banner.isEmpty && stream.takesBytes }
  }

  /// Updates what its session has read, keeps and has dropped. The session first reads bytes (unless the screen holds
  /// them) and keeps or drops them; bytes it kept may be dropped later. Called before anything changes that, so bytes
  /// kept came before bytes dropped at once.
  func follow() {
    link.settleUndecided()
    sortReads()
  }

  /// Called while another client's bytes are written: updates a client that may just have been given held bytes and the
  /// right to write.
  func followHeld() { if taken < readCount { sortReads() } }

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
      let end = place - Int(pump.readAndDiscarded - readAndDiscarded)
      if end > taken { kept.append(taken..<end) }
      if reads.last?.step == run.step { reads[reads.count - 1].end = place } else { reads.append((place, run.step)) }
      taken = place
      readAndDiscarded = pump.readAndDiscarded
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
      let isRight = content.withUnsafeBytes { content in
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
    telnet?.delivers(bytes)
    if let packets {
      let silence = run.now - wroteAt
      if let idle = packets.idle {
        // On a serial line the silence begins later, with the last bit. On the next device a packet may go on.
        let isSure =
          (link.device?.line == nil || silence >= (idle + .seconds(2)).nanoseconds) && wroteAt > link.openedAt
          && holdings == link.device?.line?.holdings ?? 0
        if silence >= idle.nanoseconds { if isSure { upPacket.restart() } else { upPacket.mayEnd() } }
      } else if silence >= Duration.seconds(1).nanoseconds {
        upPacket.mayEnd()  // it may have waited, and then was not able to write
      }
      upPacket.add(content[bytes], packets)
    }
    wroteAt = run.now
    holdings = link.device?.line?.holdings ?? 0
    upNext = bytes.upperBound
  }

  var isUpDelivered: Bool {
    upNext == readCount || stream.isBroken || isOver || mayDropInput(upNext..<readCount)
  }

  /// Another writer goes on: this client's packet must be over, or no more of it may come.
  func packetMayEnd(_ packets: Config.Packets) -> Bool {
    if !upPacket.mustStayWhole || isOver || finishedAt != nil || stream.isBroken { return true }
    if session?.leaving != nil, upNext == readCount { return true }
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

  /// Whether a policy may have dropped these bytes.
  private func mayDropInput(_ bytes: Range<Int>) -> Bool {
    if run.mayDropAnyInput || bytes.upperBound <= telnet?.mayBePurgedUpTo ?? 0 { return true }
    for read in reads where read.end > bytes.lowerBound {
      if !rights.contains(where: { $0.from < read.step && read.step < $0.to }) { return true }
      if read.end >= bytes.upperBound { break }
    }
    return false
  }

  // MARK: - Telnet

  /// It had the right to write in that step or later.
  func couldWrite(since step: Int) -> Bool { rights.contains { $0.to >= step } }
  var everCouldWrite: Bool { !rights.isEmpty }
  var couldAlwaysWrite: Bool {
    couldWriteAtOnce && rights.count == 1 && rights[0].from == joinedIn && rights[0].to >= run.step
      && lostRightIn == nil
  }
  var canWriteNow: Bool { session?.up.mayWrite == true && couldAlwaysWrite }
  func keepsBytes(before place: Int) -> Bool { kept.contains { $0.lowerBound < place } }
  /// Its session is over, or will be once everything is delivered.
  var mayBeOver: Bool {
    stream.isNotifiedOfEnd || isOver || finishedAt != nil || stream.isBroken || session?.isOver == true
      || session?.leaving != nil
  }

  /// Begins its session; for a telnet client through a stream that reports what the session reads and writes.
  func begin(on poller: Poller, _ take: (any ByteStream) -> Void) {
    guard let telnet else { return take(stream) }
    let room = stream.room
    stream.room = 0  // the session writes nothing before the model can see it
    take(telnet.begin(on: poller))
    if let session = meet(), !session.isOver {
      let front = TelnetFront(session.client, self, telnet)
      session.exchangeClient(for: front)
      front.delegate = session
    }
    stream.room = room
  }

  // MARK: - The end

  func finishes() {
    guard !stream.hasEnded, stream.readFailure == nil else { return }
    telnet?.release()
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
  /// Both directions are over. Its session notices that only after the bytes that are still unread.
  private func meetsEnd() {
    if isOver { return }
    follow()
    screen.opens()
    endIsHeld = taken < readCount
    if endIsHeld { return }
    banner = []
    outputFails()
  }
  /// Called before the device sends more: whether its session has noticed the end.
  func followEnd() { if endIsHeld, session?.down.takesOutput == false { outputFails() } }
  private func outputFails() {
    outputHasFailed = true
    takesNoMore()
  }

  /// The route stops refusing HTTP.
  func screenEnds() { screen.opens() }

  /// Called after each step.
  func look() {
    follow()
    telnet?.look()
    guard !isOver, let session, !session.isOver else { return }
    if screen.state == .isRefused { return fail("has sent a request, and is not sent away") }
    if isHeldWhileLeaving { fail("is sent away, and held back as before") }
    let held = run.now - screen.since
    guard taken == 0, readCount > 0, screen.state == .isThrough || held >= ScreenModel.longest.nanoseconds else {
      return
    }
    fail("is held back since \(held / 1_000_000) ms")
  }
  private var isHeldWhileLeaving: Bool {
    guard screen.state == .holds, let leavingSince = session?.ending.leavingSince else { return false }
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
      let dropped = readCount - delivered + meant - received
      if link.hasExchanges ? report.dropped > dropped : report.dropped != dropped {
        fail("\(report.dropped) dropped bytes are counted, \(dropped) were")
      }
    }
    if mustHaveDelivered(word) {
      if telnet == nil || telnet!.mayBePurgedUpTo < readCount, upNext != readCount {
        fail("\(readCount - upNext) of its bytes are dropped at its end")
      }
      if word == .clientLeft, !stream.isBroken, left > 0 { fail("\(left) bytes are unread at its end") }
    }
    if isShared, !link.hasExchanges, takesUpTo == nil, word == .clientLeft, !mayLose, next < outputDue,
      fullFor == 0, fullSince == nil,
      telnet?.isSuspendedForSession != true
    {
      fail("ends with \(outputDue - next) bytes that it could have taken")
    }
  }

  /// The end of the output that is for it. A client that waits only for its input to be delivered gets no further output.
  private var outputDue: Int {
    guard let session, session.leaving != nil else { return link.available }
    return min(link.available, Int(session.ending.leavesAt))
  }

  /// It was sent away after its last bytes, and its device still accepts them.
  private func mustHaveSentOn(_ word: Ending.Word) -> Bool {
    guard let session, session.leaving?.word == word, session.up.mayWrite, link.hub?.upstream.canReachEndpoint == true
    else {
      return false
    }
    return !run.dropsByPolicy && run.leastDrain > .milliseconds(20)
  }

  private func sayLastWords(_ word: Ending.Word) {
    let areDue: Bool
    if screen.state == .isRefused {
      areDue = true
      if couldBeAnswered, notice == nil { fail("is not answered") }
    } else {
      areDue = isToldWhy && (word == .openFailed || word == .deviceLost)
      if areDue, notice == nil, stream.takesBytes { fail("is not told why") }
    }
    if !areDue, notice != nil { fail("reads a line of ours") }
    lastWordsMayCome = areDue
  }

  private func mayEnd(as word: Ending.Word) -> Bool {
    if screen.state == .isRefused { return word == .denied }
    return switch word {
    case .clientLeft, .noAnswer: finishedAt != nil || stream.isBroken || !stream.closeBehavior.canHalfClose
    case .clientLost: stream.isBroken
    case .endpointLeft: !isShared && link.deviceIsOver
    case .openFailed, .deviceLost: !isShared || run.closeWas
    case .tooSlow: mayBeTooSlow
    case .idle: run.idleLimits.contains { run.now - activeAt >= $0.nanoseconds }
    case .shutdown: run.isStopping
    default: word == reported
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
    guard isShared, word == .clientLeft || word == .clientLost, !run.mayDropAnyInput, !run.closeWas, reported == nil
    else {
      return false
    }
    guard rights.count == 1, couldWriteAtOnce, rights[0].from == joinedIn, rights[0].to >= reads.last?.step ?? 0,
      reads.isEmpty || lostRightIn != reads.last?.step
    else { return false }
    return run.now - max(finishedAt ?? upActiveAt, upActiveAt) < run.leastDrain.nanoseconds
  }
}
