// The one shape of everything that carries bytes: socket, tty, simulated device, later TLS, WebSocket, BLE.
// Pumps and hubs know nothing else. A stream lives on the lane it was made on and is never sent to another.

import Glibc

public protocol ByteStream: AnyObject {
  /// Who is told when waiting is over. Kept strongly until `close()`, as the poller keeps an open stream. A closed stream takes
  /// none: the two would keep each other for good.
  var delegate: (any ByteStreamDelegate)? { get set }

  /// Reads into `run`, which is not empty; keeps no pointer to it. Throws what broke the stream for good.
  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer

  /// Writes from `run`, which is not empty; keeps no pointer to it. Throws what broke the stream for good.
  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer

  /// Writes several runs as if they were one, in one call or one record where that is possible; none of them is empty, and no
  /// pointer is kept. `.moved` counts over all of them. Throws what broke the stream for good.
  func write(together runs: UnsafeMutableBufferPointer<iovec>) throws -> Transfer

  /// What the one who reads waits for; empty while he wants no call. Over means `.hasBytesAvailable`.
  var readerWaits: Readiness { get set }

  /// What the one who writes waits for; empty while he wants no call. Over means `.hasSpaceAvailable`.
  var writerWaits: Readiness { get set }

  /// Bytes are inside (a TLS record, a decoder) that waiting for the descriptor would not tell of.
  var holdsBytes: Bool { get }

  /// A unit that was taken has not left yet (a TLS record, a frame): half-close, drain and close wait for it.
  var holdsUnit: Bool { get }

  /// Bytes that were taken and that the other side has not acknowledged yet, as far as the stream can tell; else 0.
  var unacknowledged: Int { get }

  /// Bytes that were taken, that the other side has not read, and that `close()` would destroy; 0 is sure only when it is said
  /// twice, some milliseconds apart. Nil where the kernel delivers them all the same. Costs calls: for the end of a stream.
  var unread: Int? { get }

  /// The room a read needs at least, in bytes: 1 for byte streams, the datagram's size for others.
  var largestUnit: Int { get }

  /// Whether the other side learns of `finishWriting()` while it can still answer.
  var canHalfClose: Bool { get }

  /// `finishWriting()` asks the other side for its own end, and that it comes is worth waiting for before `close()`, though
  /// nothing else is read any more: the closing handshake of WebSocket.
  var hasClosingHandshake: Bool { get }

  /// Says that no more will be written. Call it when nothing is held any more.
  func finishWriting()

  /// `finishWriting()` says words of the stream's own (close_notify), which may be held like a unit.
  var saysFarewell: Bool { get }

  /// For one that nobody reads at the moment: the other side's machine may send more of what it still has, so that an end behind it
  /// comes in and is told by `.lastByteIsIn`. Bounded, and harmless to call again.
  func makeRoomForEnd()

  /// Ends the stream in order; no event comes afterwards. Safe to call twice. Lets go of the delegate by `dismissDelegate()`.
  func close()

  /// Ends the stream so that the other side sees it broke off: a socket is reset. Safe to call twice.
  func abort()

  /// The face for line settings and modem lines, if the stream has any.
  var serialLine: (any SerialLine)? { get }

  /// What is known of the device behind it, if anything ever is.
  var metadata: StreamMetadata? { get }
}

extension ByteStream {
  public var holdsBytes: Bool { false }
  public var holdsUnit: Bool { false }
  public var unacknowledged: Int { 0 }
  public var unread: Int? { nil }
  public var largestUnit: Int { 1 }
  public var canHalfClose: Bool { false }
  public var hasClosingHandshake: Bool { false }
  public var serialLine: (any SerialLine)? { nil }
  public var metadata: StreamMetadata? { nil }
  public var saysFarewell: Bool { false }
  public func finishWriting() {}
  public func makeRoomForEnd() {}
  public func abort() { close() }

  public func write(together runs: UnsafeMutableBufferPointer<iovec>) throws -> Transfer {
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

  /// For a stream that closes: its delegate is its delegate no longer, and learns of it.
  public func dismissDelegate() {
    let dismissed = delegate
    delegate = nil
    dismissed?.streamWasClosed(self)
  }

  /// What the stream is waited for altogether.
  public var interest: Readiness { readerWaits.union(writerWaits) }
}

/// What a stream tells its delegate, on the stream's lane.
public enum ByteStreamEvent: Equatable, Sendable {
  /// The stream can carry bytes. Streams that are handed over open do not say it.
  case openCompleted
  /// What `readerWaits` asked for is there: read on.
  case hasBytesAvailable
  /// What `writerWaits` asked for is there: write on.
  case hasSpaceAvailable
  /// The other side sends no more, or broke, while nobody read: what it said before is unread still. Told once, by streams
  /// that can tell.
  case lastByteIsIn
  /// The stream broke while nobody read or wrote; the error is final.
  case errorOccurred(SystemError)
  /// Both directions ended while nobody read or wrote. What was read from it before may still be kept for another stream:
  /// this alone is no reason to close that.
  case endEncountered
}

public protocol ByteStreamDelegate: AnyObject {
  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent)
  /// Somebody on this side closed it: no event comes any more. For those who wait for one; who closed it knows.
  func streamWasClosed(_ stream: any ByteStream)
}

extension ByteStreamDelegate {
  public func streamWasClosed(_ stream: any ByteStream) {}
}
