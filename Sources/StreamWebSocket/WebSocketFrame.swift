// The names of RFC 6455's frames and ends, and how a frame's header is written.

import Glibc

/// Which end of the connection this is: clients mask what they send (RFC 6455 section 5.3).
public enum WebSocketRole: Sendable { case server, client }

enum Opcode: UInt8 {
  case continuation = 0
  case text = 1
  case binary = 2
  case close = 8
  case ping = 9
  case pong = 10

  var isControl: Bool { rawValue >= 8 }
}

public enum WebSocketMessageKind: Equatable, Sendable { case text, binary }

/// Why a connection ends, as a close frame says it (RFC 6455 section 7.4).
public struct WebSocketClose: Equatable, Sendable {
  /// Nil: the frame says nothing.
  public var code: UInt16?
  /// At most 123 bytes of it go out.
  public var reason: String

  public init(_ code: UInt16?, _ reason: String = "") {
    self.code = code
    self.reason = reason
  }

  public static let normal = WebSocketClose(1000)
  public static let goingAway = WebSocketClose(1001)

  /// The frame's payload.
  var payload: [UInt8] {
    guard let code else { return [] }
    var text = reason[...]
    while text.utf8.count > 123 { text.removeLast() }
    return [UInt8(code >> 8), UInt8(code & 255)] + text.utf8
  }

  /// What another side may say: codes that are defined, registered, or free for use. 1005, 1006 and 1015 are never sent.
  static func isAllowed(_ code: UInt16) -> Bool {
    switch code {
    case 1000...1003, 1007...1014, 3000...4999: true
    default: false
    }
  }
}

/// What the other side did against the protocol, or against a limit. The stream has said the code to it already.
public struct WebSocketFault: Error, Equatable, Sendable, CustomStringConvertible {
  public enum Code: UInt16, Sendable {
    /// A frame against RFC 6455.
    case protocolError = 1002
    /// A message of a kind that is not taken here.
    case unacceptable = 1003
    /// Text that is not UTF-8, or compressed bytes that are none.
    case invalidPayload = 1007
    /// A message that is longer than it may be.
    case messageTooBig = 1009
    /// The connection ended inside a frame or a message; nothing was said of it.
    case truncated = 1006
  }

  public let code: Code
  public let words: String

  init(_ code: Code, _ words: String) {
    self.code = code
    self.words = words
  }

  public var description: String { words }
}

/// The header of a frame, written to where it shall stand.
struct FrameHeader {
  static let longest = 14
  var isFinal = true
  var isCompressed = false
  var opcode: Opcode
  var length: Int
  /// In the order in which its bytes are sent; nil from servers.
  var mask: UInt32?

  /// Returns how many bytes it took, 2 to 14.
  func write(to place: UnsafeMutableRawPointer) -> Int {
    place.storeBytes(of: (isFinal ? 0x80 : 0) | (isCompressed ? 0x40 : 0) | opcode.rawValue, as: UInt8.self)
    let maskBit: UInt8 = mask == nil ? 0 : 0x80
    var size = 2
    switch length {
    case ..<126: place.storeBytes(of: maskBit | UInt8(length), toByteOffset: 1, as: UInt8.self)
    case ..<65_536:
      place.storeBytes(of: maskBit | 126, toByteOffset: 1, as: UInt8.self)
      place.storeBytes(of: UInt16(length).bigEndian, toByteOffset: 2, as: UInt16.self)
      size = 4
    default:
      place.storeBytes(of: maskBit | 127, toByteOffset: 1, as: UInt8.self)
      place.storeBytes(of: UInt64(length).bigEndian, toByteOffset: 2, as: UInt64.self)
      size = 10
    }
    if let mask {
      place.storeBytes(of: mask, toByteOffset: size, as: UInt32.self)
      size += 4
    }
    return size
  }

  /// Header and payload as they go out, masked where that is asked for.
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

/// Copies `count` bytes and takes the mask off on the way, or puts it on: the same (RFC 6455 section 5.3). `key` holds the mask's
/// bytes as they lie in memory, the next one to be used first. `to` may lie before `from` and overlap it.
@inline(__always)
func copyUnmasking(from: UnsafeRawPointer, to: UnsafeMutableRawPointer, count: Int, key: UInt32) {
  let wide = UInt64(key) | UInt64(key) << 32
  var place = 0
  // Four words at a time, all loaded before one is stored: the places may overlap, and the compiler makes vectors of it.
  while place &+ 32 <= count {
    let a = from.loadUnaligned(fromByteOffset: place, as: UInt64.self)
    let b = from.loadUnaligned(fromByteOffset: place &+ 8, as: UInt64.self)
    let c = from.loadUnaligned(fromByteOffset: place &+ 16, as: UInt64.self)
    let d = from.loadUnaligned(fromByteOffset: place &+ 24, as: UInt64.self)
    to.storeBytes(of: a ^ wide, toByteOffset: place, as: UInt64.self)
    to.storeBytes(of: b ^ wide, toByteOffset: place &+ 8, as: UInt64.self)
    to.storeBytes(of: c ^ wide, toByteOffset: place &+ 16, as: UInt64.self)
    to.storeBytes(of: d ^ wide, toByteOffset: place &+ 24, as: UInt64.self)
    place &+= 32
  }
  while place &+ 8 <= count {
    let word = from.loadUnaligned(fromByteOffset: place, as: UInt64.self) ^ wide
    to.storeBytes(of: word, toByteOffset: place, as: UInt64.self)
    place &+= 8
  }
  while place < count {
    let shift = UInt32(truncatingIfNeeded: place & 3) &* 8
    let byte = from.load(fromByteOffset: place, as: UInt8.self) ^ UInt8(truncatingIfNeeded: key &>> shift)
    to.storeBytes(of: byte, toByteOffset: place, as: UInt8.self)
    place &+= 1
  }
}

/// The mask as it stands for the byte `count` places further on.
@inline(__always)
func rotated(_ key: UInt32, by count: Int) -> UInt32 {
  let shift = UInt32(truncatingIfNeeded: count & 3) &* 8
  return shift == 0 ? key : key &>> shift | key &<< (32 &- shift)
}
