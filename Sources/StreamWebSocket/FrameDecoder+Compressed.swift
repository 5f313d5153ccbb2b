// The payload of compressed messages (RFC 7692): the inflater writes it to the output, as far as there is room.

import ByteStreams
import Glibc

extension FrameDecoder {
  // The end of each compressed message, which is not sent.
  private static let tail: [UInt8] = [0, 0, 0xFF, 0xFF]

  /// Nil if the frame is complete, and with its last frame the message.
  mutating func expandPayload(
    _ source: UnsafeMutableRawBufferPointer, into output: UnsafeMutableRawBufferPointer, _ progress: inout Progress
  ) throws -> Stop? {
    while true {
      let count = min(left, source.count - progress.used)
      let isTail = left == 0 && isFinal && tailUsed < Self.tail.count
      guard count > 0 || isTail || mayHoldOutput else { return left == 0 ? nil : .sourceIsUsed }
      // A control text is not part of the output, so it needs a buffer for a moment.
      if isControlText {
        try withUnsafeTemporaryAllocation(byteCount: 4096, alignment: 1) { scratch in
          let made = try expand(source, count, into: scratch, &progress)
          text += scratch[..<made]
        }
      } else {
        guard progress.made < output.count else { return .outputIsFull }
        let rest = UnsafeMutableRawBufferPointer(rebasing: output[progress.made...])
        progress.made += try expand(source, count, into: rest, &progress)
      }
    }
  }

  private mutating func expand(
    _ source: UnsafeMutableRawBufferPointer, _ count: Int, into output: UnsafeMutableRawBufferPointer,
    _ progress: inout Progress
  ) throws -> Int {
    guard let inflater else { throw InternalFault("websocket.inflate", "a compressed message has no inflater") }
    let used: Int
    let made: Int
    mayHoldOutput = false  // also after a fault
    if left > 0 || !isFinal {
      let part = UnsafeMutableRawBufferPointer(rebasing: source[progress.used..<progress.used + count])
      // zlib may not take all bytes, and the rest must stay masked. So a copy is unmasked, and the rest is offered
      // again.
      let taken = min(count, 4096)
      (used, made) = try withUnsafeTemporaryAllocation(byteCount: 4096, alignment: 8) { clear in
        if let from = part.baseAddress, let to = clear.baseAddress {
          copyUnmasking(from: from, to: to, count: taken, key: key)
        }
        return try inflater.expand(UnsafeRawBufferPointer(rebasing: clear[..<taken]), into: output)
      }
      key = rotated(key, by: used)
      left -= used
      progress.used += used
    } else {
      (used, made) = try Self.tail.withUnsafeBytes { tail in
        try inflater.expand(UnsafeRawBufferPointer(rebasing: tail[tailUsed...]), into: output)
      }
      tailUsed += used
    }
    try charge(made)
    if message == .text { try judgeText(UnsafeRawBufferPointer(rebasing: output[..<made])) }
    mayHoldOutput = made == output.count
    return made
  }
}
