// Model of one link's device output: a queue of bytes, where its packets end, and what a new client must and may get of
// it. Finds packet ends itself, in the simplest way, and allows the hub other ends only where a rule says so.

import Glibc
import StreamBroker

@testable import ByteStreams
@testable import GatewayKit

/// One for a shared link; one per client on per-client links.
final class LinkModel: StreamAccount {
  unowned let run: PolicyRun
  weak var hub: Hub?
  weak var link: Link?
  /// All that the hub has read.
  private(set) var down: [UInt8] = []
  var head: Int { down.count }
  /// Whether a packet ends before the byte at that position.
  private var isEnd: [Bool] = [true]
  /// Where the last packet ends.
  private(set) var lastEnd = 0
  /// Where packets end, oldest first. Before `mayMergeBefore` the ring held so many ends that two packets may count as
  /// one.
  private var ends: [Int] = []
  private(set) var mayMergeBefore = 0
  /// Before this position there was another packet setting, or none.
  private(set) var packetsFrom = 0
  private var lastByteAt: UInt64 = 0

  /// With `packets.exchange`: the client whose packet went to the device last.
  private var question: (client: UInt64, lastAt: UInt64, mayBeAnswered: Bool)?
  /// Of each packet of the device, by its first byte: the client that it must be for, or may be for; 0 is any one.
  private typealias Owner = (must: UInt64?, may: UInt64?)
  private var answers: [Int: Owner] = [:]
  /// The ring was full, so the packet has ended before its end: for whom the rest is. Not sure if it may have been its
  /// end.
  private var rest: (of: Owner?, isSure: Bool)?
  /// The first byte of the packet of each byte.
  private var packetOf: [Int] = []
  /// Some output may be for one client only.
  private(set) var hasExchanges = false
  private(set) var packets: Config.Packets?

  /// The stream that is open, or was last.
  private(set) var device: PlayedStream?
  /// Its end or failure was read, or it was closed.
  private(set) var deviceIsOver = true
  private var words: ArraySlice<UInt8> = []
  private(set) var openedAt: UInt64 = 0
  /// When the port has sent what it took, at its bit rate.
  private var sendsUntil: UInt64 = 0

  /// While there are no clients: the next one must get everything from `mustFrom` on, and may get it from `mayFrom` on.
  var mustFrom = 0
  var mayFrom = 0
  /// The earliest position that the backlog may keep.
  private var backlogFrom = 0
  private var backlog = 0

  /// Up: the last client to write to the device.
  private weak var writer: ClientModel?
  private var undecided: [(client: ClientModel, count: Int, moved: UInt64)] = []

  private(set) lazy var line = LineModel(run, self)
  var isShared: Bool { run.isShared }
  /// The device is open, and the hub uses it.
  var isAttached: Bool { device != nil && hub?.endpoint === device }
  var isAway: Bool { if let status = link?.status, case .waiting = status { true } else { false } }

  init(_ run: PolicyRun) {
    self.run = run
    follow(run.route.packets)
  }

  // MARK: - Packets

  /// In the middle of a reload: the hub has its new policy.
  func followReload() {
    if run.isReloading, let hub, hub.policy.packets != packets { follow(hub.policy.packets) }
  }

  /// From here on another packet setting holds, or none.
  private func follow(_ packets: Config.Packets?) {
    self.packets = packets
    packetsFrom = head
    lastEnd = head
    isEnd[head] = true
    writer = nil
    rest = nil
    // A question may still be answered as before, by the old time.
    question?.mayBeAnswered = true
    if packets?.exchange == nil { question = nil } else { hasExchanges = true }
    for client in run.clients { client?.upPacket.restart() }
  }

  private func append(_ byte: UInt8) {
    if packets != nil, head == lastEnd { packetBegins() }
    packetOf.append(packets == nil ? head : lastEnd)
    down.append(byte)
    isEnd.append(false)
    guard let packets else { return }
    let length = head - lastEnd
    if length == packets.max || ends(packets.delimiter, length) { end() }
  }

  private func ends(_ delimiter: [UInt8]?, _ length: Int) -> Bool {
    guard let delimiter, delimiter.last == down.last, delimiter.count <= length else { return false }
    return down.suffix(delimiter.count).elementsEqual(delimiter)
  }

