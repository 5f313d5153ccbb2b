// Frames written by hand, so that the codec is not tested against itself.

import ByteStreams
import StreamTestKit

@testable import StreamWebSocket

/// A frame as in RFC 6455 section 5.2; with a `mask` as clients send it.
func wire(
  _ opcode: UInt8, _ payload: [UInt8], final: Bool = true, reserved: UInt8 = 0, mask: [UInt8]? = [1, 2, 3, 4]
) -> [UInt8] {
  var bytes = [(final ? 0x80 : 0) | reserved << 4 | opcode]
  let maskBit: UInt8 = mask == nil ? 0 : 0x80
  switch payload.count {
  case ..<126: bytes.append(maskBit | UInt8(payload.count))
  case ..<65_536: bytes += [maskBit | 126, UInt8(payload.count >> 8), UInt8(payload.count & 255)]
  default: bytes += [maskBit | 127] + (0..<8).reversed().map { UInt8(truncatingIfNeeded: payload.count >> (8 * $0)) }
  }
  guard let mask else { return bytes + payload }
  return bytes + mask + payload.enumerated().map { $1 ^ mask[$0 % 4] }
}

/// What a decoder produced from bytes in pieces.
struct Heard: Equatable {
  var bytes: [UInt8] = []
  var events: [String] = []
  var fault: WebSocketFault.Code?
}

extension FrameDecoder {
  /// Decodes each of `pieces` in place, or with `room` into a buffer of that many bytes.
  static func handle(_ pieces: [[UInt8]], _ settings: Settings = Settings(), room: Int? = nil) -> Heard {
    var decoder = FrameDecoder(settings)
    var received = Heard()
    do {
      for piece in pieces { try decoder.handle(piece, room: room, &received) }
    } catch {
      received.fault = (error as? WebSocketFault)?.code
    }
    return received
  }

  private mutating func handle(_ piece: [UInt8], room: Int?, _ received: inout Heard) throws {
    var source = piece
    var place = [UInt8](repeating: 0, count: room ?? 0)
    var used = 0
    while true {
      var progress = Progress()
      defer { used += progress.used }
      let stop = try source.withUnsafeMutableBytes { source in
        try place.withUnsafeMutableBytes { place in
          let rest = UnsafeMutableRawBufferPointer(rebasing: source[used...])
          let place = room == nil ? rest : place
          do {
            let stop = try decode(rest, into: place, &progress)
            received.bytes += place[..<progress.made]
            return stop
          } catch {
            received.bytes += place[..<progress.made]
            throw error
          }
        }
      }
      switch stop {
      case .sourceIsUsed: return
      case .outputIsFull: precondition(progress.made > 0, "a full place is never empty")
      case .control(let opcode):
        // The stream continues in the same run. Here the bytes so far are already copied, so the rest is a new run.
        received.events.append("\(opcode) \(control.count)")
      case .text: received.events.append("text " + String(decoding: text, as: UTF8.self))
      case .messageEnd(let kind): received.events.append("\(kind)")
      }
    }
  }
}

/// Cuts `bytes` into pieces of 1 to `most` bytes.
func pieces(of bytes: [UInt8], most: Int, _ random: inout SeededRandom) -> [[UInt8]] {
  var pieces: [[UInt8]] = []
  var rest = bytes[...]
  while !rest.isEmpty {
    let piece = rest.prefix(Int.random(in: 1...most, using: &random))
    pieces.append(Array(piece))
    rest = rest.dropFirst(piece.count)
  }
  return pieces
}

/// A client's end of a WebSocket, frame by frame.
struct WireEnd: FarParty {
  let below: FarEnd

  func send(_ bytes: [UInt8]) throws { try below.send(wire(2, bytes)) }

  /// The payload of the next message frame; empty at the close frame.
  func receive() throws -> [UInt8] {
    while true {
      let head = try below.receive(exactly: 2)
      guard head.count == 2, head[0] & 15 != 8 else { return [] }
      let extended = try below.receive(exactly: head[1] < 126 ? 0 : head[1] == 126 ? 2 : 8)
      let length = extended.isEmpty ? Int(head[1]) : extended.reduce(0) { $0 << 8 | Int($1) }
      let payload = try below.receive(exactly: length)
      if head[0] & 8 == 0 { return payload }
    }
  }

  func finishWriting() { below.finishWriting() }
  func close() { below.close() }
}
