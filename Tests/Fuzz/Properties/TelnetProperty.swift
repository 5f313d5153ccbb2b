// A telnet connection's bytes. Pieces and space must not change what a decoder finds, nor how much it keeps.

@testable import StreamTelnet

enum TelnetProperty {
  private struct Heard: Equatable {
    var bytes: [UInt8] = []
    /// Each with its place among the bytes.
    var tokens: [(place: Int, token: TelnetDecoder.Token)] = []

    static func == (one: Heard, other: Heard) -> Bool {
      one.bytes == other.bytes
        && one.tokens.elementsEqual(other.tokens) { $0.place == $1.place && $0.token == $1.token }
    }
  }

  /// The first byte selects how: bit 0 BINARY, bits 1 to 3 the size of pieces, bits 4 to 6 the space. (What does not
  /// end is too slow here: a test of the decoder has it.)
  static func check(_ input: [UInt8]) throws(Broken) {
    guard input.count > 1, let choice = input.first else { return }
    let stream = Array(input.dropFirst())
    let isBinary = choice & 1 == 1
    let whole = reference(stream, isBinary)
    let (size, room) = (Int(choice >> 1 & 7) + 1, Int(choice >> 4 & 7) + 1)
    for (size, room) in [(stream.count, nil), (size, nil), (size, room), (stream.count, room), (1, 1)] as [(Int, Int?)]
    {
      let heard = try decode(stream, isBinary, size: size, room: room)
      try hold(heard == whole, "in pieces of \(size) \(heard), and read plainly \(whole)")
    }
  }

  /// In pieces of `size` bytes: in place, or into runs of `room` bytes.
  private static func decode(_ stream: [UInt8], _ isBinary: Bool, size: Int, room: Int?) throws(Broken) -> Heard {
    var decoder = TelnetDecoder()
    decoder.isBinary = isBinary
    var heard = Heard()
    var source = stream
    var place = [UInt8](repeating: 0, count: room ?? 0)
    do {
      try source.withUnsafeMutableBytes { source in
        try place.withUnsafeMutableBytes { place in
          for start in stride(from: 0, to: source.count, by: size) {
            let piece = UnsafeMutableRawBufferPointer(rebasing: source[start..<min(start + size, source.count)])
            try decode(piece, &decoder, into: room == nil ? nil : place, &heard)
          }
        }
      }
    } catch let broken as Broken {
      throw broken
    } catch { throw Broken("\(error)") }
    return heard
  }

  private static func decode(
    _ piece: UnsafeMutableRawBufferPointer, _ decoder: inout TelnetDecoder,
    into place: UnsafeMutableRawBufferPointer?, _ heard: inout Heard
  ) throws {
    var used = 0
    while used < piece.count {
      var progress = TelnetDecoder.Progress()
      let rest = UnsafeMutableRawBufferPointer(rebasing: piece[used...])
      let place = place ?? rest
      let token = try decoder.decode(UnsafeRawBufferPointer(rest), into: place, &progress)
      used += progress.used
      heard.bytes += place[..<progress.made]
      try hold(progress.made <= progress.used, "more data than bytes")
      try hold(progress.used > 0 || token != nil, "it does not get on")
      guard let token else { continue }
      if case .subnegotiation(_, let content) = token {
        try hold(content.count <= TelnetDecoder.longestContent, "a subnegotiation of \(content.count) bytes")
      }
      heard.tokens.append((heard.bytes.count, token))
    }
  }

  /// The rules of RFC 854 and 855, in the plainest way and without bounds.
  private static func reference(_ stream: [UInt8], _ isBinary: Bool) -> Heard {
    var heard = Heard()
    var rest = stream[...]
    var lastWasCR = false
    while let byte = rest.popFirst() {
      if byte != 255 {
        if isBinary || !lastWasCR || byte != 0 { heard.bytes.append(byte) }
        lastWasCR = byte == 13
        continue
      }
      command: while let code = rest.popFirst() {
        switch code {
        case 255:
          heard.bytes.append(255)
          lastWasCR = false
        case 251...254:
          if let option = rest.popFirst(), let verb = TelnetCommand(rawValue: code) {
            heard.tokens.append((heard.bytes.count, .negotiation(verb, option: option)))
          }
        case 250:
          guard let option = rest.popFirst() else { break command }
          var content: [UInt8] = []
          while let byte = rest.popFirst() {
            guard byte == 255 else {
              content.append(byte)
              continue
            }
            if rest.first == 255 {
              content.append(255)
              rest.removeFirst()
              continue
            }
            guard rest.first == 240 else { continue command }  // a command instead of the end
            rest.removeFirst()
            if content.count <= TelnetDecoder.longestContent {
              heard.tokens.append((heard.bytes.count, .subnegotiation(option: option, content: content)))
            }
            break
          }
        default:
          if let command = TelnetCommand(rawValue: code) { heard.tokens.append((heard.bytes.count, .command(command))) }
        }
        break command
      }
    }
    return heard
  }
}
