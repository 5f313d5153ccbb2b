// What one link's device has said, as it should be: a queue of bytes, where its packets end, and what somebody who comes must and
// may get of it. Finds ends of packets by itself, in the plainest way, and allows the hub others only where a rule says so.

import Glibc

@testable import ByteStreams
@testable import GatewayKit

/// One for a shared link; one for each client that has a link of its own.
final class LinkModel: StreamAccount {
  unowned let run: PolicyRun
  weak var hub: Hub?
  weak var link: Link?
  /// What the hub has read, since the beginning.
  private(set) var down: [UInt8] = []
  var head: Int { down.count }
  /// Whether a packet ends before the byte of that place.
  private var isEnd: [Bool] = [true]
  /// Where the last packet ends.
  private(set) var lastEnd = 0
  /// Where packets end, oldest first; and up to where there were so many in the ring that two may count as one.
  private var ends: [Int] = []
  private(set) var mayMergeBefore = 0
  /// Before it there were other packets, or none.
  private(set) var packetsFrom = 0
  private var lastByteAt: UInt64 = 0
  private(set) var packets: Config.Packets?

  /// The stream that is open, or was last.
  private(set) var device: PlayedStream?
  /// Its end or its failure was read, or it was closed.
  private(set) var deviceIsOver = true
  private var words: ArraySlice<UInt8> = []

  /// While nobody is there: from where on the next one must get everything, and from where on it may.
  var mustFrom = 0
  var mayFrom = 0
  /// A backlog is kept from here on at most.
  private var backlogFrom = 0
  private var backlog = 0

  /// Up: who wrote last to the device.
  private weak var writer: ClientModel?
  private var pen: [(client: ClientModel, count: Int, moved: UInt64)] = []

  init(_ run: PolicyRun) {
    self.run = run
    follow(run.route.packets)
  }

  // MARK: - Packets

  /// In the middle of a reload: the hub has its new policy.
  func followReload() {
    if run.isReloading, let hub, hub.policy.packets != packets { follow(hub.policy.packets) }
  }

  /// Other packets, or none, from here on.
  private func follow(_ packets: Config.Packets?) {
    self.packets = packets
    packetsFrom = head
    lastEnd = head
    isEnd[head] = true
    writer = nil
    for client in run.clients { client?.upPacket.restart() }
  }