  private func end(isFull: Bool = false, isOver: Bool = true) {
    rest = isFull ? (answers[lastEnd], !isOver) : nil
    if isOver, let client = answers[lastEnd]?.may, client == 0 || client == question?.client {
      question?.mayBeAnswered = true
    }
    lastEnd = head
    isEnd[head] = true
    ends.append(head)
  }

  // MARK: - Exchanges

  private func packetBegins() {
    if let rest {
      self.rest = nil
      if packets?.idle.map({ run.now - lastByteAt < $0.nanoseconds }) ?? true {
        return answers[head] = rest.isSure ? rest.of : (nil, 0)
      }
    }
    guard let time = packets?.exchange, let question else { return }
    let isDue = !question.mayBeAnswered && run.now < question.lastAt + time.nanoseconds
    answers[head] = (isDue ? question.client : nil, question.client)
  }

  /// The client's packet, or a part of it, went to the device.
  private func asks(_ client: ClientModel) {
    guard let time = packets?.exchange, isShared else { return }
    if let question {
      if question.client == client.number {
        if question.mayBeAnswered { client.upPacket.mayEnd() }
      } else if !question.mayBeAnswered, run.now < question.lastAt + time.nanoseconds, run.step != run.reloadedIn {
        run.fail("client \(client.number) asks before client \(question.client) has its answer")
      }
    }
    question = (client.number, run.now, false)
  }

  /// The last packet may have its answer, or has had the time for it: then it is over in any case.
  private func isAnswered(_ packets: Config.Packets) -> Bool {
    guard let time = packets.exchange, let question else { return false }
    return question.mayBeAnswered || run.now >= question.lastAt + time.nanoseconds
  }

  private func mayBe(_ packet: Int, for client: ClientModel) -> Bool {
    client.role == .monitor || (answers[packet]?.must).map { $0 == client.number } ?? true
  }

  /// The device's output at that place is the answer to another client.
  func isHidden(_ place: Int, from client: ClientModel) -> Bool {
    hasExchanges && place < head && !mayBe(packetOf[place], for: client)
  }

  /// None of this output need be for the client.
  func mayHide(_ output: Range<Int>, from client: ClientModel) -> Bool {
    guard hasExchanges, client.role != .monitor else { return false }
    return output.allSatisfy { place in answers[packetOf[place]]?.may.map { $0 != client.number } ?? false }
  }

  /// The hub keeps a bounded number of packet ends.
  private func noteCrowd() {
    let oldest = Int(hub?.downstream.output.ring?.oldest ?? 0)
    guard ends.count > Self.fewestMerged, head - oldest > Self.fewestMerged else { return }
    if ends[ends.count - Self.fewestMerged] >= oldest { mayMergeBefore = head }
  }
  private static let fewestMerged = PacketMarks.most * 3 / 4

  /// How long the port may still have to send, for packets that follow a silence. The driver says that it holds some
  /// bytes more than it took.
  var timeToSend: Duration {
    guard packets != nil, let line = device?.line else { return .zero }
    let more = UInt64(2 * line.unsentCount) &* line.settings.characterTime.nanoseconds
    let end = max(sendsUntil, line.sendsUntil)
    return .nanoseconds(Int64(clamping: (end > run.now ? end - run.now : 0) &+ more))
  }

  /// Checks the reason when the hub has ended a packet without a delimiter.
  func followCuts() {
    followReload()
    guard packets != nil, let hub, let cutter = hub.downstream.cutter else { return }
    let end = Int(cutter.end)
    guard end != lastEnd else { return }
    guard end == head, end > lastEnd else {
      return run.fail("the hub's packets end at \(end) where \(lastEnd) of \(head) was right")
    }
    let isSilent = packets?.idle.map { run.now - lastByteAt >= $0.nanoseconds } ?? false
    let isFull =
      head - lastEnd + (device?.largestUnit ?? 1) > hub.downstream.output.sizes.buffer
      + hub.downstream.output.sizes.backlog || hub.sessions.isEmpty  // all is kept then, for the next client
    let isOver =
      isSilent || deviceIsOver || isAway || hub.endpoint !== device || hub.upstream.writeFailure != nil
      || hub.sessions.isEmpty
      || run.step == run.reloadedIn || run.step == run.releasedIn
    if !isOver, !isFull { return run.fail("a packet ended at \(end) for no reason") }
    self.end(isFull: isFull, isOver: isOver)
  }

