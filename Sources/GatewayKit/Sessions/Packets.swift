// Where packets end in a stream of bytes, for devices that speak in frames. Values that see bytes and positions only; what
// hubs do with them stands in Hub+Packets.swift (down) and PacketGate.swift (up).

import ByteStreams
import Glibc

/// What ends a packet: its last bytes (`delimiter`), its length (`max`), or a silence of `idle` behind it. Whichever comes
/// first; the next byte begins the next packet. Shared by all who look.
final class PacketRule {
  let max: Int
  let idle: Duration?
  fileprivate let delimiter: [UInt8]
  // For each place of the delimiter, how much of its beginning stands right before the next place (Knuth, Morris, Pratt):
  // a delimiter may be cut anywhere, and "\n\n\r" must be found in "\n\n\n\r".
  fileprivate let fallback: [Int]

  init(_ packets: Config.Packets) {
    max = packets.max ?? .max
    idle = packets.idle
    delimiter = packets.delimiter ?? []
    var fallback = [Int](repeating: 0, count: delimiter.count)
    var length = 0
    for place in delimiter.indices.dropFirst() {
      while length > 0 && delimiter[place] != delimiter[length] { length = fallback[length - 1] }
      if delimiter[place] == delimiter[length] { length += 1 }
      fallback[place] = length
    }
    self.fallback = fallback
  }
}

/// Follows the packets of one stream through portions of any size.
struct PacketScanner {
  /// Bytes of the packet that is under way.
  private(set) var length = 0
  private var matched = 0  // bytes of the delimiter that stand at its end

  var isInside: Bool { length > 0 }

  /// Takes in the front of `run`, up to the end of a packet, and says how long that front is. It is all of `run` when no
  /// packet ends in it. Afterwards `isInside` tells which.
  mutating func take(_ run: UnsafeRawBufferPointer, by rule: PacketRule) -> Int {
    let run = UnsafeRawBufferPointer(rebasing: run[..<min(run.count, rule.max - length)])
    if let end = delimiterEnd(in: run, rule) {
      finish()
      return end
    }
    length += run.count
    if length == rule.max { finish() }
    return run.count
  }

  /// The packet is over, by silence or because no more of it will come.
  mutating func finish() {
    length = 0
    matched = 0
  }

  private mutating func delimiterEnd(in run: UnsafeRawBufferPointer, _ rule: PacketRule) -> Int? {
    guard let first = rule.delimiter.first, let base = run.baseAddress else { return nil }
    var place = 0
    while place < run.count {
      if matched == 0 {
        guard let found = memchr(base + place, Int32(first), run.count - place) else { return nil }
        place = UnsafeRawPointer(found) - base
      }
      let byte = run[place]
      while matched > 0 && byte != rule.delimiter[matched] { matched = rule.fallback[matched - 1] }
      if byte == rule.delimiter[matched] { matched += 1 }
      place += 1
      if matched == rule.delimiter.count { return place }
    }
    return nil
  }
}

/// The ends of packets that are kept in a ring, oldest first. Bounded: beyond `most` every second one is forgotten, so
/// that two packets count as one. No allocation once it has grown. The first is where the oldest packet begins.
struct PacketMarks {
  static let most = 1024
  private var ends: [UInt64] = []
  private var first = 0  // those before it lie behind

  /// Ends are added in their order.
  mutating func add(_ end: UInt64) {
    if ends.count == Self.most { makeRoom() }
    ends.append(end)
  }

  private mutating func makeRoom() {
    let isWorthIt = first >= Self.most / 4
    ends.removeFirst(first)
    first = 0
    if isWorthIt { return }
    // The first one stays, or nobody could begin with the oldest packet; and the last, where the complete packets end.
    var kept = 0
    for place in ends.indices where place == 0 || (ends.count - place) % 2 == 1 {
      ends[kept] = ends[place]
      kept += 1
    }
    ends.removeLast(ends.count - kept)
  }

  /// Forgets those before `position`; one at `position` stays, since a packet begins there.
  mutating func forget(before position: UInt64) {
    while first < ends.count && ends[first] < position { first += 1 }
    if first == ends.count {
      ends.removeAll(keepingCapacity: true)
      first = 0
    }
  }

  /// The first end at `position` or behind it.
  func first(from position: UInt64) -> UInt64? {
    var (low, high) = (first, ends.count)
    while low < high {
      let middle = (low + high) / 2
      if ends[middle] < position { low = middle + 1 } else { high = middle }
    }
    return low < ends.count ? ends[low] : nil
  }
}

/// The packets of a hub's ring: what is complete, and where each ends.
final class PacketCutter {
  let rule: PacketRule
  /// Where the last complete packet ends. What lies behind it is held back.
  private(set) var end: UInt64
  /// When the last byte came; nanoseconds on the lane's clock.
  var lastByteAt: UInt64 = 0
  private var scanner = PacketScanner()
  private var scanned: UInt64
  private var marks = PacketMarks()

  /// Packets begin at `start`; what is kept before it, from `oldest` on, counts as one packet.
  init(_ rule: PacketRule, at start: UInt64, oldest: UInt64) {
    self.rule = rule
    end = start
    scanned = start
    if oldest < start { marks.add(oldest) }
    marks.add(start)
  }

  /// Looks at what was filled in since the last call.
  func look(at ring: RingBuffer) throws(InternalFault) {
    while scanned < ring.head {
      let taken: Int
      do { taken = try ring.look(from: scanned) { scanner.take($0, by: rule) } } catch {
        throw error as? InternalFault ?? InternalFault("packets.look", "\(error)")
      }
      scanned &+= UInt64(taken)
      if !scanner.isInside { mark() }
    }
  }

  /// Ends the packet that is under way, if there is one.
  func cut() {
    guard scanner.isInside else { return }
    scanner.finish()
    mark()
  }

  private func mark() {
    end = scanned
    marks.add(end)
  }

  /// Where the packet ends that `position` stands in or at the beginning of.
  func end(behind position: UInt64) -> UInt64 { marks.first(from: position &+ 1) ?? end }

  /// Where the first packet begins at `position` or behind it.
  func start(from position: UInt64) -> UInt64 { marks.first(from: position) ?? end }

  /// What lies before `position` is not kept any more.
  func forget(before position: UInt64) { marks.forget(before: position) }
}
