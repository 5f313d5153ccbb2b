// The async interface of a stream, for programs that import the library and prefer loops to event handlers. Use it in
// code that is isolated to the stream's lane. The gateway does not use it.

import Glibc
import Synchronization

/// ```swift
/// func talk(on lane: isolated Lane) async throws {
///   let stream = try await broker.open("tcp://127.0.0.1:4001", on: lane)
///   defer { stream.close() }
///   try await stream.send(Array("hello\n".utf8))
///   for try await chunk in stream.bytes { print(chunk.count) }
/// }
/// ```
extension ByteStream {
  /// The stream's input, in chunks as they arrive, until the stream ends. Throws the error that broke the stream, or
  /// `CancellationError`. Takes the stream's delegate for good. Several loops share the chunks, in turn. A loop ends when
  /// other code closes the stream.
  public var bytes: AsyncBytes { AsyncBytes(AsyncEvents.of(self)) }

  /// Sends all of `bytes` and returns when the stream has taken them. Throws the error that broke the stream (EPIPE
  /// when other code closes it), or `CancellationError`; part of the bytes may have been sent by then. Takes the
  /// stream's delegate for good. Calls of several tasks queue in order: the bytes of one call stay together.
  public func send(_ bytes: [UInt8]) async throws { try await AsyncEvents.of(self).send(bytes) }
}

/// The bytes of a stream, as an asynchronous sequence of non-empty chunks.
public struct AsyncBytes: AsyncSequence {
  /// A chunk: the bytes of one read, 1 byte to 64 KiB.
  public typealias Element = [UInt8]

  private let face: AsyncEvents

  fileprivate init(_ face: AsyncEvents) { self.face = face }

  /// A loop over the chunks. Use it on the lane of the stream.
  public func makeAsyncIterator() -> Iterator { Iterator(face: face) }

  /// Reads chunks on the lane of the stream.
  public struct Iterator: AsyncIteratorProtocol {
    fileprivate let face: AsyncEvents

    // Runs with the caller's isolation; `next()` without it would run on the default executor, off the stream's lane.
    /// The next chunk; nil at the end of the input. Call it on the lane of the stream. Throws the error that broke the
    /// stream, or `CancellationError`.
    public func next(isolation actor: isolated (any Actor)?) async throws(any Error) -> [UInt8]? {
      try await face.receive()
    }
  }
}

/// Turns a stream's events into async waits.
private final class AsyncEvents: ByteStreamDelegate {
  private let stream: any ByteStream
  private let bytesCame = Wait()
  private let spaceCame = Wait()
  private let readers = Turns()
  private let writers = Turns()
  private var error: SystemError?
  /// Bytes that were moved since the last wait.
  private var movedInARow = 0
  private static let largestChunk = 64 * 1024
  private static let mostInARow = 1 << 20

  private init(_ stream: any ByteStream) {
    self.stream = stream
    stream.delegate = self
  }

  static func of(_ stream: any ByteStream) -> AsyncEvents { stream.delegate as? AsyncEvents ?? AsyncEvents(stream) }

  func receive() async throws -> [UInt8]? {
    try await readers.take()
    defer { readers.pass() }
    var ended = false
    while true {
      try await shareLane()
      var wish: Readiness?
      let chunk = try [UInt8](unsafeUninitializedCapacity: Self.largestChunk) { run, count in
        switch try stream.read(into: UnsafeMutableRawBufferPointer(run)) {
        case .moved(let moved):
          // Does not call `checked`, here and below: its typed throw in an async function crashes Swift 6.3's compiler
          // in release builds.
          guard moved >= 0 && moved <= run.count else {
            throw InternalFault.miscounted(moved, of: run.count, at: "stream.bytes")
          }
          count = moved
        case .blocked(let until): wish = until
        case .ended: ended = true
        }
      }
      if ended { return nil }
      if !chunk.isEmpty {
        movedInARow += chunk.count
        // A short chunk must not keep the memory of a long one.
        return chunk.count < Self.largestChunk / 2 ? chunk.withUnsafeBytes { Array($0) } : chunk
      }
      guard let wish else {  // only a header was read
        movedInARow += Self.largestChunk
        continue
      }
      if let error { throw error }  // only now: bytes that arrived before it come first
      stream.readerWaits = wish
      defer { stream.readerWaits = [] }
      movedInARow = 0
      try await bytesCame.untilTold()
    }
  }

  func send(_ bytes: [UInt8]) async throws {
    try await writers.take()
    defer { writers.pass() }
    var sent = 0
    while sent < bytes.count {
      try await shareLane()
      if let error { throw error }
      switch try bytes.withUnsafeBytes({ try stream.write(UnsafeRawBufferPointer(rebasing: $0[sent...])) }) {
      case .moved(let count):
        guard count >= 0 && count <= bytes.count - sent else {
          throw InternalFault.miscounted(count, of: bytes.count - sent, at: "stream.send")
        }
        sent += count
        movedInARow += count
      case .ended: throw SystemError("write", EPIPE)
      case .blocked(let wish):
        stream.writerWaits = wish
        defer { stream.writerWaits = [] }
        movedInARow = 0
        try await spaceCame.untilTold()
      }
    }
  }

  /// A loop that never has to wait would keep the lane from its other streams and its deadlines: now and then it lets a
  /// round pass.
  private func shareLane(on actor: isolated (any Actor)? = #isolation) async throws {
    guard movedInARow >= Self.mostInARow, let lane = actor as? Lane else { return }
    movedInARow = 0
    await withCheckedContinuation { continuation in lane.post { _ in continuation.resume() } }
    try Task.checkCancellation()
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .openCompleted, .inputEnded: break
    case .hasBytesAvailable:
      stream.readerWaits = []
      bytesCame.report()
    case .hasSpaceAvailable:
      stream.writerWaits = []
      spaceCame.report()
    case .errorOccurred(let error):
      self.error = error
      wakeAll()
    case .endEncountered: wakeAll()
    }
  }

  /// Waiting calls wake, try again and find that the stream has ended.
  func streamWasClosed(_ stream: any ByteStream) { wakeAll() }

  private func wakeAll() {
    bytesCame.report()
    spaceCame.report()
  }
}

/// Lets one task wait until `report()` is called or the task is cancelled; both can happen on any thread.
private final class Wait: Sendable {
  private enum State {
    case idle, reported
    case waiting(CheckedContinuation<Void, Never>)
  }
  private let state = Mutex(State.idle)

  func report() {
    let waiting = state.withLock { state -> CheckedContinuation<Void, Never>? in
      guard case .waiting(let continuation) = state else {
        state = .reported
        return nil
      }
      state = .idle
      return continuation
    }
    waiting?.resume()
  }

  /// Returns at once if `report()` was called before; the caller then tries again, perhaps in vain.
  func untilTold() async throws {
    await withTaskCancellationHandler {
      await withCheckedContinuation { continuation in
        let wasTold = state.withLock { state in
          switch state {
          case .reported:
            state = .idle
            return true
          case .idle:
            state = .waiting(continuation)
            return false
          case .waiting: return true  // `Turns` admits one task at a time
          }
        }
        if wasTold { continuation.resume() }
      }
    } onCancel: {
      report()
    }
    try Task.checkCancellation()
  }
}
