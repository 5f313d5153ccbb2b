// WebSocket frames: the first byte selects the negotiated terms, the rest is the peer's input. Pieces and output space
// must not change the result.

@testable import StreamWebSocket

enum FramesProperty {
  private struct Heard {
    var bytes: [UInt8] = []
    var events: [String] = []
    var fault: WebSocketFault.Code?
  }

  // Short, since one of the three ways goes byte by byte.
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
    let room = settings.deflate == nil && !settings.marksMessages ? nil : 4096  // nil: decodes in place
    let whole = try handle([stream], settings, room: room)
    let cut = try handle(stream.map { [$0] }, settings, room: 1)
    let size = Int(choice >> 5) * 7 + 3
    let pieces = stride(from: 0, to: stream.count, by: size).map { Array(stream[$0..<min($0 + size, stream.count)]) }
    let some = try handle(pieces, settings, room: 5)
    for other in [cut, some] {
      try hold(other.events == whole.events, "\(other.events) and \(whole.events)")
      // How much of a broken message is returned before the fault depends on the pieces.
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

  private static func handle(_ pieces: [[UInt8]], _ settings: FrameDecoder.Settings, room: Int?) throws(Broken) -> Heard
  {
    var decoder = FrameDecoder(settings)
    var received = Heard()
    for piece in pieces where received.fault == nil {
      do {
        try handle(piece, &decoder, room, &received)
      } catch let fault as WebSocketFault {
        received.fault = fault.code
      } catch let broken as Broken {
        throw broken
      } catch {
        throw Broken("\(error)")
      }
    }
    return received
  }

  private static func handle(_ piece: [UInt8], _ decoder: inout FrameDecoder, _ room: Int?, _ received: inout Heard)
    throws
  {
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
            received.bytes += place[..<progress.made]
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
      case .outputIsFull: continue
      case .control(let opcode): received.events.append("\(opcode) \(decoder.control)")
      case .text: received.events.append("text \(decoder.text)")
      case .messageEnd(let kind): received.events.append("\(kind)")
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
