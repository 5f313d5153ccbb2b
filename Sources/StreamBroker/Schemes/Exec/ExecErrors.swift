// What a program says on standard error, line by line. It is always read on, or the program would stop at a full pipe; what is
// too much is counted and not told.

import ByteStreams
import Glibc

/// Cuts lines out of what comes, of 500 bytes at most, and lets through 20 at once and 20 a second. A value.
struct LineCutter {
  private var line: [UInt8] = []
  private var wasCut = false
  private var second: UInt64 = 0
  private var told = 0
  private var untold = 0

  private static let longest = 500
  private static let mostPerSecond = 20

  /// The lines that `bytes` have completed, to be told at `now`, in nanoseconds.
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

  /// What stands there without a line feed.
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
      told = 0
      tellUntold(&lines)
    }
    defer {
      line.removeAll(keepingCapacity: true)
      wasCut = false
    }
    // Of a flood no line is looked at.
    guard told < Self.mostPerSecond else { return untold += 1 }
    append(end)
    if line.last == UInt8(ascii: "\r") { line.removeLast() }
    guard !line.isEmpty else { return }
    told += 1
    lines.append(String(decoding: line, as: UTF8.self) + (wasCut ? "…" : ""))
  }

  private mutating func tellUntold(_ lines: inout [String]) {
    if untold > 0 { lines.append("… and \(untold) lines more") }
    untold = 0
  }
}

/// The reading end of the pipe. Kept by its poller until the end of the pipe, or `close()`.
final class ExecErrors: PollHandler {
  private let poller: Poller
  private let hear: @Sendable (EndpointRemark) -> Void
  private var descriptor: Descriptor?
  private let raw: Int32
  private var cutter = LineCutter()
  // A pipe keeps 64 KiB (pipe(7)); more is of those who are left and go on.
  private static let portion = 16384
  private static let lastReads = 4
  private static let rest = Duration.milliseconds(10)
  private var pause: Timers.Token?

  init(
    _ descriptor: consuming Descriptor, on poller: Poller, _ hear: @escaping @Sendable (EndpointRemark) -> Void
  ) throws(SystemError) {
    raw = descriptor.raw
    self.poller = poller
    self.hear = hear
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

  /// One that floods it shall not keep the lane busy.
  private func rest() {
    poller.change(raw, to: [])
    pause = poller.timers.after(Self.rest) { [weak self] in
      if let self { poller.change(raw, to: .readable) }
    }
  }

  /// What is there, or a part of it: the rest comes round again.
  private func read() -> Transfer {
    withUnsafeTemporaryAllocation(byteCount: Self.portion, alignment: 1) { run in
      let count = Glibc.read(raw, run.baseAddress!, run.count)
      if count < 0 && (errno == EAGAIN || errno == EINTR) { return .blocked(until: .readable) }
      guard count > 0 else { return .ended }
      tell(cutter.take(UnsafeRawBufferPointer(rebasing: run[..<count]), now: poller.timers.now))
      return .moved(count)
    }
  }

  /// After the program's end: what it has said is in the pipe. What those it left behind may still say is theirs.
  func close() {
    guard descriptor != nil else { return }
    poller.timers.cancel(pause)
    poller.remove(raw, isClosing: true)
    for _ in 0..<Self.lastReads {
      guard case .moved = read() else { break }
    }
    tell(cutter.finish(now: poller.timers.now))
    descriptor = nil
  }

  private func tell(_ lines: [String]) { for line in lines { hear(EndpointRemark(line)) } }
}
