// The messages of an ATT socket, as the kernel returns them: several per call, since a device sends many small ones.

internal import CBluetooth
import Glibc

struct ATTBatch {
  /// Messages per call; their buffer takes 8 KiB.
  static let most = 16
  private static let distance = ATTMessage.mostMTU

  private var bytes = [UInt8](repeating: 0, count: most * distance)
  private var sizes = [UInt32](repeating: 0, count: most)
  private var endIsNext = false

  /// Replaces the batch. Returns the number of messages, 0 at the end. Below 0 there are none now, or there was an
  /// error: see errno.
  mutating func receive(_ most: Int, from socket: Int32) -> Int {
    guard !endIsNext else { return 0 }
    while true {
      let count = Int(bluetooth_receive(socket, &bytes, Int32(min(most, Self.most)), Self.distance, &sizes))
      if count < 0 && errno == EINTR { continue }
      // An empty message is the end; others may come before it.
      guard count > 0, let end = sizes[..<count].firstIndex(of: 0) else { return count }
      endIsNext = true
      return end
    }
  }

  subscript(index: Int) -> ArraySlice<UInt8> {
    let start = index * Self.distance
    return bytes[start..<start + Int(sizes[index])]
  }

  /// The range of the value in a notification of attribute `handle`; nil for any other message.
  func value(at index: Int, of handle: UInt16) -> Range<Int>? {
    let start = index * Self.distance
    let end = start + Int(sizes[index])
    guard end - start >= 3, bytes[start] == ATTMessage.notificationOpcode,
      UInt16(bytes[start + 1]) | UInt16(bytes[start + 2]) << 8 == handle
    else { return nil }
    return start + 3..<end
  }

  subscript(value: Range<Int>) -> ArraySlice<UInt8> { bytes[value] }

  /// Copies as much of the value as fits into `run`, and returns the number of bytes.
  func copy(_ value: Range<Int>, into run: UnsafeMutableRawBufferPointer) -> Int {
    let count = min(value.count, run.count)
    if count > 0 {
      bytes.withUnsafeBytes { run.copyMemory(from: UnsafeRawBufferPointer(rebasing: $0[value.prefix(count)])) }
    }
    return count
  }
}
