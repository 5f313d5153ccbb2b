// The protocol of everything that carries bytes: sockets, ttys, simulated devices, TLS, WebSocket, Bluetooth. Pumps and
// hubs use nothing else. A stream stays on the lane it was made on.

import Glibc

/// A stream of bytes in both directions, for code on its lane. It is driven by events: read and write until the answer is
/// `.blocked`, set the waits, and continue at the delegate's event. Each call is made on the lane of the stream, and none
/// blocks. Other tasks use `StreamHandle`; loops on the lane use `bytes` and `send(_:)`.
///
/// To make a stream, adopt `TransportStream` or `LayeredStream`, which have defaults for their kind. Only
/// `write(together:)` has a default here, so that no stream forgets a member.
public protocol ByteStream: AnyObject {
  /// Gets the stream's events. An open stream holds a strong reference to its delegate until `close()`, as the poller
  /// holds the stream. Setting a delegate on a closed stream does nothing: the two would keep each other for ever.
  var delegate: (any ByteStreamDelegate)? { get set }

  /// Reads into `run`, which must not be empty; keeps no pointer to it. Throws the error that broke the stream for
  /// good.
  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer

  /// Writes from `run`, which must not be empty; keeps no pointer to it. Throws the error that broke the stream for
  /// good.
  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer

  /// Writes several runs as if they were one, in one call or one record where possible. No run may be empty; no pointer
  /// is kept. `.moved` counts the bytes of all runs. Throws the error that broke the stream for good.
  func write(together runs: UnsafeMutableBufferPointer<iovec>) throws -> Transfer

  /// What the reader waits for; empty if the reader needs no event. `.hasBytesAvailable` reports the end of the wait.
  var readerWaits: Readiness { get set }

  /// What the writer waits for; empty if the writer needs no event. `.hasSpaceAvailable` reports the end of the wait.
  var writerWaits: Readiness { get set }

  /// Whether the stream holds input (in a TLS record, a decoder) that the descriptor's readiness does not report.
  var hasBufferedInput: Bool { get }

  /// Whether a unit that was taken (a TLS record, a frame) is not sent yet. Half-close, drain and close wait for it.
  var hasPendingOutput: Bool { get }

  /// Bytes that were taken and have not reached the other side yet, as far as the stream knows. This costs system
  /// calls: call it when output is flushed or at the end of a stream, not on the byte path.
  var undelivered: UndeliveredOutput { get }

  /// The smallest room that a read needs, in bytes: 1 for byte streams, the datagram's size for others.
  var largestUnit: Int { get }

  /// How the stream closes in order.
  var closeBehavior: CloseBehavior { get }

  /// Ends the output, and notifies the other side where the stream can. Call it once `hasPendingOutput` is false.
  func finishWriting()

  /// For a stream that nobody reads at the moment: makes room for the bytes that the other side's machine still has. An
  /// end after these bytes can then arrive, and `.inputEnded` reports it. Bounded, and safe to call again.
  func makeRoomForEnd()

  /// Bounds the output that the kernel takes before it can send it, where the stream has such a queue: about `bytes`,
  /// or the system's own bound for 0. For streams whose output should be new rather than complete.
  func limitUnsent(to bytes: Int)

  /// The stream is about to be closed: it holds nothing open for later users any more, so that `undelivered` counts
  /// only what somebody can still receive. Safe to call again.
  func prepareToClose()

  /// Closes the stream in order; no event follows. Safe to call twice. Releases the delegate by `dismissDelegate()`.
  func close()

  /// Closes the stream so that the other side sees a failure: a socket is reset. Safe to call twice.
  func abort()

  /// The interface for line settings and modem lines, if the stream has one.
  var serialLine: (any SerialLine)? { get }

  /// What is known about the device at the other end; nil for streams that never know anything.
  var metadata: StreamMetadata? { get }
}

/// How a stream closes in order; all false for one that just closes.
public struct CloseBehavior: Equatable, Sendable {
  /// `finishWriting()` notifies the other side, which can still send. `close()` destroys no output of such a stream.
  public var canHalfClose: Bool
  /// `finishWriting()` asks the other side to end as well: the closing handshake of WebSocket. Wait for that end before
  /// `close()`, even if nothing more is read.
  public var hasClosingHandshake: Bool
  /// `finishWriting()` sends bytes of its own (close_notify), which may become pending output.
  public var sendsCloseNotice: Bool

  /// Without arguments: a stream that just closes.
  public init(canHalfClose: Bool = false, hasClosingHandshake: Bool = false, sendsCloseNotice: Bool = false) {
    self.canHalfClose = canHalfClose
    self.hasClosingHandshake = hasClosingHandshake
    self.sendsCloseNotice = sendsCloseNotice
  }
}

/// Output that a stream has taken and that has not reached the other side yet, in bytes.
public enum UndeliveredOutput: Equatable, Sendable {
  /// `close()` does not destroy these bytes. Also 0 if the stream cannot know.
  case onItsWay(Int)
  /// `close()` destroys these bytes. Only a 0 that is reported twice, some milliseconds apart, is certain. Nil:
  /// unknown.
  case lostAtClose(Int?)

  /// Nothing is on its way.
  public static let none = UndeliveredOutput.onItsWay(0)

  /// Adds `count` bytes that a stream above holds.
  public func adding(_ count: Int) -> UndeliveredOutput {
    switch self {
    case .onItsWay(let below): .onItsWay(below + count)
    case .lostAtClose(let below): .lostAtClose(below.map { $0 + count })
    }
  }

