// The names of RFC 6455's frames and close codes, and the encoding of a frame's header.

import Glibc

/// Which end of the connection this is: clients mask their frames (RFC 6455 section 5.3).
package enum WebSocketRole: Sendable { case server, client }

enum Opcode: UInt8 {
  case continuation = 0
  case text = 1
  case binary = 2
  case close = 8
  case ping = 9
  case pong = 10

  var isControl: Bool { rawValue >= 8 }
}

package enum WebSocketMessageKind: Equatable, Sendable { case text, binary }

/// Why a connection ends, as in a close frame (RFC 6455 section 7.4).
package struct WebSocketClose: Equatable, Sendable {
  /// Nil: the frame has no code.
  package var code: UInt16?
  /// At most 123 bytes of it are sent.
  package var reason: String

  package init(_ code: UInt16?, _ reason: String = "") {
    self.code = code
    self.reason = reason
  }

  package static let normal = WebSocketClose(1000)

  /// The frame's payload.
  var payload: [UInt8] {
    guard let code else { return [] }
    var text = reason[...]
    while text.utf8.count > 123 { text.removeLast() }
    return [UInt8(code >> 8), UInt8(code & 255)] + text.utf8
  }

  /// Codes that the other side may send: defined, registered, or free for use. 1005, 1006 and 1015 are never sent.
  static func isAllowed(_ code: UInt16) -> Bool {
    switch code {
    case 1000...1003, 1007...1014, 3000...4999: true
    default: false
    }
  }
}

/// The other side violated the protocol, or a limit. The stream has already sent the code to it.
package struct WebSocketFault: Error, Equatable, Sendable, CustomStringConvertible {
  package enum Code: UInt16, Sendable {
    /// A frame that violates RFC 6455.
    case protocolError = 1002
    /// Text that is not UTF-8, or bytes that are not compressed data.
    case invalidPayload = 1007
    /// A message over the limit.
    case messageTooBig = 1009
    /// The connection ended inside a frame or a message; no code was sent.
    case truncated = 1006
  }

  package let code: Code
  package let words: String

  init(_ code: Code, _ words: String) {
    self.code = code
    self.words = words
  }

  package var description: String { words }
}

/// The header of a frame, written directly into the output.
struct FrameHeader {
  static let longest = 14
  var isFinal = true
  var isCompressed = false
  var opcode: Opcode
  var length: Int
  /// In the order in which its bytes are sent; nil for servers.
  var mask: UInt32?

  /// Returns the number of bytes written, 2 to 14.
  func write(to start: UnsafeMutableRawPointer) -> Int {
    start.storeBytes(of: (isFinal ? 0x80 : 0) | (isCompressed ? 0x40 : 0) | opcode.rawValue, as: UInt8.self)
    let maskBit: UInt8 = mask == nil ? 0 : 0x80
    var size = 2
    switch length {
    case ..<126: start.storeBytes(of: maskBit | UInt8(length), toByteOffset: 1, as: UInt8.self)
    case ..<65_536:
      start.storeBytes(of: maskBit | 126, toByteOffset: 1, as: UInt8.self)
      start.storeBytes(of: UInt16(length).bigEndian, toByteOffset: 2, as: UInt16.self)
      size = 4
    default:
      start.storeBytes(of: maskBit | 127, toByteOffset: 1, as: UInt8.self)
      start.storeBytes(of: UInt64(length).bigEndian, toByteOffset: 2, as: UInt64.self)
      size = 10
    }
    if let mask {
      start.storeBytes(of: mask, toByteOffset: size, as: UInt32.self)
      size += 4
    }
    return size
  }

  /// Header and payload as they are sent, masked if there is a mask.
  func bytes(with payload: UnsafeRawBufferPointer) -> [UInt8] {
    [UInt8](unsafeUninitializedCapacity: Self.longest + payload.count) { buffer, count in
      let start = UnsafeMutableRawPointer(buffer.baseAddress!)
      count = write(to: start)
      if let base = payload.baseAddress, !payload.isEmpty {
        copyUnmasking(from: base, to: start + count, count: payload.count, key: mask ?? 0)
        count += payload.count
      }
    }
  }
}

/// Copies `count` bytes and removes or adds the mask, which is the same operation (RFC 6455 section 5.3). `key` has the
/// mask's bytes in memory order, beginning with the next one to use. `to` may be before `from` and overlap it.
@inline(__always)
func copyUnmasking(from: UnsafeRawPointer, to: UnsafeMutableRawPointer, count: Int, key: UInt32) {
  let wide = UInt64(key) | UInt64(key) << 32
  var offset = 0
  // Four words at a time, all loaded before the first is stored: the ranges may overlap, and the compiler makes vectors
  // of it.
  while offset &+ 32 <= count {
    let a = from.loadUnaligned(fromByteOffset: offset, as: UInt64.self)
    let b = from.loadUnaligned(fromByteOffset: offset &+ 8, as: UInt64.self)
    let c = from.loadUnaligned(fromByteOffset: offset &+ 16, as: UInt64.self)
    let d = from.loadUnaligned(fromByteOffset: offset &+ 24, as: UInt64.self)
    to.storeBytes(of: a ^ wide, toByteOffset: offset, as: UInt64.self)
    to.storeBytes(of: b ^ wide, toByteOffset: offset &+ 8, as: UInt64.self)
    to.storeBytes(of: c ^ wide, toByteOffset: offset &+ 16, as: UInt64.self)
    to.storeBytes(of: d ^ wide, toByteOffset: offset &+ 24, as: UInt64.self)
    offset &+= 32
  }
  while offset &+ 8 <= count {
    let word = from.loadUnaligned(fromByteOffset: offset, as: UInt64.self) ^ wide
    to.storeBytes(of: word, toByteOffset: offset, as: UInt64.self)
    offset &+= 8
  }
  while offset < count {
    let shift = UInt32(truncatingIfNeeded: offset & 3) &* 8
    let byte = from.load(fromByteOffset: offset, as: UInt8.self) ^ UInt8(truncatingIfNeeded: key &>> shift)
    to.storeBytes(of: byte, toByteOffset: offset, as: UInt8.self)
    offset &+= 1
  }
}

/// The mask for the byte `count` places further on.
@inline(__always)
func rotated(_ key: UInt32, by count: Int) -> UInt32 {
  let shift = UInt32(truncatingIfNeeded: count & 3) &* 8
  return shift == 0 ? key : key &>> shift | key &<< (32 &- shift)
}
