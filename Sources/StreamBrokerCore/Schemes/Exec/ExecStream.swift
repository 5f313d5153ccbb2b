// Standard input and output of a program as a stream. The stream ends when the program ends, and reports to the reader
// how it ended.

import ByteStreams
import CLinux
import Glibc

final class ExecStream: LayeredStream {
  var delegate: (any ByteStreamDelegate)? {
    didSet { if isClosed && delegate != nil { delegate = nil } }
  }
  var readerWaits: Readiness = [] { didSet { waitsChanged() } }
  var writerWaits: Readiness = [] { didSet { waitsChanged() } }

  // A socket, or the master of the program's terminal.
  let below: any ByteStream
  private let socket: Int32?
  private let process: ExecProcess
  private let errors: ExecErrors?
  private let poller: Poller
  private var isClosed = false

  // The program has closed one side or both. How it ended is known a moment later. The stream has ended even if the
  // program runs on.
  private var readEnded = false
  private var writeBroke = false
  private var deadline: Timers.Token?
  private var isOverdue = false
  private static let timeout = Duration.seconds(1)
  // The end was read, or thrown.
  private var endIsRead = false
  private var endIsReported = false

  /// `socket` is the descriptor's number, if the stream is a socket.
  init(_ below: any ByteStream, socket: Int32?, _ process: ExecProcess, _ errors: ExecErrors?, on poller: Poller) {
    self.below = below
    self.socket = socket
    self.process = process
    self.errors = errors
    self.poller = poller
    below.delegate = self
    process.hasEnded = { [weak self] in self?.programHasEnded() }
  }

  // MARK: - Bytes

  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    if isClosed { return .ended }
    if readEnded { return try end() }
    do {
      switch try below.read(into: run) {
      case .moved(let count): return .moved(count)
      // Other processes may still hold the program's side open, but the program's own output has been read.
      case .blocked(let wish): return process.end == nil ? .blocked(until: wish) : try end()
      case .ended: break
      }
    } catch let error as SystemError where error.errno == ECONNRESET {
      // unix(7): the program is gone, and did not read everything that was written to it.
    }
    readEnded = true
    return try end()
  }

  /// After the last byte: an orderly end, the program's failure, or blocked while the result is not known yet.
  private func end() throws -> Transfer {
    if process.end == nil && !isOverdue {
      awaitEnd()
      return .blocked(until: .readable)
    }
    endIsRead = true
    if let end = process.end {
      if !end.isSuccess { throw end }
      notifySoon()  // so that a waiting writer learns of the end, too
    }
    return .ended
  }

  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    if isClosed { return .ended }
    // Other processes may still hold the program's side open, but the program itself is gone.
    if let end = process.end { return try refuse(after: end) }
    do {
      if !writeBroke {
        let transfer = try below.write(run)
        if transfer != .ended { return transfer }
      }
    } catch let error as SystemError where error.errno == EPIPE || error.errno == ECONNRESET {
    }
    writeBroke = true
    if isOverdue { throw SystemError("write", EPIPE) }
    awaitEnd()
    return .blocked(until: .writable)
  }

  /// A program that ends in order may leave input unread, as `head` does. That is no failure, and its last output is
  /// read first.
  private func refuse(after end: ProgramEnd) throws -> Transfer {
    if !end.isSuccess { throw end }
    if endIsRead { throw SystemError("write", EPIPE) }
    return .blocked(until: .writable)
  }

  private func awaitEnd() {
    if deadline == nil {
      deadline = poller.timers.after(Self.timeout) { [weak self] in
        self?.isOverdue = true
        self?.tellWaiting()
      }
    }
    waitsChanged()
  }

  // MARK: - Waiting

  /// A closed side is always ready, so we stop waiting for it: the program's end wakes the waiting side.
  private func waitsChanged() {
    below.readerWaits = readEnded || process.end != nil ? [] : readerWaits
    below.writerWaits = writeBroke || process.end != nil ? [] : writerWaits
    // A side that starts to wait after the end would never be woken otherwise.
    if process.end != nil && (!readerWaits.isEmpty || writerMayWake) { notifySoon() }
  }

  /// A writer that has to wait until the end is read must not be woken earlier.
  private var writerMayWake: Bool { !writerWaits.isEmpty && (process.end?.isSuccess != true || endIsRead) }

  private func notifySoon() {
    poller.timers.after(.zero) { [weak self] in self?.tellWaiting() }
  }

  private func programHasEnded() {
    errors?.close()
    waitsChanged()
    tellWaiting()
  }

  // A stream that was closed in between has no delegate.
  private func tellWaiting() {
    if writerMayWake { delegate?.stream(self, handle: .hasSpaceAvailable) }
    if !readerWaits.isEmpty { delegate?.stream(self, handle: .hasBytesAvailable) }
    guard interest.isEmpty, endIsRead, !endIsReported, process.end != nil, let delegate else { return }
    endIsReported = true
    delegate.stream(self, handle: .endEncountered)
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    // Wait for the program's end: it has the exit status, a hang-up alone has not.
    case .endEncountered where process.end != nil: tellWaiting()
    case .endEncountered where !isOverdue: awaitEnd()
    default: delegate?.stream(self, handle: event)
    }
  }

  /// Bytes that the program has not read. Closing the stream ends the program, and these bytes would be lost.
  var undelivered: UndeliveredOutput {
    guard !isClosed, process.end == nil else { return .none }
    guard let socket else { return below.undelivered }
    var count: Int32 = 0
    return ioctl(socket, UInt(TIOCOUTQ), &count) == 0 ? .onItsWay(Int(count)) : .none  // SIOCOUTQ of unix(7)
  }

  // MARK: - The end

  func close() {
    guard !isClosed else { return }
    isClosed = true
    poller.timers.cancel(deadline)
    below.delegate = nil
    below.close()
    process.hasEnded = { [errors] in errors?.close() }
    if process.end == nil { process.terminate() } else { errors?.close() }
    dismissDelegate()
  }

  func abort() { close() }
}
