// Output: data is sent from the caller's run. A byte 255 is doubled, and without BINARY a CR alone becomes CR NUL.
// Between the data this stream sends answers, requests and notifications of its own.

import ByteStreams
import Glibc

extension TelnetStream {
  struct Output {
    /// Answers and messages, and the rest of what was doubled; sent before any data.
    var own: [UInt8] = []
    /// The other side takes data as it is.
    var isBinary = false {
      didSet { if isBinary != oldValue { lastWasCR = false } }
    }
    /// The other side has asked for a pause. Answers go out all the same.
    var isSuspended = false
    /// `finishWriting()` was called: there are no more answers.
    var isFinished = false
    /// Something was sent since the last look of the keepalive.
    var hasSent = false
    /// Without BINARY: CR was sent, and what follows decides whether NUL is missing.
    var lastWasCR = false
    // The stream below waits for this before it takes more.
    var wish = Readiness.writable

    var isEmpty: Bool { own.isEmpty }

    /// Doubles each 255; without BINARY, a CR alone becomes CR NUL.
    mutating func encode(_ bytes: some Collection<UInt8>) -> [UInt8] {
      var text: [UInt8] = []
      text.reserveCapacity(bytes.count + 16)
      for byte in bytes {
        if lastWasCR && byte != 0x0A { text.append(0) }
        lastWasCR = byte == 0x0D && !isBinary
        text.append(byte)
        if byte == 255 { text.append(byte) }
      }
      return text
    }
  }

  /// The most events and answers that wait for the other side to read, in bytes.
  package static let mostOwn = 64 << 10
  /// Data without 255 at its beginning is sent from the caller's run if there is at least this much, in bytes.
  private static let worthwhile = 4096
  /// The most data with doubled bytes in one call.
  private static let longestEscaped = 64 << 10
  /// The most text that is translated at once, and kept if the stream below is full. So little that it alone never
  /// stops reading (`mostAnswers`): two ends that both wait for the other to read would wait for ever.
  private static let longestText = 1024

  // MARK: - Data

