// Bytes as they come → payload, compacted into the place that it is given, in one pass. Knows no socket: what is to be
// answered it tells by the reason for which it stops.

import ByteStreams
import Glibc

struct FrameDecoder {
  struct Settings {
    var role = WebSocketRole.server
    /// The longest message, in bytes as they are after expansion.
    var longestMessage = 16 << 20
    /// Text messages are control and don't stand among the bytes; the longest one. Nil: their bytes are as good as binary ones.
    var longestControlText: Int?
    /// Stops at the end of each message.
    var marksMessages = false
    var deflate: DeflateTerms?
  }

  enum Stop: Equatable {
    /// There is no more.
    case sourceIsUsed
    case placeIsFull
    /// A ping, pong or close frame is whole: `control`.
    case control(Opcode)
    /// A control text is whole: `text`.
    case text
    case messageEnd(WebSocketMessageKind)
  }

  struct Progress {
    /// Bytes of the source that it is done with.
    var used = 0
    /// Bytes of the place that are payload now. What is put there never catches up with what is used, so that both may be one.
    var made = 0
  }

  let settings: Settings
  /// The payload of the control frame that it stopped for.
  private(set) var control: [UInt8] = []
  /// The control text that it stopped for.
  var text: [UInt8] = []

  // The frame it is in.
  private var opcode = Opcode.binary
  var isFinal = true
  var left = 0  // payload still to come
  var key: UInt32 = 0
  private var isInFrame = false
  // A header that came in part; never whole.
  private var header: [UInt8] = []

  // The message it is in.
  var message: WebSocketMessageKind?
  private var isCompressed = false
  private var length = 0
  private var check = UTF8Check()

  // See FrameDecoder+Compressed.swift.
  var inflater: Inflater?
  // The place was full, so there may be more in the inflater than has come out.
  var mayHoldOutput = false
  // Of what each compressed message ends with, so much was expanded.
  var tailUsed = 0

  init(_ settings: Settings) { self.settings = settings }

  /// Nothing of a frame or message is missing.
  var isBetweenMessages: Bool { message == nil && !isInFrame && header.isEmpty }
  /// More may come out though nothing goes in.
  var holdsOutput: Bool { mayHoldOutput }

  /// Goes on until it must stop; `progress` counts on. The source is unmasked where it lies. Throws `WebSocketFault`, or
  /// `SystemError` when there is no memory; what was made before counts.
  mutating func decode(
    _ source: UnsafeMutableRawBufferPointer, into place: UnsafeMutableRawBufferPointer, _ progress: inout Progress
  ) throws -> Stop {
    while true {
      if isInFrame {
        let stop =
          opcode.isControl
          ? gatherControl(source, &progress) : try takePayload(source, into: place, &progress)
        if let stop { return stop }
      } else {
        if message == nil && header.isEmpty && !settings.marksMessages && inflater == nil {
          takeWholeFrames(source, into: place, &progress)
        }
        guard progress.used < source.count else { return .sourceIsUsed }
        guard try beginFrame(source, &progress) else { return .sourceIsUsed }
      }
    }
  }

  // MARK: - Headers

  /// Whole binary messages of one frame, one after the other: nearly all there is, and fast for that reason.
  private func takeWholeFrames(
    _ source: UnsafeMutableRawBufferPointer, into place: UnsafeMutableRawBufferPointer, _ progress: inout Progress
  ) {
    guard let from = source.baseAddress, let to = place.baseAddress else { return }
    let end = source.count
    let room = place.count
    let maskBit: UInt8 = settings.role == .server ? 0x80 : 0
    let maskSize = settings.role == .server ? 4 : 0
    let longest = settings.longestMessage
    var used = progress.used
    var made = progress.made
    while end &- used >= 4 {
      guard from.load(fromByteOffset: used, as: UInt8.self) == 0x82 else { break }
      let second = from.load(fromByteOffset: used &+ 1, as: UInt8.self) ^ maskBit
      var length = Int(second)
      var start = used &+ 2
      if second == 126 {
        length = Int(UInt16(bigEndian: from.loadUnaligned(fromByteOffset: start, as: UInt16.self)))
        guard length >= 126 else { break }
        start &+= 2
      } else if second > 126 {
        break
      }
      let payload = start &+ maskSize
      guard end &- payload >= length, room &- made >= length, length <= longest else { break }
      let key = maskSize == 0 ? 0 : from.loadUnaligned(fromByteOffset: start, as: UInt32.self)
      copyUnmasking(from: from + payload, to: to + made, count: length, key: key)
      used = payload &+ length
      made &+= length
    }
    progress.used = used
    progress.made = made
  }

