// Output: bytes are sent as binary frames directly from the caller's run, several in one call. Between them this stream
// sends frames of its own: pongs, pings, event texts, the close frame.

import ByteStreams
import Glibc

extension WebSocketStream {
  /// Output that was not sent yet.
  struct Output {
    // Frames that the stream below has not taken, from `heldStart` on; the first may be sent in part.
    var held: [UInt8] = []
    var heldStart = 0
    /// The newest ping that is not answered yet; older ones need no answer (RFC 6455 section 5.5.3).
    var ping: [UInt8]?
    /// Whole frames of event texts.
    var texts: [UInt8] = []
    var close: [UInt8]?
    var closeIsSaid = false
    /// After the close frame, end the stream below, too: further input does not matter.
    var endsBelow = false
    // The stream below waits for this before it takes more.
    var wish = Readiness.writable
    var deflater: Deflater?
    /// A message of several parts has begun.
    var isInMessage = false
    /// With `sendsText`: the first bytes of a character, at most three, whose others have not come yet.
    var character: [UInt8] = []

    /// Drops all output: the other side is gone, so it does not even get a close frame.
    mutating func silence() {
      self = Output()
      closeIsSaid = true
    }

    var isEmpty: Bool { held.isEmpty && ping == nil && texts.isEmpty && close == nil }
    /// Half of the space is for answers to texts taken before, and for events.
    var isFullOfTexts: Bool { texts.count > WebSocketStream.mostEventBytes / 2 }
    var count: Int { held.count - heldStart + (ping?.count ?? 0) + texts.count + (close?.count ?? 0) }
  }

  /// The payload of the largest frame, in bytes: with its header a frame is 16 KiB, one TLS record.
  package static let largestPayload = (16 << 10) - 4
  // The most frames in one call: a run of 256 KiB.
  private static let mostFrames = 17
  /// The limit for event texts that wait for the other side to read, in bytes.
  package static let mostEventBytes = 64 << 10

  // MARK: - Bytes

