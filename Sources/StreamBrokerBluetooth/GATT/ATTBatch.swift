// The messages of an ATT socket as they come from the kernel: several in one call, for a device sends many small ones.

internal import CBluetooth
import Glibc

struct ATTBatch {
  /// In one call; they take 8 KiB.
  static let most = 16
  private static let distance = ATTMessage.mostMTU

  private var bytes = [UInt8](repeating: 0, count: most * distance)
  private var sizes = [UInt32](repeating: 0, count: most)
  private var endIsNext = false

  /// Instead of those before. Answers how many came, 0 at the end; below 0 there are none now, or there was an error: errno says it.
  mutating func receive(_ most: Int, from socket: Int32) -> Int {
    guard !endIsNext else { return 0 }
    while true {
      let count = Int(bluetooth_receive(socket, &bytes, Int32(min(most, Self.most)), Self.distance, &sizes))
      if count < 0 && errno == EINTR { continue }
      // One of no bytes is the end; before it may be others.
      guard count > 0, let end = sizes[..<count].firstIndex(of: 0) else { return count }
      endIsNext = true
      return end
    }
  }

  subscript(place: Int) -> ArraySlice<UInt8> {
    let start = place * Self.distance
    return bytes[start..<start + Int(sizes[place])]
  }

  /// Where the value lies that a notification of that attribute tells; nil for any other message.
  func value(at place: Int, of handle: UInt16) -> Range<Int>? {
    let start = place * Self.distance
    let end = start + Int(sizes[place])
    guard end - start >= 3, bytes[start] == ATTMessage.notificationOpcode,
      UInt16(bytes[start + 1]) | UInt16(bytes[start + 2]) << 8 == handle
    else { return nil }
    return start + 3..<end
  }

  subscript(value: Range<Int>) -> ArraySlice<UInt8> { bytes[value] }

  /// How many of the value's bytes had room in `run`.
  func copy(_ value: Range<Int>, into run: UnsafeMutableRawBufferPointer) -> Int {
    let count = min(value.count, run.count)
    if count > 0 {
      bytes.withUnsafeBytes { run.copyMemory(from: UnsafeRawBufferPointer(rebasing: $0[value.prefix(count)])) }
    }
    return count
  }
}
