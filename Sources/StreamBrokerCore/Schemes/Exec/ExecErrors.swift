// Reads a program's standard error, line by line. It never stops reading, because the program would block at a full
// pipe. Lines over the limit are counted, not reported.

import ByteStreams
import Glibc

/// Splits the input into lines, 500 bytes at most, and passes on up to 20 lines a second. A value.
struct LineCutter {
  private var line: [UInt8] = []
  private var wasCut = false
  private var second: UInt64 = 0
  private var reported = 0
  private var untold = 0

  private static let longest = 500
  private static let mostPerSecond = 20

  /// The lines that `bytes` completes, to be reported at `now`, in nanoseconds.
  mutating func take(_ bytes: UnsafeRawBufferPointer, now: UInt64) -> [String] {
    var lines: [String] = []
    var rest = bytes[...]
    while let end = rest.firstIndex(of: UInt8(ascii: "\n")) {
      complete(with: rest[..<end], &lines, now)
      rest = rest[(end + 1)...]
    }
    append(rest)
    return lines
  }

  /// The last line, if it has no line feed, and the number of lines dropped.
  mutating func finish(now: UInt64) -> [String] {
    var lines: [String] = []
    if !line.isEmpty { complete(with: UnsafeRawBufferPointer(start: nil, count: 0)[...], &lines, now) }
    tellUntold(&lines)
    return lines
  }

  private mutating func append(_ bytes: Slice<UnsafeRawBufferPointer>) {
    let room = Self.longest - line.count
    if bytes.count > room { wasCut = true }
    line += bytes.prefix(room)
  }

  private mutating func complete(with end: Slice<UnsafeRawBufferPointer>, _ lines: inout [String], _ now: UInt64) {
    if now / 1_000_000_000 != second {
      second = now / 1_000_000_000
      reported = 0
      tellUntold(&lines)
    }
    defer {
      line.removeAll(keepingCapacity: true)
      wasCut = false
    }
    // During a flood, lines over the limit are not looked at.
    guard reported < Self.mostPerSecond else { return untold += 1 }
    append(end)
    if line.last == UInt8(ascii: "\r") { line.removeLast() }
    guard !line.isEmpty else { return }
    reported += 1
    lines.append(String(decoding: line, as: UTF8.self) + (wasCut ? "…" : ""))
  }

  private mutating func tellUntold(_ lines: inout [String]) {
    if untold > 0 { lines.append("… and \(untold) more lines") }
    untold = 0
  }
}

/// The reading end of the pipe. Its poller keeps it until the end of the pipe, or `close()`.
final class ExecErrors: PollHandler {
  private let poller: Poller
  private let handle: @Sendable (EndpointRemark) -> Void
  private var descriptor: Descriptor?
  private let raw: Int32
  private var cutter = LineCutter()
  // A pipe holds 64 KiB (pipe(7)); bytes beyond that come from processes that outlive the program.
  private static let portion = 16384
  private static let lastReads = 4
  private static let rest = Duration.milliseconds(10)
  private var pause: Timers.Token?

  init(
    _ descriptor: consuming Descriptor, on poller: Poller, _ handle: @escaping @Sendable (EndpointRemark) -> Void
  ) throws(SystemError) {
    raw = descriptor.raw
    self.poller = poller
    self.handle = handle
    self.descriptor = consume descriptor
    try poller.add(raw, handler: self, for: .readable)
  }

  func ready(_ events: PollEvents) {
    switch read() {
    case .ended: close()
    case .moved(Self.portion): rest()
    default: break
    }
  }

  /// A program that floods the pipe must not keep the lane busy.
  private func rest() {
    poller.change(raw, to: [])
    pause = poller.timers.after(Self.rest) { [weak self] in
      if let self { poller.change(raw, to: .readable) }
    }
  }

  /// Reads at most one portion; the poller reports the rest again.
  private func read() -> Transfer {
    withUnsafeTemporaryAllocation(byteCount: Self.portion, alignment: 1) { run in
      let count = Glibc.read(raw, run.baseAddress!, run.count)
      if count < 0 && (errno == EAGAIN || errno == EINTR) { return .blocked(until: .readable) }
      guard count > 0 else { return .ended }
      report(cutter.take(UnsafeRawBufferPointer(rebasing: run[..<count]), now: poller.timers.now))
      return .moved(count)
    }
  }

  /// After the program's end, its output is in the pipe. Later output of processes that it left running is ignored.
  func close() {
    guard descriptor != nil else { return }
    poller.timers.cancel(pause)
    poller.remove(raw, isClosing: true)
    for _ in 0..<Self.lastReads {
      guard case .moved = read() else { break }
    }
    report(cutter.finish(now: poller.timers.now))
    descriptor = nil
  }

  private func report(_ lines: [String]) { for line in lines { handle(EndpointRemark(line)) } }
}
