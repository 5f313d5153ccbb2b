// WebSocket's frames: the first byte says what was agreed upon, the rest is what the other side sends. However it is cut, and
// however little room there is, the same is heard.

@testable import StreamWebSocket

enum FramesProperty {
  private struct Heard {
    var bytes: [UInt8] = []
    var events: [String] = []
    var fault: WebSocketFault.Code?
  }

  // Little, since one of the three ways goes byte by byte.
  private static let longest = 1 << 12

  static func check(_ input: [UInt8]) throws(Broken) {
    guard let choice = input.first else { return }
    var settings = FrameDecoder.Settings()
    settings.role = choice & 1 == 0 ? .server : .client
    settings.longestMessage = longest
    settings.longestControlText = choice & 2 == 0 ? nil : 256
    settings.marksMessages = choice & 4 != 0
    if choice & 8 != 0 {
      var terms = DeflateTerms()
      terms.otherContextTakeover = choice & 16 == 0
      terms.otherWindowBits = 15
      settings.deflate = terms
    }
    let stream = Array(input.dropFirst())
    let room = settings.deflate == nil && !settings.marksMessages ? nil : 4096  // else it decodes where it lies
    let whole = try hear([stream], settings, room: room)
    let cut = try hear(stream.map { [$0] }, settings, room: 1)
    let size = Int(choice >> 5) * 7 + 3
    let pieces = stride(from: 0, to: stream.count, by: size).map { Array(stream[$0..<min($0 + size, stream.count)]) }
    let some = try hear(pieces, settings, room: 5)
    for other in [cut, some] {
      try hold(other.events == whole.events, "\(other.events) and \(whole.events)")
      // What of a broken message is handed out before it is known to be broken is the pieces' matter.
      if whole.fault == nil {
        try hold(other.fault == nil && other.bytes == whole.bytes, "other bytes in pieces")
      } else {
        let (short, long) =
          other.bytes.count < whole.bytes.count ? (other.bytes, whole.bytes) : (whole.bytes, other.bytes)
        try hold(long.starts(with: short), "other bytes before a fault")
        let isSame = other.fault == whole.fault || settings.deflate != nil && other.fault != nil
        try hold(isSame, "fault \(String(describing: other.fault)), \(String(describing: whole.fault))")
      }
    }
    try checkUTF8(stream)
  }

  private static func hear(_ pieces: [[UInt8]], _ settings: FrameDecoder.Settings, room: Int?) throws(Broken) -> Heard {
    var decoder = FrameDecoder(settings)
    var heard = Heard()
    for piece in pieces where heard.fault == nil {
      do {
        try hear(piece, &decoder, room, &heard)
      } catch let fault as WebSocketFault {
        heard.fault = fault.code
      } catch let broken as Broken {
        throw broken
      } catch {
        throw Broken("\(error)")
      }
    }
    return heard
  }

  private static func hear(_ piece: [UInt8], _ decoder: inout FrameDecoder, _ room: Int?, _ heard: inout Heard) throws {
    var source = piece
    var place = [UInt8](repeating: 0, count: room ?? 0)
    var used = 0
    var idle = 0
    while true {
      var progress = FrameDecoder.Progress()
      let stop = try source.withUnsafeMutableBytes { source in
        try place.withUnsafeMutableBytes { place in
          let rest = UnsafeMutableRawBufferPointer(rebasing: source[used...])
          let place = room == nil ? rest : place
          defer {
            used += progress.used
            heard.bytes += place[..<progress.made]
          }
          return try decoder.decode(rest, into: place, &progress)
        }
      }
      try hold(room != nil || progress.made <= progress.used, "more payload than bytes")
      idle = progress.used == 0 && progress.made == 0 ? idle + 1 : 0
      try hold(idle < 10, "it does not get on")
      try hold(decoder.control.count <= 125 && decoder.text.count <= 256 + 4096, "it keeps too much")
      switch stop {
      case .sourceIsUsed: return
      case .placeIsFull: continue
      case .control(let opcode): heard.events.append("\(opcode) \(decoder.control)")
      case .text: heard.events.append("text \(decoder.text)")
      case .messageEnd(let kind): heard.events.append("\(kind)")
      }
    }
  }

  private static func checkUTF8(_ bytes: [UInt8]) throws(Broken) {
    var check = UTF8Check()
    let isAccepted = bytes.withUnsafeBytes { check.accepts($0) } && check.isComplete
    try hold(
      isAccepted == (String(validating: bytes, as: UTF8.self) != nil), "the standard library thinks otherwise of UTF-8")
  }
}