  package func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    guard !isClosed else { return .ended }
    if let brokenBy { throw brokenBy }
    if !output.isEmpty, case .blocked(let wish) = try flush() { return .blocked(until: wish) }
    guard !output.isSuspended else { return .blocked(until: .writable) }
    output.hasSent = true
    guard output.isBinary else { return try writeText(run) }
    guard let clean = cleanPrefix(run) else { return try below.write(run) }
    if clean >= Self.worthwhile { return try below.write(UnsafeRawBufferPointer(rebasing: run[..<clean])) }
    return try writeEscaped(run)
  }

  package func write(together runs: UnsafeMutableBufferPointer<iovec>) throws -> Transfer {
    let isClean = output.isEmpty && output.isBinary && !output.isSuspended && !isClosed && brokenBy == nil
    if isClean, runs.allSatisfy({ cleanPrefix(UnsafeRawBufferPointer(start: $0.iov_base, count: $0.iov_len)) == nil }) {
      output.hasSent = true
      return try below.write(together: runs)
    }
    return try write(oneByOne: runs)
  }

  /// How many bytes precede the first 255; nil if there is none.
  private func cleanPrefix(_ run: UnsafeRawBufferPointer) -> Int? {
    guard let base = run.baseAddress, let found = memchr(base, 255, run.count) else { return nil }
    return UnsafeRawPointer(found) - base
  }

  private func writeEscaped(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    guard let base = run.baseAddress else { return .moved(0) }
    return try withUnsafeTemporaryAllocation(byteCount: Self.longestEscaped, alignment: 1) { escaped in
      guard let out = escaped.baseAddress else { return .moved(0) }
      let (used, made) = Self.escape(base, run.count, into: out, Self.longestEscaped)
      let transfer = try below.write(UnsafeRawBufferPointer(start: out, count: made))
      guard case .moved(let sent) = try transfer.checked(of: made, at: "telnet.write") else { return transfer }
      guard sent < made else { return .moved(used) }
      let (taken, isSplit) = Self.source(base, run.count, of: sent)
      if isSplit {
        output.own = [255]
        output.wish = .writable
        waitsChanged()
      }
      return .moved(taken)
    }
  }

  /// Doubles each 255. Returns the bytes of source used and of output made.
  private static func escape(
    _ base: UnsafeRawPointer, _ count: Int, into out: UnsafeMutableRawPointer, _ room: Int
  ) -> (used: Int, made: Int) {
    var (used, made) = (0, 0)
    while used < count {
      let found = memchr(base + used, 255, count - used)
      let plain = found.map { UnsafeRawPointer($0) - (base + used) } ?? count - used
      let copied = min(plain, room - made)
      memcpy(out + made, base + used, copied)
      used += copied
      made += copied
      guard copied == plain, found != nil, room - made >= 2 else { break }
      out.storeBytes(of: 0xFFFF, toByteOffset: made, as: UInt16.self)
      used += 1
      made += 2
    }
    return (used, made)
  }

  /// How many bytes of source have become the first `sent` bytes, and whether the second half of a pair is missing.
  private static func source(_ base: UnsafeRawPointer, _ count: Int, of sent: Int) -> (taken: Int, isSplit: Bool) {
    var (taken, counted) = (0, 0)
    while counted < sent {
      let found = memchr(base + taken, 255, count - taken)
      let plain = found.map { UnsafeRawPointer($0) - (base + taken) } ?? count - taken
      guard counted + plain < sent else { return (taken + sent - counted, false) }
      counted += plain + 2
      taken += plain + 1
    }
    return (taken, counted > sent)
  }

  private func writeText(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    let count = min(run.count, Self.longestText)
    output.own = output.encode(run[..<count])
    _ = try flush()
    return .moved(count)
  }

  // MARK: - Messages

  /// Queues a message about the line. False if it was dropped, because too much is waiting.
  @discardableResult
  package func send(_ message: ComPortMessage) -> Bool { sendOwn(message.bytes(from: settings.role)) }

  /// Queues a server's report that the line has this setting now, without a request for it. RFC 2217 has no such
  /// message, and a client would take an answer that it has not asked for as the one it waits for. So this is a request
  /// in form, which a server never sends: for clients that are known to read it.
  package func send(reporting change: ComPortMessage) -> Bool { sendOwn(change.bytes(from: .client)) }

  /// Queues text for people among the data.
  package func send(text: String) -> Bool {
    guard mayQueue(2 * text.utf8.count + 1) else { return false }
    return sendOwn(output.encode(text.utf8))
  }

  private func sendOwn(_ bytes: [UInt8]) -> Bool {
    guard mayQueue(bytes.count) else { return false }
    output.own += bytes
    sendOwn()
    return true
  }

  private func mayQueue(_ count: Int) -> Bool {
    !isClosed && !output.isFinished && brokenBy == nil && output.own.count + count <= Self.mostOwn
  }

  func setSuspended(_ isSuspended: Bool) {
    output.isSuspended = isSuspended
    waitsChanged()
  }

  /// Sends what can be sent now, and the rest when there is space. The next read or write reports an error.
  func sendOwn() {
    guard !isClosed else { return }
    guard !output.isFinished, brokenBy == nil else {
      output.own = []  // it will never be sent
      return
    }
    output.hasSent = true
    _ = try? flush()
  }

  /// `.moved` if everything was sent.
  func flush() throws -> Transfer {
    defer { waitsChanged() }
    do {
      var sent = 0
      while sent < output.own.count {
        let transfer = try output.own.withUnsafeBytes { own in
          try below.write(UnsafeRawBufferPointer(rebasing: own[sent...]))
        }
        switch try transfer.checked(of: output.own.count - sent, at: "telnet.flush") {
        case .moved(let count): sent += count
        case .blocked(let wish):
          output.wish = wish
          output.own.removeFirst(sent)
          readOn()
          return .blocked(until: wish)
        case .ended: throw SystemError("write", EPIPE)
        }
      }
      output.own = []
      readOn()
      return .moved(0)
    } catch {
      brokenBy = brokenBy ?? error
      output.own = []  // it will never be sent
      readOn()
      throw error
    }
  }

  /// The stream below waits for our own output, or if there is none for what our writer waits for.
  func waitsChanged() {
    guard !isClosed else { return }
    let waits = !output.isEmpty ? output.wish : output.isSuspended ? [] : writerWaits
    if below.writerWaits != waits { below.writerWaits = waits }
  }
}