  /// Reads a header, over several calls if it comes in parts. Whether it is whole; each of its bytes is judged as it comes.
  private mutating func beginFrame(_ source: UnsafeMutableRawBufferPointer, _ progress: inout Progress) throws -> Bool {
    while true {
      let size = try judgeHeader()
      if header.count == size { break }
      guard progress.used < source.count else { return false }
      header.append(source[progress.used])
      progress.used += 1
    }
    try openFrame()
    header.removeAll()
    return true
  }

  /// How long the header is, as far as its bytes tell; 2 at least.
  private func judgeHeader() throws(WebSocketFault) -> Int {
    guard let first = header.first else { return 2 }
    if header.count == 1 { try judge(first) }
    guard header.count >= 2 else { return 2 }
    let second = header[1]
    if header.count == 2 {
      guard (second & 0x80 != 0) == (settings.role == .server) else {
        throw WebSocketFault(
          .protocolError,
          settings.role == .server ? "a frame of the client is not masked" : "a frame of the server is masked")
      }
      if first & 0x08 != 0 && second & 0x7F > 125 {
        throw WebSocketFault(.protocolError, "a control frame is too long")
      }
    }
    let extra = second & 0x7F == 126 ? 2 : second & 0x7F == 127 ? 8 : 0
    return 2 + extra + (settings.role == .server ? 4 : 0)
  }

  private func judge(_ first: UInt8) throws(WebSocketFault) {
    guard let opcode = Opcode(rawValue: first & 0x0F) else {
      throw WebSocketFault(.protocolError, "a frame has the reserved opcode \(first & 0x0F)")
    }
    // RSV1 says that a message is compressed, on its first frame (RFC 7692 section 6).
    let mayBeCompressed = settings.deflate != nil && (opcode == .text || opcode == .binary)
    guard first & (mayBeCompressed ? 0x30 : 0x70) == 0 else {
      throw WebSocketFault(.protocolError, "a frame has reserved bits set")
    }
    if opcode.isControl {
      guard first & 0x80 != 0 else { throw WebSocketFault(.protocolError, "a control frame is fragmented") }
    } else if opcode == .continuation {
      guard message != nil else { throw WebSocketFault(.protocolError, "a continuation continues nothing") }
    } else if message != nil {
      throw WebSocketFault(.protocolError, "a message begins within another")
    }
  }

  private mutating func openFrame() throws {
    let short = Int(header[1] & 0x7F)
    var wide: UInt64 = 0
    let extra = short == 126 ? 2 : short == 127 ? 8 : 0
    for byte in header[2..<2 + extra] { wide = wide << 8 | UInt64(byte) }
    if extra > 0 {
      // RFC 6455 section 5.2: the shortest form, and the highest bit is 0.
      guard wide >= (extra == 2 ? 126 : 65_536), wide <= UInt64(Int64.max) else {
        throw WebSocketFault(.protocolError, "a frame's length is not in its shortest form")
      }
    } else {
      wide = UInt64(short)
    }
    key = 0
    for byte in header[(2 + extra)...].reversed() { key = key << 8 | UInt32(byte) }
    left = Int(wide)
    opcode = Opcode(rawValue: header[0] & 0x0F) ?? .binary
    isFinal = header[0] & 0x80 != 0
    isInFrame = true
    tailUsed = 0
    guard !opcode.isControl else { return control = [] }
    if opcode != .continuation { try openMessage() }
    if !isCompressed { try charge(left) }
  }

