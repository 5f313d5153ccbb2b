// Input that a handle's lane has read and no task has taken yet. A value: bytes and the places that no read crosses. No
// lock, no clock.

import ByteStreams
import Glibc

/// ```
/// storage:  [ taken ……… | kept ………………… ]
///                    head        ↑ marks, as positions in the whole input
/// ```
struct InputBuffer {
  /// What a task asks for.
  enum Want {
    /// Any bytes, this many at most.
    case bytes(Int)
    /// Bytes up to and with a delimiter, this many at most. `scanned` counts kept bytes in which it does not begin.
    case until([UInt8], most: Int, scanned: Int)
    /// The next packet of the rule.
    case packet

    var isPacket: Bool { if case .packet = self { true } else { false } }
  }

  private var storage: [UInt8] = []
  private var head = 0
  /// Position of `storage[head]` in the whole input.
  private var position: UInt64 = 0
  /// Positions where the link was lost, oldest first: a line or a packet does not continue after one.
  private var breaks: ArraySlice<UInt64> = []
  /// Ends of packets, oldest first, if there is a rule.
  private var packetEnds: ArraySlice<UInt64> = []
  private var rule: PacketRule?
  private var scanner = PacketScanner()
  /// When the last byte arrived, in nanoseconds on the lane's clock.
  private var lastByteAt: UInt64 = 0

  var count: Int { storage.count - head }
  private var end: UInt64 { position + UInt64(count) }

  mutating func append(_ run: UnsafeRawBufferPointer, at now: UInt64) {
    if let idle = rule?.idle, scanner.isInside, now &- lastByteAt >= idle.nanoseconds { endPacket(at: end) }
    lastByteAt = now
    if head == storage.count {
      storage.removeAll(keepingCapacity: true)
      head = 0
    }
    storage.append(contentsOf: run)
    scan(run, at: end - UInt64(run.count))
  }

  /// The link was lost after the last byte.
  mutating func markBreak() {
    if rule != nil, scanner.isInside { endPacket(at: end) }
    // Marks are fewer than bytes, which are bounded.
    if count > 0, breaks.last != end { breaks.append(end) }
  }

  // MARK: - Packets

  /// From now on packets end by `rule`. Kept bytes are scanned too; the times of their arrival are unknown.
  mutating func cut(by rule: PacketRule) {
    self.rule = rule
    scanner = PacketScanner()
    packetEnds = []
    let kept = storage
    kept.withUnsafeBytes { all in
      var start = head
      for mark in breaks {
        let place = head + Int(mark - position)
        scan(UnsafeRawBufferPointer(rebasing: all[start..<place]), at: mark - UInt64(place - start))
        if scanner.isInside { endPacket(at: mark) }
        start = place
      }
      scan(UnsafeRawBufferPointer(rebasing: all[start...]), at: end - UInt64(all.count - start))
    }
  }

  /// `start` is the position of the first byte.
  private mutating func scan(_ run: UnsafeRawBufferPointer, at start: UInt64) {
    guard let rule else { return }
    var rest = run
    var at = start
    while !rest.isEmpty {
      let taken = scanner.take(rest, by: rule)
      at += UInt64(taken)
      if !scanner.isInside { packetEnds.append(at) }
      rest = UnsafeRawBufferPointer(rebasing: rest[taken...])
    }
  }

  /// Other reads may have taken all bytes of the packet: nothing is left of it then.
  private mutating func endPacket(at end: UInt64) {
    scanner.finish()
    if end > position { packetEnds.append(end) }
  }

  /// When the packet under way ends if no byte arrives; nil without a limit, and if nothing of it is kept.
  var idleEnd: UInt64? {
    guard let idle = rule?.idle, packetEnds.isEmpty, scanner.isInside, count > 0 else { return nil }
    let (end, overflow) = lastByteAt.addingReportingOverflow(idle.nanoseconds)
    return overflow ? nil : end
  }

  // MARK: - Taking

  /// The bytes for `want`; nil if they have not arrived. With `isLast` no more will, so the rest is enough. `want`
  /// remembers how far a delimiter was looked for.
  mutating func take(_ want: inout Want, at now: @autoclosure () -> UInt64, isLast: Bool) -> [UInt8]? {
    guard count > 0 else { return nil }
    let broken = breaks.first.map { Int($0 - position) }
    switch want {
    case .bytes(let most): return take(min(count, most, broken ?? .max))
    case .until(let delimiter, let most, let scanned):
      let limit = min(count, most, broken ?? .max)
      if let found = find(delimiter, from: scanned, within: limit) { return take(found) }
      if limit == most || limit == broken || isLast { return take(limit) }
      want = .until(delimiter, most: most, scanned: max(0, count - delimiter.count + 1))
      return nil
    case .packet:
      if let idleEnd, now() >= idleEnd { endPacket(at: end) }
      if let end = packetEnds.first { return take(Int(end - position)) }
      guard isLast else { return nil }
      scanner.finish()
      return take(count)
    }
  }

  /// The number of bytes up to and with the first `delimiter` that begins at `start` or later and ends within `limit`.
  private func find(_ delimiter: [UInt8], from start: Int, within limit: Int) -> Int? {
    guard let first = delimiter.first, limit >= delimiter.count else { return nil }
    return storage.withUnsafeBytes { all in
      let kept = UnsafeRawBufferPointer(rebasing: all[head..<(head + limit)])
      var place = start
      while place + delimiter.count <= limit {
        let room = limit - delimiter.count + 1 - place
        guard let found = memchr(kept.baseAddress! + place, Int32(first), room) else { return nil }
        place = UnsafeRawPointer(found) - kept.baseAddress!
        if kept[place..<(place + delimiter.count)].elementsEqual(delimiter) { return place + delimiter.count }
        place += 1
      }
      return nil
    }
  }

  private mutating func take(_ number: Int) -> [UInt8] {
    defer { forget(number) }
    if head == 0 && number == storage.count {
      let all = storage
      storage = []
      return all
    }
    return Array(storage[head..<(head + number)])
  }

  private mutating func forget(_ number: Int) {
    position += UInt64(number)
    if !storage.isEmpty { head += number }
    if head == storage.count {
      storage = []
      head = 0
    } else if head >= 32_768 {
      storage.removeSubrange(..<head)
      head = 0
    }
    while let mark = breaks.first, mark <= position { _ = breaks.popFirst() }
    while let mark = packetEnds.first, mark <= position { _ = packetEnds.popFirst() }
  }

  mutating func removeAll() { self = InputBuffer() }
}