  package func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    guard !isClosed, !output.closeIsSaid else { return .ended }
    if !output.isEmpty, case .blocked(let wish) = try flush() { return .blocked(until: wish) }
    if settings.sendsText { return try writeText(run) }
    if settings.terms.deflate != nil || role == .client { return try write(run, as: .binary, endsMessage: true) }
    return try writeFrames(run)
  }

  /// One text message with the whole characters of the run. A replaced byte takes three.
  private func writeText(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    let count = min(run.count, Self.largestPayload / 3 - 3)
    let bytes = output.character + run[..<count]
    let whole = bytes.count - Self.begunCharacter(atEndOf: bytes)
    output.character = Array(bytes[whole...])
    guard whole > 0 else { return .moved(count) }
    let text = Array(String(decoding: bytes[..<whole], as: UTF8.self).utf8)
    try output.held = text.withUnsafeBytes { try frame(.text, $0) }
    _ = try flush()
    return .moved(count)
  }

  /// How many bytes at the end may be the beginning of a character.
  static func begunCharacter(atEndOf bytes: [UInt8]) -> Int {
    for length in 1...3 where length <= bytes.count {
      switch bytes[bytes.count - length] {
      case 0x80...0xBF: continue
      case 0xC2...0xDF: return length < 2 ? length : 0
      case 0xE0...0xEF: return length < 3 ? length : 0
      case 0xF0...0xF4: return length
      default: return 0
      }
    }
    return 0
  }

  /// Server frames: no mask, and no copy of the bytes that the stream below takes at once.
  private func writeFrames(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    let largest = Self.largestPayload
    let offered = min(run.count, Self.mostFrames &* largest)
    let frames = (offered &+ largest &- 1) / largest
    let lastLength = offered &- (frames &- 1) &* largest
    guard let base = run.baseAddress else { return .moved(0) }
    return try withUnsafeTemporaryAllocation(byteCount: 2 * 16, alignment: 8) { headers in
      // All but the last have the same header.
      guard let full = headers.baseAddress else { return .moved(0) }
      let last = full + 16
      let fullSize = frames > 1 ? FrameHeader(opcode: .binary, length: largest).write(to: full) : 0
      let lastSize = FrameHeader(opcode: .binary, length: lastLength).write(to: last)
      let transfer = try withUnsafeTemporaryAllocation(of: iovec.self, capacity: 2 * frames) { runs in
        for frame in 0..<frames {
          let isLast = frame == frames &- 1
          runs[2 &* frame] = iovec(iov_base: isLast ? last : full, iov_len: isLast ? lastSize : fullSize)
          runs[2 &* frame &+ 1] = iovec(
            iov_base: UnsafeMutableRawPointer(mutating: base + frame &* largest), iov_len: isLast ? lastLength : largest
          )
        }
        return try below.write(together: runs)
      }
      let longest = (frames &- 1) &* (fullSize &+ largest) &+ lastSize &+ lastLength
      guard case .moved(let sent) = try transfer.checked(of: longest, at: "websocket.write") else { return transfer }
      let whole = min(frames &- 1, sent / (fullSize &+ largest))
      let taken = whole &* largest
      let isLast = whole == frames &- 1
      let size = isLast ? lastSize : fullSize
      let length = isLast ? lastLength : largest
      let part = sent &- whole &* (fullSize &+ largest)
      if part == size &+ length { return .moved(offered) }
      guard part > 0 else { return .moved(taken) }
      // A header promises its bytes, so the rest of this frame is kept.
      let header = UnsafeRawBufferPointer(start: isLast ? last : full, count: size)
      output.held = Array(header.dropFirst(part))
      output.held += UnsafeRawBufferPointer(rebasing: run[taken &+ max(0, part &- size)..<taken &+ length])
      waitsChanged()
      return .moved(taken &+ length)
    }
  }

  /// Writes the next bytes of a message. With `endsMessage`, the message ends if all bytes of `run` are taken. For
  /// programs to which messages matter.
  package func write(
    _ run: UnsafeRawBufferPointer, as kind: WebSocketMessageKind, endsMessage: Bool
  ) throws -> Transfer {
    guard !isClosed, !output.closeIsSaid else { return .ended }
    if !output.isEmpty, case .blocked(let wish) = try flush() { return .blocked(until: wish) }
    let count = min(run.count, Self.largestPayload)
    let isFinal = endsMessage && count == run.count || settings.marksMessages == false
    let opcode: Opcode = output.isInMessage ? .continuation : kind == .text ? .text : .binary
    let run = UnsafeRawBufferPointer(rebasing: run[..<count])
    try output.held = frame(opcode, run, isFinal: isFinal)
    output.isInMessage = !isFinal
    _ = try flush()
    return .moved(count)
  }

  private func frame(_ opcode: Opcode, _ run: UnsafeRawBufferPointer, isFinal: Bool = true) throws -> [UInt8] {
    var header = FrameHeader(isFinal: isFinal, opcode: opcode, length: run.count)
    if role == .client { header.mask = UInt32.random(in: .min ... .max) }  // getrandom(2)
    guard let terms = settings.terms.deflate, !opcode.isControl else { return header.bytes(with: run) }
    let deflater = try output.deflater ?? Deflater(windowBits: terms.ownWindowBits)
    output.deflater = deflater
    let packed = try deflater.compress(run, endsMessage: isFinal)
    if isFinal && !terms.ownContextTakeover { output.deflater = nil }
    header.isCompressed = opcode != .continuation
    header.length = packed.count
    return packed.withUnsafeBytes { header.bytes(with: $0) }
  }

  // MARK: - Frames of its own

  func answerPing(_ payload: [UInt8]) {
    guard !output.closeIsSaid else { return }
    output.ping = payload
    sendOwn()
  }

  func sendPing() {
    output.held += control(.ping, [])
    sendOwn()
  }

  /// Sends `text`, which is UTF-8, as a message of its own between the messages of bytes. False if it was dropped,
  /// mostly because too much is waiting.
  package func send(event text: [UInt8]) -> Bool {
    guard !isClosed, !output.closeIsSaid, !settings.marksMessages else { return false }
    guard output.texts.count + text.count <= Self.mostEventBytes else { return false }
    guard let frame = try? text.withUnsafeBytes({ try frame(.text, $0) }) else { return false }
    output.texts += frame
    sendOwn()
    return true
  }

  /// Queues the close frame, once.
  func queueClose(_ close: WebSocketClose) {
    guard !output.closeIsSaid else { return }
    output.closeIsSaid = true
    if !output.character.isEmpty {
      output.character = []
      let end = Array("\u{FFFD}".utf8)
      if let frame = try? end.withUnsafeBytes({ try frame(.text, $0) }) { output.texts += frame }
    }
    output.close = control(.close, close.payload)
    sendOwn()
  }

  private func control(_ opcode: Opcode, _ payload: [UInt8]) -> [UInt8] {
    var header = FrameHeader(opcode: opcode, length: payload.count)
    if role == .client { header.mask = UInt32.random(in: .min ... .max) }
    return payload.withUnsafeBytes { header.bytes(with: $0) }
  }

  /// Sends what can be sent now, and the rest when there is space. The next read or write reports an error.
  private func sendOwn() {
    do { _ = try flush() } catch { forgetOutput() }
  }

  private func forgetOutput() {
    let (closeIsSaid, deflater) = (output.closeIsSaid, output.deflater)
    output = Output()
    (output.closeIsSaid, output.deflater) = (closeIsSaid, deflater)
    waitsChanged()
  }

  /// `.moved` if everything was sent.
  func flush() throws -> Transfer {
    defer { waitsChanged() }
    do { return try flushAll() } catch {
      brokenBy = brokenBy ?? error
      forgetOutput()  // it will never be sent, and waiting for it would never end
      // Reading may have waited for the other side to read, and nothing else would report this error.
      if !input.texts.isEmpty && !isClosed { poller.again(self) }
      throw error
    }
  }

  private func flushAll() throws -> Transfer {
    while true {
      while output.held.count > output.heldStart {
        let transfer = try output.held.withUnsafeBytes { held in
          try below.write(UnsafeRawBufferPointer(rebasing: held[output.heldStart...]))
        }
        switch try transfer.checked(of: output.held.count - output.heldStart, at: "websocket.flush") {
        case .moved(let count): output.heldStart += count
        case .blocked(let wish):
          output.wish = wish
          return .blocked(until: wish)
        case .ended: throw SystemError("write", EPIPE)
        }
      }
      output.heldStart = 0
      if let ping = output.ping.take() {
        output.held = control(.pong, ping)
      } else if !output.texts.isEmpty {
        if output.isFullOfTexts && !input.texts.isEmpty { poller.again(self) }
        output.held = output.texts
        output.texts = []
      } else if let close = output.close.take() {
        output.held = close
      } else {
        output.held = []
        if output.endsBelow {
          output.endsBelow = false
          below.finishWriting()
        }
        return .moved(0)
      }
    }
  }

  /// The stream below waits for our own output, or if there is none for what our writer waits for.
  func waitsChanged() {
    guard !isClosed else { return }
    let waits = output.isEmpty ? writerWaits : output.wish
    if below.writerWaits != waits { below.writerWaits = waits }
  }
}
