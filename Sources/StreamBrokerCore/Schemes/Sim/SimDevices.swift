// The two simplest devices: one returns its input, the other discards it.

import ByteStreams

/// sim://echo: returns every byte. Keeps at most one ring of bytes, then takes no more until they are read.
struct SimEcho: SimDevice {
  private let ring: RingBuffer
  private(set) var isFinished = false

  init() throws(SystemError) { ring = try RingBuffer(capacity: 64 * 1024) }

  var hasBytes: Bool { !ring.isEmpty }
  var hasSpace: Bool { ring.room > 0 }
  var hasEnded: Bool { isFinished && ring.isEmpty }
  var canHalfClose: Bool { true }

  mutating func give(_ run: UnsafeMutableRawBufferPointer) -> Int {
    let count = min(run.count, ring.count)
    _ = try? ring.drain(limit: count) { kept in
      run.copyMemory(from: kept)
      return .moved(kept.count)
    }
    return count
  }

  mutating func take(_ run: UnsafeRawBufferPointer) -> Int {
    let count = isFinished ? 0 : min(run.count, ring.room)
    guard count > 0 else { return 0 }
    _ = try? ring.fill { room in
      room.copyMemory(from: UnsafeRawBufferPointer(rebasing: run.prefix(count)))
      return .moved(count)
    }
    return count
  }

  mutating func finish() { isFinished = true }
}

/// sim://sink: takes everything and sends nothing.
struct SimSink: SimDevice {
  private(set) var hasEnded = false
  var hasBytes: Bool { false }
  var hasSpace: Bool { true }
  var canHalfClose: Bool { true }

  mutating func give(_ run: UnsafeMutableRawBufferPointer) -> Int { 0 }
  mutating func take(_ run: UnsafeRawBufferPointer) -> Int { hasEnded ? 0 : run.count }
  mutating func finish() { hasEnded = true }
}