  /// The bytes that await acknowledgement; 0 for `.lostAtClose`.
  public var onItsWay: Int { if case .onItsWay(let count) = self { count } else { 0 } }
}

extension ByteStream {
  public func write(together runs: UnsafeMutableBufferPointer<iovec>) throws -> Transfer { try write(oneByOne: runs) }

  /// For streams that can join runs only at times.
  package func write(oneByOne runs: UnsafeMutableBufferPointer<iovec>) throws -> Transfer {
    var taken = 0
    for run in runs {
      let transfer = try write(UnsafeRawBufferPointer(start: run.iov_base, count: run.iov_len))
      guard case .moved(let count) = try transfer.checked(of: run.iov_len, at: "stream.write") else {
        if taken == 0 { return transfer }
        break
      }
      taken += count
      if count < run.iov_len { break }
    }
    return .moved(taken)
  }

  /// For a stream that closes: removes the delegate and calls its `streamWasClosed`.
  public func dismissDelegate() {
    let dismissed = delegate
    delegate = nil
    dismissed?.streamWasClosed(self)
  }

  /// What reader and writer wait for together.
  package var interest: Readiness { readerWaits.union(writerWaits) }
}

/// A stream with no other stream below: a socket, a tty, a simulated device. By default it holds nothing, and `close()`
/// is its only way to end.
public protocol TransportStream: ByteStream {}

extension TransportStream {
  public var hasBufferedInput: Bool { false }
  public var hasPendingOutput: Bool { false }
  public var undelivered: UndeliveredOutput { .none }
  public var largestUnit: Int { 1 }
  public var closeBehavior: CloseBehavior { CloseBehavior() }
  public var serialLine: (any SerialLine)? { nil }
  public var metadata: StreamMetadata? { nil }
  public func finishWriting() {}
  public func makeRoomForEnd() {}
  public func limitUnsent(to bytes: Int) {}
  public func prepareToClose() {}
  public func abort() { close() }
}

/// Stands before a stream as the sink of a pump: it watches the bytes, or keeps them back. It is only written to; other
/// code reads the stream below, gets its events and closes it. It has no interest of its own: waits apply to that stream.
package protocol SinkStream: TransportStream {
  /// The stream that gets the bytes; nil while there is none.
  var below: (any ByteStream)? { get }
}

extension SinkStream {
  package var writerWaits: Readiness {
    get { below?.writerWaits ?? [] }
    set { below?.writerWaits = newValue }
  }
  package var delegate: (any ByteStreamDelegate)? {
    get { nil }
    set {}
  }
  package var readerWaits: Readiness {
    get { [] }
    set {}
  }
  package func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer { .blocked(until: []) }
  package func close() {}
}

/// A stream around another stream, whose delegate it is: TLS, WebSocket, a filter. By default it forwards each call to
/// the stream below. It must implement `read`, `write`, `close` and `abort`; other members are for streams that hold
/// bytes or close in their own way.
public protocol LayeredStream: ByteStream, ByteStreamDelegate {
  /// The stream below, which this stream owns and closes.
  var below: any ByteStream { get }
}

extension LayeredStream {
  public var readerWaits: Readiness {
    get { below.readerWaits }
    set { below.readerWaits = newValue }
  }
  public var writerWaits: Readiness {
    get { below.writerWaits }
    set { below.writerWaits = newValue }
  }
  public var hasBufferedInput: Bool { below.hasBufferedInput }
  public var hasPendingOutput: Bool { below.hasPendingOutput }
  public var undelivered: UndeliveredOutput { below.undelivered }
  public var largestUnit: Int { below.largestUnit }
  public var closeBehavior: CloseBehavior { below.closeBehavior }
  public var serialLine: (any SerialLine)? { below.serialLine }
  public var metadata: StreamMetadata? { below.metadata }
  public func finishWriting() { below.finishWriting() }
  public func makeRoomForEnd() { below.makeRoomForEnd() }
  public func limitUnsent(to bytes: Int) { below.limitUnsent(to: bytes) }
  public func prepareToClose() { below.prepareToClose() }

  /// Passes the event of the stream below on.
  public func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) { delegate?.stream(self, handle: event) }
}

/// What a stream reports to its delegate, on the stream's lane.
public enum ByteStreamEvent: Equatable, Sendable {
  /// The stream can carry bytes. Streams that are handed over open do not report this.
  case openCompleted
  /// The reader's wait is over: read on.
  case hasBytesAvailable
  /// The writer's wait is over: write on.
  case hasSpaceAvailable
  /// While nobody read, the other side ended its output or the connection broke. Earlier bytes are still unread.
  /// Streams that can detect this report it once.
  case inputEnded
  /// The stream broke while nobody read or wrote; the error is final.
  case errorOccurred(SystemError)
  /// Both directions ended while nobody read or wrote. Bytes read earlier may still be kept for another stream, so this
  /// alone is no reason to close that stream.
  case endEncountered
}

/// Gets the events of a stream, on the lane of the stream.
public protocol ByteStreamDelegate: AnyObject {
  /// Something has happened. Called on the lane; must not block. May read, write, or close the stream.
  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent)
  /// This side closed the stream: no event follows. For delegates that wait for an event; the code that called
  /// `close()` needs no report.
  func streamWasClosed(_ stream: any ByteStream)
}

extension ByteStreamDelegate {
  public func streamWasClosed(_ stream: any ByteStream) {}
}
