// zlib's raw deflate, piece by piece into places that others give: no buffer of its own but zlib's windows.

import ByteStreams
import CZlib
import Glibc

/// Expands what the other side compressed (RFC 7692 section 7.2.2).
final class Inflater {
  // zlib keeps a pointer to it.
  private let stream = UnsafeMutablePointer<z_stream>.allocate(capacity: 1)

  /// Throws when there is no memory for a window.
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

  /// Says how much of `source` it has used and how much it has put into `place`. A place that is full may have more behind it: call
  /// again, with nothing new if there is nothing. Throws when the bytes are not compressed ones.
  func expand(
    _ source: UnsafeRawBufferPointer, into place: UnsafeMutableRawBufferPointer
  ) throws(WebSocketFault) -> (used: Int, made: Int) {
    // Neither is kept between calls; zlib does not write to its input.
    stream.pointee.next_in = UnsafeMutablePointer(mutating: source.baseAddress?.assumingMemoryBound(to: UInt8.self))
    stream.pointee.avail_in = UInt32(source.count)
    stream.pointee.next_out = place.baseAddress?.assumingMemoryBound(to: UInt8.self)
    stream.pointee.avail_out = UInt32(place.count)
    expanding: while true {
      switch inflate(stream, Z_SYNC_FLUSH) {
      case Z_OK where stream.pointee.avail_in > 0 && stream.pointee.avail_out > 0: continue
      case Z_OK, Z_BUF_ERROR: break expanding
      case Z_STREAM_END:
        // A block that says it is the last one; others may follow, and refer to what came before (RFC 7692 section 7.2.3.4).
        inflateResetKeep(stream)
        if stream.pointee.avail_in == 0 { break expanding }
      default: throw WebSocketFault(.invalidPayload, "a compressed message is broken")
      }
    }
    return (source.count - Int(stream.pointee.avail_in), place.count - Int(stream.pointee.avail_out))
  }
}

/// Compresses what this side sends (RFC 7692 section 7.2.1).
final class Deflater {
  private let stream = UnsafeMutablePointer<z_stream>.allocate(capacity: 1)

  /// Throws when there is no memory: two to the power of `windowBits` + 2, and 32 KiB.
  init(windowBits: Int) throws(SystemError) {
    stream.initialize(to: z_stream())
    // Level 1 to 9 cost memory all the same; 3 is where zlib is three times as fast as at its usual 6, and a tenth worse.
    guard zlib_raw_deflate_init(stream, 3, Int32(windowBits), 6) == Z_OK else {
      stream.deallocate()
      throw SystemError("deflateInit2", ENOMEM)
    }
  }

  deinit {
    deflateEnd(stream)
    stream.deallocate()
  }

  /// The compressed bytes of the next part of a message, behind `space` bytes that are left free. A message's last part lacks
  /// the four bytes that the other side adds.
  func compress(_ run: UnsafeRawBufferPointer, endsMessage: Bool, space: Int) throws -> [UInt8] {
    let most = Int(deflateBound(stream, UInt(run.count))) + 16  // and a flush
    return try [UInt8](unsafeUninitializedCapacity: space + most) { buffer, count in
      stream.pointee.next_in = UnsafeMutablePointer(mutating: run.baseAddress?.assumingMemoryBound(to: UInt8.self))
      stream.pointee.avail_in = UInt32(run.count)
      stream.pointee.next_out = buffer.baseAddress! + space
      stream.pointee.avail_out = UInt32(most)
      // Z_BUF_ERROR says that there was nothing to flush: the part before has ended on a byte.
      let answer = deflate(stream, Z_SYNC_FLUSH)
      guard answer == Z_OK || answer == Z_BUF_ERROR, stream.pointee.avail_in == 0 else {
        throw InternalFault("websocket.deflate", "zlib's answer is \(answer)")
      }
      count = space + most - Int(stream.pointee.avail_out)
      if endsMessage {
        if count >= space + 4 {
          count -= 4
        } else {
          // Nothing is an empty block, of which the other side has the rest (RFC 7692 section 7.2.3.6).
          buffer[space] = 0
          count = space + 1
        }
      }
    }
  }

  /// The next message refers to nothing before it.
  func forget() { deflateReset(stream) }
}
