// The packets of a hub's ring, for devices that send frames. These types see bytes and positions only. Downstream.swift
// uses them; `PacketScanner` finds the ends.

import ByteStreams
import Glibc

/// The ends of the packets in a ring, oldest first. Bounded: beyond `most`, every second end is dropped, so that two
/// packets count as one. No allocation once it has grown. The first mark is the start of the oldest packet.
struct PacketMarks {
  static let most = 1024
  private var ends: [UInt64] = []
  private var first = 0  // marks before it are dropped

  /// Adds an end, which must not be less than the last one.
  mutating func add(_ end: UInt64) {
    if ends.count == Self.most { makeRoom() }
    ends.append(end)
  }

  private mutating func makeRoom() {
    let isWorthIt = first >= Self.most / 4
    ends.removeFirst(first)
    first = 0
    if isWorthIt { return }
    // Keep the first mark, since a client may start at the oldest packet, and the last, where the complete packets end.
    var kept = 0
    for place in ends.indices where place == 0 || (ends.count - place) % 2 == 1 {
      ends[kept] = ends[place]
      kept += 1
    }
    ends.removeLast(ends.count - kept)
  }

  /// Drops marks before `position`. One at `position` stays, since a packet begins there.
  mutating func forget(before position: UInt64) {
    while first < ends.count && ends[first] < position { first += 1 }
    if first == ends.count {
      ends.removeAll(keepingCapacity: true)
      first = 0
    }
  }

  /// The first end at or after `position`.
  func first(from position: UInt64) -> UInt64? {
    var (low, high) = (first, ends.count)
    while low < high {
      let middle = (low + high) / 2
      if ends[middle] < position { low = middle + 1 } else { high = middle }
    }
    return low < ends.count ? ends[low] : nil
  }
}

/// The packets of a hub's ring: which are complete, and where each ends.
final class PacketCutter {
  let rule: PacketRule
  /// Which packets are for one client; nil: all are for all.
  private(set) var exchange: Exchange?
  /// Where the last complete packet ends. Bytes after it are held back.
  private(set) var end: UInt64
  /// Whether it matters when a byte arrived.
  var usesTime: Bool { rule.idle != nil || exchange != nil }
  /// When the last byte arrived; nanoseconds on the lane's clock. 0 if that does not matter.
  private(set) var lastByteAt: UInt64 = 0
  private var scanner = PacketScanner()
  private var scanned: UInt64
  private var marks = PacketMarks()

  /// Packets begin at `start`. Bytes kept before it, from `oldest` on, count as one packet.
  init(_ rule: PacketRule, at start: UInt64, oldest: UInt64, _ exchange: Exchange? = nil) {
    self.rule = rule
    self.exchange = exchange
    end = start
    scanned = start
    if oldest < start { marks.add(oldest) }
    marks.add(start)
  }

  func follow(_ exchange: Exchange) { self.exchange = exchange }

  /// Scans the bytes added since the last call, at `now`.
  func look(at ring: RingBuffer, _ now: UInt64) throws(InternalFault) {
    if scanned < ring.head { lastByteAt = now }
    while scanned < ring.head {
      let taken: Int
      if let exchange, !scanner.isInside { exchange.outputBegins(at: scanned) }
      do { taken = try ring.look(from: scanned) { scanner.take($0, by: rule) } } catch {
        throw error as? InternalFault ?? InternalFault("packets.look", "\(error)")
      }
      scanned &+= UInt64(taken)
      if !scanner.isInside {
        mark()
        exchange?.outputEnded(at: end, in: ring, lastByteAt: lastByteAt, goesOn: false)
      }
    }
  }

  /// Ends the packet under way, if there is one; or with `goesOn` a part of it, which the ring has no room to complete.
  func cut(in ring: RingBuffer?, goesOn: Bool) {
    guard scanner.isInside else { return }
    scanner.finish()
    mark()
    exchange?.outputEnded(at: end, in: ring, lastByteAt: lastByteAt, goesOn: goesOn)
  }

  private func mark() {
    end = scanned
    marks.add(end)
  }

  /// The end of the packet that contains `position` or begins there.
  func end(behind position: UInt64) -> UInt64 { marks.first(from: position &+ 1) ?? end }

  /// The start of the first packet that begins at or after `position`.
  func start(from position: UInt64) -> UInt64 { marks.first(from: position) ?? end }

  /// The ring no longer keeps bytes before `position`.
  func forget(before position: UInt64) { marks.forget(before: position) }
}

extension Config.Packets {
  var rule: PacketRule { PacketRule(max: max, idle: idle, delimiter: delimiter ?? []) }
}
