// Where packets end in a stream of bytes, for devices that send frames. These types see bytes only. The gateway's hub
// uses them for both directions, `StreamHandle.packets` for input.

import Glibc

/// What ends a packet: its last bytes (`delimiter`), its length (`max`), or a silence of `idle` after it, whichever
/// comes first. The next byte begins the next packet. All scanners of one direction share a rule.
package final class PacketRule: Sendable {
  package let max: Int
  package let idle: Duration?
  fileprivate let delimiter: [UInt8]
  // For each index of the delimiter: how many of its first bytes also end there (failure function of Knuth, Morris and
  // Pratt). A delimiter may be cut anywhere, and "\n\n\r" must be found in "\n\n\n\r".
  fileprivate let fallback: [Int]

  /// `max` is in bytes and more than 0. With none of the three, a packet never ends.
  package init(max: Int? = nil, idle: Duration? = nil, delimiter: [UInt8] = []) {
    self.max = max ?? .max
    self.idle = idle
    self.delimiter = delimiter
    var fallback = [Int](repeating: 0, count: delimiter.count)
    var length = 0
    for index in delimiter.indices.dropFirst() {
      while length > 0 && delimiter[index] != delimiter[length] { length = fallback[length - 1] }
      if delimiter[index] == delimiter[length] { length += 1 }
      fallback[index] = length
    }
    self.fallback = fallback
  }
}

/// Follows the packets of one stream through runs of any size.
package struct PacketScanner {
  package init() {}

  /// Bytes of the packet under way.
  package private(set) var length = 0
  private var matched = 0  // bytes of the delimiter at the packet's current end

  package var isInside: Bool { length > 0 }

  /// Consumes the front of `run`, up to the end of a packet, and returns the length of that front: all of `run` if no
  /// packet ends in it. Afterwards `isInside` shows which case it was.
  package mutating func take(_ run: UnsafeRawBufferPointer, by rule: PacketRule) -> Int {
    let run = UnsafeRawBufferPointer(rebasing: run[..<min(run.count, rule.max - length)])
    if let end = delimiterEnd(in: run, rule) {
      finish()
      return end
    }
    length += run.count
    if length == rule.max { finish() }
    return run.count
  }

  /// The packet is over, because of a silence or because no more of it will come.
  package mutating func finish() {
    length = 0
    matched = 0
  }

  private mutating func delimiterEnd(in run: UnsafeRawBufferPointer, _ rule: PacketRule) -> Int? {
    guard let first = rule.delimiter.first, let base = run.baseAddress else { return nil }
    var index = 0
    while index < run.count {
      if matched == 0 {
        guard let found = memchr(base + index, Int32(first), run.count - index) else { return nil }
        index = UnsafeRawPointer(found) - base
      }
      let byte = run[index]
      while matched > 0 && byte != rule.delimiter[matched] { matched = rule.fallback[matched - 1] }
      if byte == rule.delimiter[matched] { matched += 1 }
      index += 1
      if matched == rule.delimiter.count { return index }
    }
    return nil
  }
}