  private mutating func openMessage() throws {
    message = opcode == .text ? .text : .binary
    isCompressed = header[0] & 0x40 != 0
    length = 0
    check = UTF8Check()
    text = []
    if isCompressed && inflater == nil {
      inflater = try Inflater(windowBits: settings.deflate?.otherWindowBits ?? 15)
    }
  }

  var isControlText: Bool { message == .text && settings.longestControlText != nil }

  mutating func charge(_ more: Int) throws(WebSocketFault) {
    let most =
      isControlText ? min(settings.longestControlText ?? .max, settings.longestMessage) : settings.longestMessage
    guard more <= most - length else { throw WebSocketFault(.messageTooBig, "a message is longer than \(most) bytes") }
    length += more
  }

  // MARK: - Payload

  private mutating func gatherControl(_ source: UnsafeMutableRawBufferPointer, _ progress: inout Progress) -> Stop? {
    let count = min(left, source.count - progress.used)
    let part = unmask(source, count, &progress)
    control += part
    guard left == 0 else { return .sourceIsUsed }
    isInFrame = false
    return .control(opcode)
  }

  /// Takes the mask off the next `count` bytes where they lie, and is done with them.
  private mutating func unmask(
    _ source: UnsafeMutableRawBufferPointer, _ count: Int, _ progress: inout Progress
  ) -> UnsafeRawBufferPointer {
    let part = UnsafeMutableRawBufferPointer(rebasing: source[progress.used..<progress.used + count])
    if let base = part.baseAddress, count > 0 { copyUnmasking(from: base, to: base, count: count, key: key) }
    key = rotated(key, by: count)
    left -= count
    progress.used += count
    return UnsafeRawBufferPointer(part)
  }

  private mutating func takePayload(
    _ source: UnsafeMutableRawBufferPointer, into place: UnsafeMutableRawBufferPointer, _ progress: inout Progress
  ) throws -> Stop? {
    if isCompressed {
      if let stop = try expandPayload(source, into: place, &progress) { return stop }
    } else {
      var count = min(left, source.count - progress.used)
      if isControlText {
        let part = unmask(source, count, &progress)
        try judgeText(part)
        text += part
      } else {
        count = min(count, place.count - progress.made)
        if count == 0 && left > 0 { return progress.used < source.count ? .placeIsFull : .sourceIsUsed }
        if let from = source.baseAddress, let to = place.baseAddress, count > 0 {
          copyUnmasking(from: from + progress.used, to: to + progress.made, count: count, key: key)
          if message == .text { try judgeText(UnsafeRawBufferPointer(start: to + progress.made, count: count)) }
        }
        key = rotated(key, by: count)
        left -= count
        progress.used += count
        progress.made += count
      }
      if left > 0 { return progress.used < source.count ? .placeIsFull : .sourceIsUsed }
    }
    isInFrame = false
    return isFinal ? try endMessage() : nil
  }

  mutating func judgeText(_ part: UnsafeRawBufferPointer) throws(WebSocketFault) {
    guard check.accepts(part) else { throw WebSocketFault(.invalidPayload, "a text message is not UTF-8") }
  }

  private mutating func endMessage() throws -> Stop? {
    let wasControlText = isControlText
    let kind = message
    message = nil
    if isCompressed && settings.deflate?.otherContextTakeover == false { inflater = nil }
    isCompressed = false
    guard kind == .text else { return settings.marksMessages ? .messageEnd(.binary) : nil }
    guard check.isComplete else { throw WebSocketFault(.invalidPayload, "a text message ends within a character") }
    return wasControlText ? .text : settings.marksMessages ? .messageEnd(.text) : nil
  }
}