  private func append(_ byte: UInt8) {
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

  private func end() {
    lastEnd = head
    isEnd[head] = true
    ends.append(head)
  }

  /// The hub keeps a bounded number of ends.
  private func noteCrowd() {
    let oldest = Int(hub?.ring?.oldest ?? 0)
    guard ends.count > Self.fewestMerged, head - oldest > Self.fewestMerged else { return }
    if ends[ends.count - Self.fewestMerged] >= oldest { mayMergeBefore = head }
  }
  private static let fewestMerged = PacketMarks.most * 3 / 4

  /// The hub has ended a packet without a delimiter: is there a reason?
  func followCuts() {
    followReload()
    guard packets != nil, let hub, let cutter = hub.cutter else { return }
    let end = Int(cutter.end)
    guard end != lastEnd else { return }
    guard end == head, end > lastEnd else {
      return run.fail("the hub's packets end at \(end) where \(lastEnd) of \(head) was right")
    }
    let isSilent = packets?.idle.map { run.now - lastByteAt >= $0.nanoseconds } ?? false
    let isFull = head - lastEnd + (device?.largestUnit ?? 1) > hub.ringSizes.buffer + hub.ringSizes.backlog
    guard
      isSilent || isFull || deviceIsOver || hub.endpoint !== device || hub.writeFailure != nil
        || hub.sessions.isEmpty || run.step == run.reloadedIn
    else {
      return run.fail("a packet ended at \(end) for no reason")
    }
    self.end()
  }

  /// Without packets every byte is one.
  func isEnd(_ place: Int) -> Bool { packets == nil || place <= packetsFrom || isEnd[place] }

  /// What everybody should have got in the end.
  var available: Int { packets == nil ? head : lastEnd }

  // MARK: - Who comes

  /// Where a newcomer may begin.
  func starts(hub: Hub) -> ClosedRange<Int> {
    guard hub.ring != nil else { return head...head }
    let kept = hub.ringSizes.backlog
    if kept > 0 {
      let wanted = max(0, head - kept)
      var latest = min(max(wanted, backlogFrom), head)
      while latest < head, !isEnd[latest] || latest < max(packetsFrom, mayMergeBefore), packets != nil { latest += 1 }
      return min(wanted, available)...min(latest, max(available, wanted))
    }
    guard hub.sessions.isEmpty else { return available...available }
    if hub.policy.dropsUnheard { return available...available }
    return min(mayFrom, available)...min(mustFrom, available)
  }

  /// After each step.
  func look(_ hub: Hub) {
    if Int(hub.head) != head { run.fail("the hub is at \(hub.head), but has read \(head)") }
    followCuts()
    if hub.ring == nil {
      backlogFrom = head
      (mayFrom, mustFrom) = (available, available)
    }
    let hasChanged = hub.ringSizes.backlog != backlog
    if hasChanged {
      backlogFrom = max(backlogFrom, head - min(backlog, hub.ringSizes.backlog))
      backlog = hub.ringSizes.backlog
    }
    // Until the ring changed, in the middle of this step, what nobody heard was kept as a backlog only.
    let isKept = hub.sessions.isEmpty && backlog == 0 && !hasChanged
    if !isKept || hub.policy.dropsUnheard { mustFrom = available }
    if !isKept { mayFrom = Int(hub.ring?.oldest ?? hub.head) }
  }

  /// What nobody has heard may be gone.
  func unheardIsDropped() { mustFrom = head }

  // MARK: - The device

  func opened(_ device: PlayedStream, _ words: [UInt8]) {
    followCuts()
    self.device = device
    deviceIsOver = false
    self.words = words[...]
    writer = nil  // a client's packet goes on where it was, but need not be whole here
  }

  func willRead(_ stream: PlayedStream, room: Int) {
    if room < stream.largestUnit { run.fail("a read of the device has room for \(room) of \(stream.largestUnit)") }
    settlePen()
    if stream === device { followCuts() }
  }

  func didRead(_ stream: PlayedStream, _ bytes: UnsafeRawBufferPointer) {
    guard stream === device, !deviceIsOver else { return }  // behind its session nobody hears it
    guard hub?.endpoint === stream else { return }  // the last words are said to it
    followReload()
    // Nothing of this is for those whose end is under way.
    for case let client? in run.clients where client.session?.isOver == true { client.takesNoMore() }
    for case let client? in run.clients { client.followEnd() }
    for byte in bytes { append(byte) }
    noteCrowd()
    lastByteAt = run.now
  }

  func takes(_ stream: PlayedStream, _ run: UnsafeRawBufferPointer, _ count: Int) {
    let owner = self.run
    settlePen()
    if stream.isToldEnd { owner.fail("the device is written to behind our end") }
    guard stream === device else { return owner.fail("a device is written to that is not open") }
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
    // Whose bytes they are shows in them, and in where the hub keeps them; only delimiters may be several clients'.
    pen.removeAll(keepingCapacity: true)
    for case let client? in owner.clients { client.followHeld() }
    for case let client? in owner.clients where client.link === self && client.offers(run) {
      pen.append((client, count, client.session?.pump.moved ?? 0))
    }
    if pen.isEmpty { return owner.fail("the device is sent bytes that are nobody's, or not in their order") }
    if pen.count == 1 { settle(pen.removeLast()) }
  }

  /// Of several who may have written it was the one who has got rid of so much since.
  func settlePen() {
    guard !pen.isEmpty else { return }
    let wrote = pen.first { ($0.client.session?.pump.moved ?? 0) != $0.moved }
    pen.removeAll(keepingCapacity: true)
    if let wrote { settle(wrote) } else { run.fail("nobody counts what the device took") }
  }

  private func settle(_ written: (client: ClientModel, count: Int, moved: UInt64)) {
    let client = written.client
    if let writer, writer !== client, let packets, client.isShared, !writer.packetMayEnd(packets) {
      run.fail("a packet of client \(writer.number) is cut by client \(client.number)")
    }
    if writer !== client { writer?.upPacket.restart() }
    writer = client
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
    settlePen()
    for case let client? in run.clients where client.link === self && !client.isUpDelivered {
      run.fail("the device is told an end before all of client \(client.number)'s bytes")
    }
  }
  func isClosed(_ stream: PlayedStream) { if stream === device { over() } }

  private func over() { deviceIsOver = true }
}

/// A packet of one client's on its way up.
struct UpPacket {
  private var bytes: [UInt8] = []
  /// Whether a packet is begun; not known after something that may have ended it.
  private(set) var isBegun = false
  private var isKnown = true

  mutating func restart() {
    bytes.removeAll(keepingCapacity: true)
    isBegun = false
    isKnown = true
  }

  /// Perhaps it is over: until the next one that ends for sure nothing is said of it.
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
