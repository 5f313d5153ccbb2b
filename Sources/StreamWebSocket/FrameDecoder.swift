// Decodes incoming bytes to payload, compacted into the given output, in one pass. Knows no socket: it stops with a
// reason if something must be answered.

import ByteStreams
import Glibc

struct FrameDecoder {
  struct Settings {
    var role = WebSocketRole.server
    /// The longest message, in bytes after expansion.
    var longestMessage = 16 << 20
    /// The longest control text: text messages are control then, and not part of the bytes. Nil: text messages are
    /// bytes, like binary ones.
    var longestControlText: Int?
    /// Whether to stop at the end of each message.
    var marksMessages = false
    var deflate: DeflateTerms?
  }

  enum Stop: Equatable {
    /// All of the source is used.
    case sourceIsUsed
    case outputIsFull
    /// A ping, pong or close frame is complete: `control`.
    case control(Opcode)
    /// A control text is complete: `text`.
    case text
    case messageEnd(WebSocketMessageKind)
  }

  struct Progress {
    /// Bytes of the source that are used.
    var used = 0
    /// Bytes of payload in the output. Output never overtakes the used part of the source, so both may be the same
    /// memory.
    var made = 0
  }

  let settings: Settings
  /// The payload of the control frame that it stopped for.
  private(set) var control: [UInt8] = []
  /// The control text that it stopped for.
  var text: [UInt8] = []

  // The current frame.
  private var opcode = Opcode.binary
  var isFinal = true
  var left = 0  // payload still to come
  var key: UInt32 = 0
  private var isInFrame = false
  // The part of a header that has arrived; never a whole one.
  private var header: [UInt8] = []

  // The current message.
  var message: WebSocketMessageKind?
  private var isCompressed = false
  private var length = 0
  private var check = UTF8Check()

  // See FrameDecoder+Compressed.swift.
  var inflater: Inflater?
  // The output was full, so the inflater may hold more.
  var mayHoldOutput = false
  // How much of the tail, which each compressed message omits, has been expanded.
  var tailUsed = 0

  init(_ settings: Settings) { self.settings = settings }

  /// Whether no frame or message is incomplete.
  var isBetweenMessages: Bool { message == nil && !isInFrame && header.isEmpty }
  /// Whether more output may come without new input.
  var holdsOutput: Bool { mayHoldOutput }

  /// Decodes until it must stop, and adds to `progress`. Unmasks in place where needed. Throws `WebSocketFault`, or
  /// `SystemError` if there is no memory; output made before that counts.
  mutating func decode(
    _ source: UnsafeMutableRawBufferPointer, into output: UnsafeMutableRawBufferPointer, _ progress: inout Progress
  ) throws -> Stop {
    while true {
      if isInFrame {
        let stop =
          opcode.isControl
          ? gatherControl(source, &progress) : try takePayload(source, into: output, &progress)
        if let stop { return stop }
      } else {
        if message == nil && header.isEmpty && !settings.marksMessages && inflater == nil {
          takeWholeFrames(source, into: output, &progress)
        }
        guard progress.used < source.count else { return .sourceIsUsed }
        guard try beginFrame(source, &progress) else { return .sourceIsUsed }
      }
    }
  }

  // MARK: - Headers

  /// Handles whole binary messages of one frame each: the usual case, and the fast path for that reason.
  private func takeWholeFrames(
    _ source: UnsafeMutableRawBufferPointer, into output: UnsafeMutableRawBufferPointer, _ progress: inout Progress
  ) {
    guard let from = source.baseAddress, let to = output.baseAddress else { return }
    let end = source.count
    let room = output.count
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

  /// Reads a header, over several calls if it arrives in parts. Checks each byte as it arrives. Returns whether the
  /// header is complete.
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

  /// The length of the header, as far as its bytes show; at least 2.
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
    // RSV1 marks a message as compressed, on its first frame (RFC 7692 section 6).
    let mayBeCompressed = settings.deflate != nil && (opcode == .text || opcode == .binary)
    guard first & (mayBeCompressed ? 0x30 : 0x70) == 0 else {
      throw WebSocketFault(.protocolError, "a frame has reserved bits set")
    }
    if opcode.isControl {
      guard first & 0x80 != 0 else { throw WebSocketFault(.protocolError, "a control frame is fragmented") }
    } else if opcode == .continuation {
      guard message != nil else { throw WebSocketFault(.protocolError, "a continuation frame without a message") }
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

  /// Unmasks the next `count` bytes in place, and counts them as used.
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
    _ source: UnsafeMutableRawBufferPointer, into output: UnsafeMutableRawBufferPointer, _ progress: inout Progress
  ) throws -> Stop? {
    if isCompressed {
      if let stop = try expandPayload(source, into: output, &progress) { return stop }
    } else {
      var count = min(left, source.count - progress.used)
      if isControlText {
        let part = unmask(source, count, &progress)
        try judgeText(part)
        text += part
      } else {
        count = min(count, output.count - progress.made)
        if count == 0 && left > 0 { return progress.used < source.count ? .outputIsFull : .sourceIsUsed }
        if let from = source.baseAddress, let to = output.baseAddress, count > 0 {
          copyUnmasking(from: from + progress.used, to: to + progress.made, count: count, key: key)
          if message == .text { try judgeText(UnsafeRawBufferPointer(start: to + progress.made, count: count)) }
        }
        key = rotated(key, by: count)
        left -= count
        progress.used += count
        progress.made += count
      }
      if left > 0 { return progress.used < source.count ? .outputIsFull : .sourceIsUsed }
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
