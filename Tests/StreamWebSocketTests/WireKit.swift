// Frames written by hand, so that tests do not judge the codec by itself.

import ByteStreams
import StreamTestKit

@testable import StreamWebSocket

/// A frame as RFC 6455 section 5.2 draws it. With a `mask` as clients send it.
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

/// What a decoder made of bytes that came in pieces.
struct Heard: Equatable {
  var bytes: [UInt8] = []
  var events: [String] = []
  var fault: WebSocketFault.Code?
}

extension FrameDecoder {
  /// Decodes `pieces`, each where it lies, or with `room` into a place of so many bytes.
  static func hear(_ pieces: [[UInt8]], _ settings: Settings = Settings(), room: Int? = nil) -> Heard {
    var decoder = FrameDecoder(settings)
    var heard = Heard()
    do {
      for piece in pieces { try decoder.hear(piece, room: room, &heard) }
    } catch {
      heard.fault = (error as? WebSocketFault)?.code
    }
    return heard
  }

  private mutating func hear(_ piece: [UInt8], room: Int?, _ heard: inout Heard) throws {
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
            heard.bytes += place[..<progress.made]
            return stop
          } catch {
            heard.bytes += place[..<progress.made]
            throw error
          }
        }
      }
      switch stop {
      case .sourceIsUsed: return
      case .placeIsFull: precondition(progress.made > 0, "a full place is never empty")
      case .control(let opcode):
        // The stream goes on in the same run; here what was made so far is out, so the rest is a run of its own.
        heard.events.append("\(opcode) \(control.count)")
      case .text: heard.events.append("text " + String(decoding: text, as: UTF8.self))
      case .messageEnd(let kind): heard.events.append("\(kind)")
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
