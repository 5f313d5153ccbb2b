// A client's or the device's kernel as the fuzzer plays it, in memory: what its far end has sent, how much it takes, how it ends.
// `poll` tells the delegate what epoll would tell. What is read and taken goes to an account, which knows what is right.

import Glibc

@testable import ByteStreams

/// Checks what goes through a stream. Called in the middle of a turn, so it must not touch the gateway.
protocol StreamAccount: AnyObject {
  func willRead(_ stream: PlayedStream, room: Int)
  func didRead(_ stream: PlayedStream, _ bytes: UnsafeRawBufferPointer)
  /// The first `count` bytes of `run` are taken.
  func takes(_ stream: PlayedStream, _ run: UnsafeRawBufferPointer, _ count: Int)
  /// A write found no space.
  func isFull(_ stream: PlayedStream)
  /// A read failed, or a write did, or a write found the end.
  func hasFailed(_ stream: PlayedStream, reading: Bool)
  /// A read found the far end's end.
  func readsEnd(_ stream: PlayedStream)
  /// An event says that both directions are over.
  func hangsUp(_ stream: PlayedStream)
  func isFinished(_ stream: PlayedStream)
  func isClosed(_ stream: PlayedStream)
}

final class PlayedStream: ByteStream {
  struct Kind: OptionSet {
    let rawValue: UInt8
    /// After a read the rest is inside the stream, where no event tells of it.
    static let hidesBytes = Kind(rawValue: 1)
    /// Each write becomes a unit that leaves when there is space.
    static let holdsUnits = Kind(rawValue: 2)
    static let noHalfClose = Kind(rawValue: 4)
    /// A read needs room for 8 bytes.
    static let hasUnits = Kind(rawValue: 8)
    /// The end is told only to a reader.
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
  /// What reading meets behind the content, and writing at once.
  var readFailure: SystemError?
  var writeFailure: SystemError?
  /// Bytes that it takes before it is full.
  var room = Int.max
  private(set) var holdsUnit = false
  private(set) var isClosed = false
  private(set) var isAborted = false
  private(set) var isToldEnd = false
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
  var holdsBytes: Bool { kind.contains(.hidesBytes) && !isFresh && left > 0 }
  var largestUnit: Int { kind.contains(.hasUnits) ? 8 : 1 }
  var canHalfClose: Bool { !kind.contains(.noHalfClose) }
  var isBroken: Bool { readFailure != nil || writeFailure != nil }
  var takesBytes: Bool { room > 0 && !holdsUnit && writeFailure == nil }

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
    guard room > 0, !holdsUnit else {
      account.isFull(self)
      return .blocked(until: .writable)
    }
    let count = min(run.count, kind.contains(.holdsUnits) ? 16 : room)
    account.takes(self, run, count)
    if room != .max { room = max(0, room - count) }
    holdsUnit = kind.contains(.holdsUnits)
    if holdsUnit { account.isFull(self) }
    return .moved(count)
  }

  func finishWriting() {
    isToldEnd = true
    account.isFinished(self)
  }

  func abort() {
    isAborted = true
    close()
  }

  func close() {
    guard !isClosed else { return }
    isClosed = true
    account.isClosed(self)
    dismissDelegate()
  }

  // MARK: - What epoll would tell

  private var isReadable: Bool {
    hasEnded || readFailure != nil || (kind.contains(.hidesBytes) ? isFresh : left > 0)
  }

  /// As `DescriptorStream.ready`. Whether anything was told.
  func poll() -> Bool {
    guard !isClosed, delegate != nil else { return false }
    if holdsUnit && room > 0 { holdsUnit = false }
    let hungUp = readFailure != nil || (hasEnded && writeFailure != nil)
    let readable = isReadable || hungUp
    let writable = takesBytes || writeFailure != nil || hungUp
    let (reader, writer) = (readerWaits, writerWaits)
    var hasTold = false
    if (writable && writer.contains(.writable)) || (readable && writer.contains(.readable)) {
      hasTold = tell(.hasSpaceAvailable)
    }
    if (readable && reader.contains(.readable)) || (writable && reader.contains(.writable)) {
      hasTold = tell(.hasBytesAvailable) || hasTold
    }
    if !endIsKnown && reader.isEmpty && (hungUp || hasEnded) {
      endIsKnown = true
      hasTold = tell(.lastByteIsIn) || hasTold
    }
    if hungUp && readEnded && reader.isEmpty && writer.isEmpty && !hangUpIsTold {
      hangUpIsTold = true
      account.hangsUp(self)
      hasTold = tell(.endEncountered) || hasTold
    }
    return hasTold
  }

  private func tell(_ event: ByteStreamEvent) -> Bool {
    guard !isClosed, let delegate else { return false }
    delegate.stream(self, handle: event)
    return true
  }
}

/// A port's line, whose calls are answered in their order when the fuzzer says so.
final class PlayedLine: SerialLine {
  var settings = LineSettings()
  /// What the driver says that it still has to send, from call to call.
  var unsentCount = 0
  private var answers: [() -> Void] = []

  var isAsked: Bool { !answers.isEmpty }
  func answer() { if !answers.isEmpty { answers.removeFirst()() } }
  func forget() { answers = [] }

  func apply(_ settings: LineSettings, _ done: @escaping (Result<LineSettings, SystemError>) -> Void) {
    answers.append { [self] in
      self.settings = settings
      done(.success(settings))
    }
  }

  func set(_ line: ModemOutput, _ isOn: Bool, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    answers.append { done(.success(())) }
  }

  func setBreak(_ isOn: Bool, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    answers.append { done(.success(())) }
  }

  func unsent(_ done: @escaping (Result<Int, SystemError>) -> Void) {
    answers.append { [self] in
      done(.success(unsentCount))
      unsentCount /= 2
    }
  }

  func purge(_ what: Purge, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    answers.append { [self] in
      if what != .input { unsentCount = 0 }
      done(.success(()))
    }
  }

  func watch(_ told: @escaping (Result<LineCondition, SystemError>) -> Void) {}
  func endWatch() {}
}