  /// Without packets, each byte counts as a packet.
  func isEnd(_ place: Int) -> Bool { packets == nil || place <= packetsFrom || isEnd[place] }

  /// What every client should have got in the end.
  var available: Int { packets == nil ? head : lastEnd }

  // MARK: - New clients

  /// Where a new client may begin.
  func starts(hub: Hub) -> ClosedRange<Int> {
    guard hub.downstream.output.ring != nil else { return head...head }
    let kept = hub.downstream.output.sizes.backlog
    if kept > 0 {
      let wanted = max(0, head - kept)
      var latest = min(max(wanted, backlogFrom), head)
      while latest < head, !isEnd[latest] || latest < max(packetsFrom, mayMergeBefore), packets != nil { latest += 1 }
      return min(wanted, available)...min(latest, max(available, wanted))
    }
    guard hub.sessions.isEmpty else { return available...available }
    if hub.policy.dropsWithoutClients { return available...available }
    return min(mayFrom, available)...min(mustFrom, available)
  }

  /// Called after each step.
  func look(_ hub: Hub) {
    if Int(hub.head) != head { run.fail("the hub is at \(hub.head), but has read \(head)") }
    followCuts()
    if hub.downstream.output.ring == nil {
      backlogFrom = head
      (mayFrom, mustFrom) = (available, available)
    }
    let hasChanged = hub.downstream.output.sizes.backlog != backlog
    if hasChanged {
      backlogFrom = max(backlogFrom, head - min(backlog, hub.downstream.output.sizes.backlog))
      backlog = hub.downstream.output.sizes.backlog
    }
    // Until the ring changed in the middle of this step, unread output was kept only as a backlog.
    let isKept = hub.sessions.isEmpty && backlog == 0 && !hasChanged
    if !isKept || hub.policy.dropsWithoutClients { mustFrom = available }
    if !isKept { mayFrom = Int(hub.downstream.output.oldest) }
  }

  /// Output that no client has read may be gone.
  func unheardIsDropped() { mustFrom = head }

  // MARK: - The device

  func opened(_ device: PlayedStream, _ words: [UInt8]) {
    followCuts()
    self.device = device
    if run.hasTelnet, let line = device.line { self.line.opened(line) }
    deviceIsOver = false
    (openedAt, sendsUntil) = (run.now, run.now)
    self.words = words[...]
    (question, rest) = (nil, nil)
    writer = nil  // a client's packet continues where it was, but need not be whole on the new device
  }

  func willRead(_ stream: PlayedStream, room: Int) {
    if room < stream.largestUnit { run.fail("a read of the device has room for \(room) of \(stream.largestUnit)") }
    settleUndecided()
    if stream === device { followCuts() }
  }

  func didRead(_ stream: PlayedStream, _ bytes: UnsafeRawBufferPointer) {
    if hub?.endpoint === stream { run.recording.passes(bytes, up: false) }
    guard stream === device, !deviceIsOver else { return }  // after its session, its output is dropped
    guard hub?.endpoint === stream else { return }  // the endpoint is draining
    followReload()
    // Clients whose end is in progress get none of this.
    for case let client? in run.clients where client.session?.isOver == true { client.takesNoMore() }
    for case let client? in run.clients { client.followEnd() }
    for byte in bytes { append(byte) }
    noteCrowd()
    lastByteAt = run.now
  }

