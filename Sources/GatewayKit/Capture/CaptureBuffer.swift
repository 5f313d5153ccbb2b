// Carries a recording's events from its lane to the writer's queue: bounded, without locks, and without an allocation for
// an event. When it is full, events are dropped and counted.

import ByteStreams
import CLinux
import Glibc
import Synchronization

/// One thread appends, one thread drains. Events lie one after the other:
/// ```
///   time: 8   length: 4   kind: 1   lines: 1   padding: 2   bytes, padded to 8
/// ```
/// The memory is mapped twice in a row, so each event is one contiguous run.
final class CaptureBuffer: @unchecked Sendable {
  static let capacity = 1 << 20
  /// The longest run of bytes of one event; longer ones are cut.
  static let mostBytes = 32 << 10
  static let header = 16

  let capacity: UInt64
  private let memory: UnsafeMutableRawPointer
  // Positions only grow; tail ≤ head ≤ tail + capacity. `head` belongs to the appending thread, `tail` to the draining
  // one.
  private let head = Atomic<UInt64>(0)
  private let tail = Atomic<UInt64>(0)
  /// What was dropped and is not reported in the recording yet; of the appending thread.
  private(set) var unreported = CaptureLoss()
  let counts: CaptureCounts

  /// Throws mmap(2)'s error when the kernel has no memory. `capacity` is a multiple of the page size.
  init(capacity: Int = CaptureBuffer.capacity, counts: CaptureCounts = CaptureCounts()) throws(SystemError) {
    guard let memory = linux_map_mirrored(capacity) else { throw SystemError("mmap") }
    self.memory = memory
    self.capacity = UInt64(capacity)
    self.counts = counts
  }

  deinit { linux_unmap_mirrored(memory, Int(capacity)) }

  // MARK: - The appending thread

  var used: UInt64 { head.load(ordering: .relaxed) &- tail.load(ordering: .relaxed) }

  /// Adds an event, or drops it if there is no room. Longer data than `mostBytes` becomes several events.
  func append(_ kind: CaptureRecord.Kind, _ lines: ControlLines, at time: UInt64, _ bytes: UnsafeRawBufferPointer) {
    guard !bytes.isEmpty else { return add(kind, lines, time, bytes) }
    var rest = bytes
    while !rest.isEmpty {
      let piece = UnsafeRawBufferPointer(rebasing: rest.prefix(Self.mostBytes))
      rest = UnsafeRawBufferPointer(rebasing: rest.dropFirst(piece.count))
      add(kind, lines, time, piece)
    }
  }

  private func add(_ kind: CaptureRecord.Kind, _ lines: ControlLines, _ time: UInt64, _ bytes: UnsafeRawBufferPointer) {
    let room = capacity &- (head.load(ordering: .relaxed) &- tail.load(ordering: .acquiring))
    let needed = Self.size(bytes.count) + (unreported.isNothing ? 0 : Self.size(MemoryLayout<CaptureLoss>.size))
    guard needed <= room else { return drop(kind, bytes.count) }
    if !unreported.isNothing { withUnsafeBytes(of: takeUnreported()) { put(.lost, lines, time, $0) } }
    put(kind, lines, time, bytes)
  }

  /// Counts an event that does not get into the recording. `count` is that of its bytes.
  func drop(_ kind: CaptureRecord.Kind, _ count: Int) {
    unreported.add(kind, count)
    if kind.isData { counts.drop(count) }
  }

  /// Hands over what the recording does not report by itself, since no further event comes.
  func takeUnreported() -> CaptureLoss {
    defer { unreported = CaptureLoss() }
    return unreported
  }

  private func put(_ kind: CaptureRecord.Kind, _ lines: ControlLines, _ time: UInt64, _ bytes: UnsafeRawBufferPointer) {
    let position = head.load(ordering: .relaxed)
    let place = memory + Int(position % capacity)
    place.storeBytes(of: time, as: UInt64.self)
    place.storeBytes(of: UInt32(bytes.count), toByteOffset: 8, as: UInt32.self)
    place.storeBytes(of: kind.rawValue, toByteOffset: 12, as: UInt8.self)
    place.storeBytes(of: lines.rawValue, toByteOffset: 13, as: UInt8.self)
    if let start = bytes.baseAddress { memcpy(place + Self.header, start, bytes.count) }
    head.store(position &+ UInt64(Self.size(bytes.count)), ordering: .releasing)
  }

  private static func size(_ count: Int) -> Int { header + (count + 7) & ~7 }

  // MARK: - The draining thread

  /// Hands the oldest event to `body` and frees it afterwards. Returns false if there is none.
  func take(_ body: (CaptureRecord) -> Void) -> Bool {
    let position = tail.load(ordering: .relaxed)
    guard position != head.load(ordering: .acquiring) else { return false }
    let place = UnsafeRawPointer(memory) + Int(position % capacity)
    let count = Int(place.load(fromByteOffset: 8, as: UInt32.self))
    guard let kind = CaptureRecord.Kind(rawValue: place.load(fromByteOffset: 12, as: UInt8.self)) else {
      preconditionFailure("only `put` writes events")
    }
    body(
      CaptureRecord(
        kind: kind, lines: ControlLines(rawValue: place.load(fromByteOffset: 13, as: UInt8.self)),
        time: place.load(as: UInt64.self),
        bytes: UnsafeRawBufferPointer(start: count == 0 ? nil : place + Self.header, count: count)))
    tail.store(position &+ UInt64(Self.size(count)), ordering: .releasing)
    return true
  }
}

/// What a route has recorded since it started. Any thread may read it.
final class CaptureCounts: Sendable {
  private let written = Atomic<UInt64>(0)
  private let dropped = Atomic<UInt64>(0)

  func write(_ count: Int) { written.add(UInt64(count), ordering: .relaxed) }
  func drop(_ count: Int) { dropped.add(UInt64(count), ordering: .relaxed) }

  /// Bytes in files.
  var bytesWritten: UInt64 { written.load(ordering: .relaxed) }
  /// Bytes of clients and devices that are in no file.
  var bytesDropped: UInt64 { dropped.load(ordering: .relaxed) }
}
