// Payload of messages that are compressed (RFC 7692): it goes through the inflater into the place, as far as there is room.

import ByteStreams
import Glibc

extension FrameDecoder {
  // What each compressed message ends with, though it is not sent.
  private static let tail: [UInt8] = [0, 0, 0xFF, 0xFF]

  /// Nil when the frame is through, and with the last one the message.
  mutating func expandPayload(
    _ source: UnsafeMutableRawBufferPointer, into place: UnsafeMutableRawBufferPointer, _ progress: inout Progress
  ) throws -> Stop? {
    while true {
      let count = min(left, source.count - progress.used)
      let isTail = left == 0 && isFinal && tailUsed < Self.tail.count
      guard count > 0 || isTail || mayHoldOutput else { return left == 0 ? nil : .sourceIsUsed }
      // A text has no place among the bytes: it gets one for a moment.
      if isControlText {
        try withUnsafeTemporaryAllocation(byteCount: 4096, alignment: 1) { scratch in
          let made = try expand(source, count, into: scratch, &progress)
          text += scratch[..<made]
        }
      } else {
        guard progress.made < place.count else { return .placeIsFull }
        let rest = UnsafeMutableRawBufferPointer(rebasing: place[progress.made...])
        progress.made += try expand(source, count, into: rest, &progress)
      }
    }
  }

  private mutating func expand(
    _ source: UnsafeMutableRawBufferPointer, _ count: Int, into place: UnsafeMutableRawBufferPointer,
    _ progress: inout Progress
  ) throws -> Int {
    guard let inflater else { throw InternalFault("websocket.inflate", "a compressed message has no inflater") }
    let used: Int
    let made: Int
    mayHoldOutput = false  // nor after a fault
    if left > 0 || !isFinal {
      let part = UnsafeMutableRawBufferPointer(rebasing: source[progress.used..<progress.used + count])
      // Only what zlib takes may lose its mask, so it takes all or is asked again with what is left of it.
      let taken = min(count, 4096)
      (used, made) = try withUnsafeTemporaryAllocation(byteCount: 4096, alignment: 8) { clear in
        if let from = part.baseAddress, let to = clear.baseAddress {
          copyUnmasking(from: from, to: to, count: taken, key: key)
        }
        return try inflater.expand(UnsafeRawBufferPointer(rebasing: clear[..<taken]), into: place)
      }
      key = rotated(key, by: used)
      left -= used
      progress.used += used
    } else {
      (used, made) = try Self.tail.withUnsafeBytes { tail in
        try inflater.expand(UnsafeRawBufferPointer(rebasing: tail[tailUsed...]), into: place)
      }
      tailUsed += used
    }
    try charge(made)
    if message == .text { try judgeText(UnsafeRawBufferPointer(rebasing: place[..<made])) }
    mayHoldOutput = made == place.count
    return made
  }
}