  func takes(_ stream: PlayedStream, _ run: UnsafeRawBufferPointer, _ count: Int) {
    let owner = self.run
    settleUndecided()
    if stream === device { followCuts() }  // the silence that ends a packet may have let the next client ask
    if let line = stream.line {
      let before = max(sendsUntil, line.sendsUntil, owner.now)
      sendsUntil = before &+ UInt64(count) &* line.settings.characterTime.nanoseconds
    }
    if hub?.endpoint === stream { owner.recording.passes(UnsafeRawBufferPointer(rebasing: run[..<count]), up: true) }
    if stream.isNotifiedOfEnd { owner.fail("the device is written to behind our end") }
    guard stream === device else { return owner.fail("a device is written to that is not open") }
    if hub?.endpoint !== stream { words = [] }  // it is closing, so 'on-close' may come
    guard words.isEmpty else {
      if !words.starts(with: run[..<count]) { owner.fail("the first the device hears is not 'on-open'") }
      words = words.dropFirst(count)
      return
    }
    if PolicyKey.onClose.contains(run[0]) {
      if hub?.endpoint === stream { owner.fail("'on-close' is said to an open device") }
      return
    }
    guard hub?.endpoint === stream else { return owner.fail("a client's bytes go to a device that is closing") }
    if owner.hasTelnet { line.bytesGo() }
    // The bytes and the hub's queue show whose they are; only delimiters may belong to several clients.
    undecided.removeAll(keepingCapacity: true)
    for case let client? in owner.clients { client.followHeld() }
    for case let client? in owner.clients where client.link === self && client.offers(run) {
      undecided.append((client, count, client.session?.pump.moved ?? 0))
    }
    if undecided.isEmpty { return owner.fail("the device is sent bytes that are nobody's, or not in their order") }
    if undecided.count == 1 { evaluate(undecided.removeLast()) }
  }

  /// If several clients may have written, it was the one whose count of moved bytes has changed.
  func settleUndecided() {
    guard !undecided.isEmpty else { return }
    let wrote = undecided.first { ($0.client.session?.pump.moved ?? 0) != $0.moved }
    undecided.removeAll(keepingCapacity: true)
    if let wrote { evaluate(wrote) } else { run.fail("nobody counts what the device took") }
  }

  private func evaluate(_ written: (client: ClientModel, count: Int, moved: UInt64)) {
    let client = written.client
    if let writer, writer !== client, let packets, client.isShared, !writer.packetMayEnd(packets),
      !isAnswered(packets)
    {
      run.fail("a packet of client \(writer.number) is cut by client \(client.number)")
    }
    if run.tells { PoliciesProperty.report("     the device takes \(written.count) of client \(client.number)") }
    if writer !== client { writer?.upPacket.restart() }
    writer = client
    asks(client)
    client.delivered(written.count, packets)
  }

  func isFull(_ stream: PlayedStream) { run.deviceIsFullSince = run.deviceIsFullSince ?? run.now }
  func readsEnd(_ stream: PlayedStream) { if stream === device { over() } }
  func hangsUp(_ stream: PlayedStream) {}
  func hasFailed(_ stream: PlayedStream, reading: Bool) {
    if stream === device, stream.readFailure != nil, stream.left == 0 { over() }
  }
  func isFinished(_ stream: PlayedStream) {
    guard stream === device, !deviceIsOver, hub?.endpoint === stream else { return }
    settleUndecided()
    for case let client? in run.clients where client.link === self && !client.isUpDelivered {
      run.fail("the device is told an end before all of client \(client.number)'s bytes")
    }
  }
  func isClosed(_ stream: PlayedStream) {
    guard stream === device else { return }
    over()
    if run.hasTelnet, let line = stream.line { self.line.isClosed(line, of: stream) }
  }

  private func over() { deviceIsOver = true }
}

/// One client's packet on its way up.
struct UpPacket {
  private var bytes: [UInt8] = []
  /// Whether a packet is begun; unknown after an event that may have ended it.
  private(set) var isBegun = false
  private var isKnown = true

  mutating func restart() {
    bytes.removeAll(keepingCapacity: true)
    isBegun = false
    isKnown = true
  }

  /// The packet may be over: until the next certain end nothing is checked.
  mutating func mayEnd() { isKnown = false }
  var mustStayWhole: Bool { isBegun && isKnown }

  mutating func add(_ more: ArraySlice<UInt8>, _ packets: Config.Packets) {
    for byte in more {
      bytes.append(byte)
      let hasDelimiter = packets.delimiter.map { bytes.suffix($0.count).elementsEqual($0) } ?? false
      if hasDelimiter || bytes.count == packets.max {
        if hasDelimiter { isKnown = true }
        bytes.removeAll(keepingCapacity: true)
      }
    }
    isBegun = !bytes.isEmpty
  }
}
