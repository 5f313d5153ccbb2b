// zlib's raw deflate, in pieces, into the caller's buffers. It has no buffers except zlib's windows.

import ByteStreams
import CZlib
import Glibc

/// Expands what the other side compressed (RFC 7692 section 7.2.2).
final class Inflater {
  // zlib keeps a pointer to it.
  private let stream = UnsafeMutablePointer<z_stream>.allocate(capacity: 1)

  /// Throws if there is no memory for a window.
  init(windowBits: Int) throws(SystemError) {
    stream.initialize(to: z_stream())
    guard zlib_raw_inflate_init(stream, Int32(windowBits)) == Z_OK else {
      stream.deallocate()
      throw SystemError("inflateInit2", ENOMEM)
    }
  }

  deinit {
    inflateEnd(stream)
    stream.deallocate()
  }

  /// Returns how much of `source` it used and how much it wrote to `output`. If `output` is full, there may be more:
  /// call again, even without new input. Throws if the bytes are not compressed data.
  func expand(
    _ source: UnsafeRawBufferPointer, into output: UnsafeMutableRawBufferPointer
  ) throws(WebSocketFault) -> (used: Int, made: Int) {
    // zlib keeps neither pointer between calls, and does not write to its input.
    stream.pointee.next_in = UnsafeMutablePointer(mutating: source.baseAddress?.assumingMemoryBound(to: UInt8.self))
    stream.pointee.avail_in = UInt32(source.count)
    stream.pointee.next_out = output.baseAddress?.assumingMemoryBound(to: UInt8.self)
    stream.pointee.avail_out = UInt32(output.count)
    expanding: while true {
      switch inflate(stream, Z_SYNC_FLUSH) {
      case Z_OK where stream.pointee.avail_in > 0 && stream.pointee.avail_out > 0: continue
      case Z_OK, Z_BUF_ERROR: break expanding
      case Z_STREAM_END:
        // The block is marked as the last one, but others may follow, and refer to earlier bytes (RFC 7692 section
        // 7.2.3.4).
        inflateResetKeep(stream)
        if stream.pointee.avail_in == 0 { break expanding }
      default: throw WebSocketFault(.invalidPayload, "a compressed message is broken")
      }
    }
    return (source.count - Int(stream.pointee.avail_in), output.count - Int(stream.pointee.avail_out))
  }
}

/// Compresses what this side sends (RFC 7692 section 7.2.1).
final class Deflater {
  private let stream = UnsafeMutablePointer<z_stream>.allocate(capacity: 1)

  /// Needs 2^(`windowBits` + 2) bytes and 38 KiB. Throws if there is no memory.
  init(windowBits: Int) throws(SystemError) {
    stream.initialize(to: z_stream())
    // Levels 1 to 9 need the same memory. At 3 zlib is three times as fast as at its usual 6, and compresses a tenth
    // worse.
    guard zlib_raw_deflate_init(stream, 3, Int32(windowBits), 6) == Z_OK else {
      stream.deallocate()
      throw SystemError("deflateInit2", ENOMEM)
    }
  }

  deinit {
    deflateEnd(stream)
    stream.deallocate()
  }

  /// The compressed bytes of the next part of a message. The last part of a message lacks the four bytes that the other
  /// side adds.
  func compress(_ run: UnsafeRawBufferPointer, endsMessage: Bool) throws -> [UInt8] {
    let most = Int(deflateBound(stream, UInt(run.count))) + 16  // plus a flush
    return try [UInt8](unsafeUninitializedCapacity: most) { buffer, count in
      stream.pointee.next_in = UnsafeMutablePointer(mutating: run.baseAddress?.assumingMemoryBound(to: UInt8.self))
      stream.pointee.avail_in = UInt32(run.count)
      stream.pointee.next_out = buffer.baseAddress!
      stream.pointee.avail_out = UInt32(most)
      // Z_BUF_ERROR means that there was nothing to flush: the previous part ended on a byte.
      let answer = deflate(stream, Z_SYNC_FLUSH)
      guard answer == Z_OK || answer == Z_BUF_ERROR, stream.pointee.avail_in == 0 else {
        throw InternalFault("websocket.deflate", "zlib's answer is \(answer)")
      }
      count = most - Int(stream.pointee.avail_out)
      if endsMessage {
        if count >= 4 {
          count -= 4
        } else {
          // An empty part is an empty block, of which the other side adds the rest (RFC 7692 section 7.2.3.6).
          buffer[0] = 0
          count = 1
        }
      }
    }
  }
}
