// Standard input and output of a program as a stream. Its end is the program's end: who reads it is told how that came about.

import ByteStreams
import CLinux
import Glibc

final class ExecStream: ByteStream, ByteStreamDelegate {
  var delegate: (any ByteStreamDelegate)? {
    didSet { if isClosed && delegate != nil { delegate = nil } }
  }
  var readerWaits: Readiness = [] { didSet { waitsChanged() } }
  var writerWaits: Readiness = [] { didSet { waitsChanged() } }

  // A socket, or the master of the program's terminal.
  private let stream: any ByteStream
  private let socket: Int32?
  private let process: ExecProcess
  private let errors: ExecErrors?
  private let poller: Poller
  private var isClosed = false

  // The program has closed its side, or both, and how it ended comes in a moment. One that closes its side and lives on
  // has ended the stream all the same.
  private var readEnded = false
  private var writeBroke = false
  private var deadline: Timers.Token?
  private var isOverdue = false
  private static let patience = Duration.seconds(1)
  // The end was read, or thrown.
  private var endIsRead = false
  private var endIsTold = false

  /// `socket` is the number of the descriptor, where the stream is one.
  init(_ stream: any ByteStream, socket: Int32?, _ process: ExecProcess, _ errors: ExecErrors?, on poller: Poller) {
    self.stream = stream
    self.socket = socket
    self.process = process
    self.errors = errors
    self.poller = poller
    stream.delegate = self
    process.hasEnded = { [weak self] in self?.programHasEnded() }
  }

  // MARK: - Bytes

  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    if isClosed { return .ended }
    if readEnded { return try end() }
    do {
      switch try stream.read(into: run) {
      case .moved(let count): return .moved(count)
      // Others may hold its side open still. What the program itself has said is read.
      case .blocked(let wish): return process.end == nil ? .blocked(until: wish) : try end()
      case .ended: break
      }
    } catch let error as SystemError where error.errno == ECONNRESET {
      // unix(7): it has gone, and has not read all that was written to it.
    }
    readEnded = true
    return try end()
  }

  /// After the last byte: ended in order, or with how the program ended, or not known yet.
  private func end() throws -> Transfer {
    if process.end == nil && !isOverdue {
      awaitEnd()
      return .blocked(until: .readable)
    }
    endIsRead = true
    if let end = process.end {
      if !end.isSuccess { throw end }
      tellSoon()  // that it does not listen either
    }
    return .ended
  }

  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    if isClosed { return .ended }
    // Others may hold its side open still, but nobody is there who was meant.
    if let end = process.end { return try refuse(after: end) }
    do {
      if !writeBroke {
        let transfer = try stream.write(run)
        if transfer != .ended { return transfer }
      }
    } catch let error as SystemError where error.errno == EPIPE || error.errno == ECONNRESET {
    }
    writeBroke = true
    if isOverdue { throw SystemError("write", EPIPE) }
    awaitEnd()
    return .blocked(until: .writable)
  }

  /// A program that ends in order may leave input unread, as `head` does: no failure, and its last words come first.
  private func refuse(after end: ProgramEnd) throws -> Transfer {
    if !end.isSuccess { throw end }
    if endIsRead { throw SystemError("write", EPIPE) }
    return .blocked(until: .writable)
  }

  private func awaitEnd() {
    if deadline == nil {
      deadline = poller.timers.after(Self.patience) { [weak self] in
        self?.isOverdue = true
        self?.tellWaiting()
      }
    }
    waitsChanged()
  }

  // MARK: - Waiting

  /// A side that is closed is ready all the time: who waits for the program's end is told by that.
  private func waitsChanged() {
    stream.readerWaits = readEnded || process.end != nil ? [] : readerWaits
    stream.writerWaits = writeBroke || process.end != nil ? [] : writerWaits
    // Who begins to wait after the end would not be told by anybody.
    if process.end != nil && (!readerWaits.isEmpty || writerIsTold) { tellSoon() }
  }

  /// One who waits for the end to be read is not told before.
  private var writerIsTold: Bool { !writerWaits.isEmpty && (process.end?.isSuccess != true || endIsRead) }

  private func tellSoon() {
    poller.timers.after(.zero) { [weak self] in self?.tellWaiting() }
  }

  private func programHasEnded() {
    errors?.close()
    waitsChanged()
    tellWaiting()
  }

  // A stream that is closed in between has no delegate.
  private func tellWaiting() {
    if writerIsTold { delegate?.stream(self, handle: .hasSpaceAvailable) }
    if !readerWaits.isEmpty { delegate?.stream(self, handle: .hasBytesAvailable) }
    guard interest.isEmpty, endIsRead, !endIsTold, process.end != nil, let delegate else { return }
    endIsTold = true
    delegate.stream(self, handle: .endEncountered)
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    // With the end of the program comes how it ended; a hang-up alone says less.
    case .endEncountered where process.end != nil: tellWaiting()
    case .endEncountered where !isOverdue: awaitEnd()
    default: delegate?.stream(self, handle: event)
    }
  }

  var holdsBytes: Bool { stream.holdsBytes }
  var holdsUnit: Bool { stream.holdsUnit }
  var canHalfClose: Bool { stream.canHalfClose }
  func finishWriting() { stream.finishWriting() }

  var unread: Int? { process.end == nil ? stream.unread : nil }

  /// What the program has not read: it is asked to end when the stream is closed, and would lose that.
  var unacknowledged: Int {
    var count: Int32 = 0
    guard let socket, !isClosed, process.end == nil, ioctl(socket, UInt(TIOCOUTQ), &count) == 0 else { return 0 }
    return Int(count)  // SIOCOUTQ of unix(7)
  }

  // MARK: - The end

  func close() {
    guard !isClosed else { return }
    isClosed = true
    poller.timers.cancel(deadline)
    stream.delegate = nil
    stream.close()
    process.hasEnded = { [errors] in errors?.close() }
    if process.end == nil { process.terminate() } else { errors?.close() }
    dismissDelegate()
  }
}
