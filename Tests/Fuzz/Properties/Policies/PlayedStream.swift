// A client's or the device's kernel, in memory, as the fuzzer plays it: what its far end has sent, how much it takes,
// how it ends. `poll` calls the delegate as epoll would cause. Reads and writes are reported to an account, which
// checks them.

import Glibc

@testable import ByteStreams

/// Checks the bytes of a stream. Called in the middle of a turn, so it must not change the gateway.
protocol StreamAccount: AnyObject {
  func willRead(_ stream: PlayedStream, room: Int)
  func didRead(_ stream: PlayedStream, _ bytes: UnsafeRawBufferPointer)
  /// The first `count` bytes of `run` are taken.
  func takes(_ stream: PlayedStream, _ run: UnsafeRawBufferPointer, _ count: Int)
  /// A write found no space.
  func isFull(_ stream: PlayedStream)
  /// A read failed, or a write failed or found the end.
  func hasFailed(_ stream: PlayedStream, reading: Bool)
  /// A read found the far end's end.
  func readsEnd(_ stream: PlayedStream)
  /// An event reports that both directions are over.
  func hangsUp(_ stream: PlayedStream)
  func isFinished(_ stream: PlayedStream)
  func isClosed(_ stream: PlayedStream)
}

final class PlayedStream: TransportStream {
  struct Kind: OptionSet {
    let rawValue: UInt8
    /// After a read the rest is buffered inside the stream, and no event reports it.
    static let hasUnreportedBytes = Kind(rawValue: 1)
    /// Each write becomes a unit that is sent when there is space.
    static let hasPendingOutputs = Kind(rawValue: 2)
    static let noHalfClose = Kind(rawValue: 4)
    /// A read needs space for 8 bytes.
    static let hasUnits = Kind(rawValue: 8)
    /// The end is reported only while a reader waits.
    static let tellsNoEnd = Kind(rawValue: 16)
  }

  let kind: Kind
  private unowned let account: any StreamAccount
  var delegate: (any ByteStreamDelegate)? {
    didSet { if isClosed && delegate != nil { delegate = nil } }
  }
  var readerWaits: Readiness = []
  var writerWaits: Readiness = []
  var serialLine: (any SerialLine)? { line }
  let line: PlayedLine?

  /// All that the far end has sent, and how much of it was read.
  var content: [UInt8] = []
  private(set) var readCount = 0
  /// The far end sends no more.
  var hasEnded = false
  /// The failure of reads after the content, and of all writes.
  var readFailure: SystemError?
  var writeFailure: SystemError?
  /// How many bytes it takes before it is full.
  var room = Int.max
  private(set) var hasPendingOutput = false
  private(set) var isClosed = false
  private(set) var isAborted = false
  private(set) var isNotifiedOfEnd = false
  private(set) var readEnded = false
  private var isFresh = false
  private var endIsKnown: Bool
  private var hangUpIsTold = false

  init(_ kind: Kind, line: PlayedLine? = nil, account: any StreamAccount) {
    self.kind = kind
    self.line = line
    self.account = account
    endIsKnown = kind.contains(.tellsNoEnd)
  }

  var left: Int { content.count - readCount }
  var hasBufferedInput: Bool { kind.contains(.hasUnreportedBytes) && !isFresh && left > 0 }
  var largestUnit: Int { kind.contains(.hasUnits) ? 8 : 1 }
  var closeBehavior: CloseBehavior { CloseBehavior(canHalfClose: !kind.contains(.noHalfClose)) }
  var isBroken: Bool { readFailure != nil || writeFailure != nil }
  var takesBytes: Bool { room > 0 && !hasPendingOutput && writeFailure == nil }

  /// The far end has sent something, or ended.
  func arrived() { isFresh = true }

  // MARK: - A stream

  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    account.willRead(self, room: run.count)
    guard !isClosed else { return .ended }
    isFresh = false
    let left = left
    if left > 0 {
      let count = min(left, run.count)
      content.withUnsafeBytes { run.baseAddress!.copyMemory(from: $0.baseAddress! + readCount, byteCount: count) }
      account.didRead(self, UnsafeRawBufferPointer(start: run.baseAddress!, count: count))
      readCount += count
      return .moved(count)
    }
    if let readFailure {
      account.hasFailed(self, reading: true)
      endIsKnown = true
      throw readFailure
    }
    guard hasEnded else { return .blocked(until: .readable) }
    endIsKnown = true
    readEnded = true
    account.readsEnd(self)
    return .ended
  }

  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    guard !isClosed else { return .ended }
    if let writeFailure {
      account.hasFailed(self, reading: false)
      throw writeFailure
    }
    guard room > 0, !hasPendingOutput else {
      account.isFull(self)
      return .blocked(until: .writable)
    }
    let count = min(run.count, kind.contains(.hasPendingOutputs) ? 16 : room)
    account.takes(self, run, count)
    if room != .max { room = max(0, room - count) }
    hasPendingOutput = kind.contains(.hasPendingOutputs)
    if hasPendingOutput { account.isFull(self) }
    return .moved(count)
  }

  func finishWriting() {
    isNotifiedOfEnd = true
    account.isFinished(self)
  }

  func abort() {
    isAborted = true
    close()
  }

  func close() {
    guard !isClosed else { return }
    isClosed = true
    line?.isClosed = true
    account.isClosed(self)
    dismissDelegate()
  }

  // MARK: - Events that epoll would report

  private var isReadable: Bool {
    hasEnded || readFailure != nil || (kind.contains(.hasUnreportedBytes) ? isFresh : left > 0)
  }

  /// Like `DescriptorStream.ready`. Returns whether it reported an event.
  func poll() -> Bool {
    guard !isClosed, delegate != nil else { return false }
    if hasPendingOutput && room > 0 { hasPendingOutput = false }
    let hungUp = readFailure != nil || (hasEnded && writeFailure != nil)
    let readable = isReadable || hungUp
    let writable = takesBytes || writeFailure != nil || hungUp
    let (reader, writer) = (readerWaits, writerWaits)
    var hasTold = false
    if (writable && writer.contains(.writable)) || (readable && writer.contains(.readable)) {
      hasTold = report(.hasSpaceAvailable)
    }
    if (readable && reader.contains(.readable)) || (writable && reader.contains(.writable)) {
      hasTold = report(.hasBytesAvailable) || hasTold
    }
    if !endIsKnown && reader.isEmpty && (hungUp || hasEnded) {
      endIsKnown = true
      hasTold = report(.inputEnded) || hasTold
    }
    if hungUp && readEnded && reader.isEmpty && writer.isEmpty && !hangUpIsTold {
      hangUpIsTold = true
      account.hangsUp(self)
      hasTold = report(.endEncountered) || hasTold
    }
    return hasTold
  }

  private func report(_ event: ByteStreamEvent) -> Bool {
    guard !isClosed, let delegate else { return false }
    delegate.stream(self, handle: event)
    return true
  }
}
