// The async face of a stream, for programs that import the library and would rather write loops than handle events. Lives
// on the stream's lane as the stream does: use it in code that is isolated to that lane. The gateway does not use it.

import Glibc
import Synchronization

/// ```
/// func talk(on lane: isolated Lane) async throws {
///   let stream = try await broker.open("tcp://127.0.0.1:4001", on: lane)
///   defer { stream.close() }
///   try await stream.send(Array("hello\n".utf8))
///   for try await chunk in stream.bytes { print(chunk.count) }
/// }
/// ```
extension ByteStream {
  /// What comes, in chunks as they come, until the stream ends. Throws what breaks the stream, and `CancellationError`.
  /// Takes the stream's delegate for good. One loop at a time; it ends when somebody else closes the stream.
  public var bytes: AsyncBytes { AsyncBytes(AsyncFace.of(self)) }

  /// Sends everything; returns when the stream has taken it. Throws what breaks the stream (EPIPE when somebody closes it), and
  /// `CancellationError`, after which part of it may have left. Takes the stream's delegate for good. One at a time.
  public func send(_ bytes: [UInt8]) async throws { try await AsyncFace.of(self).send(bytes) }
}

/// The bytes of a stream as an asynchronous sequence of chunks, none of them empty.
public struct AsyncBytes: AsyncSequence {
  public typealias Element = [UInt8]

  private let face: AsyncFace

  fileprivate init(_ face: AsyncFace) { self.face = face }

  public func makeAsyncIterator() -> Iterator { Iterator(face: face) }

  public struct Iterator: AsyncIteratorProtocol {
    fileprivate let face: AsyncFace

    // With the caller's isolation: the form without it would run on the default executor, off the stream's lane.
    public func next(isolation actor: isolated (any Actor)?) async throws(any Error) -> [UInt8]? {
      try await face.receive()
    }
  }
}

/// Turns a stream's events into waits that end.
private final class AsyncFace: ByteStreamDelegate {
  private let stream: any ByteStream
  private let bytesCame = Wait()
  private let spaceCame = Wait()
  private var error: SystemError?
  private static let largestChunk = 64 * 1024

  private init(_ stream: any ByteStream) {
    self.stream = stream
    stream.delegate = self
  }

  static func of(_ stream: any ByteStream) -> AsyncFace { stream.delegate as? AsyncFace ?? AsyncFace(stream) }

  func receive() async throws -> [UInt8]? {
    var ended = false
    while true {
      if let error { throw error }
      var wish: Readiness?
      let chunk = try [UInt8](unsafeUninitializedCapacity: Self.largestChunk) { run, count in
        switch try stream.read(into: UnsafeMutableRawBufferPointer(run)) {
        case .moved(let moved):
          // By hand: typed throws in an async function crash the compiler in a release.
          guard moved >= 0 && moved <= run.count else {
            throw InternalFault.miscounted(moved, of: run.count, at: "stream.bytes")
          }
          count = moved
        case .blocked(let until): wish = until
        case .ended: ended = true
        }
      }
      if ended { return nil }
      if !chunk.isEmpty { return chunk }
      guard let wish else { continue }  // a header was eaten
      stream.readerWaits = wish
      defer { stream.readerWaits = [] }
      try await bytesCame.untilTold()
    }
  }

  func send(_ bytes: [UInt8]) async throws {
    var sent = 0
    while sent < bytes.count {
      if let error { throw error }
      switch try bytes.withUnsafeBytes({ try stream.write(UnsafeRawBufferPointer(rebasing: $0[sent...])) }) {
      case .moved(let count):
        guard count >= 0 && count <= bytes.count - sent else {
          throw InternalFault.miscounted(count, of: bytes.count - sent, at: "stream.send")
        }
        sent += count
      case .ended: throw SystemError("write", EPIPE)
      case .blocked(let wish):
        stream.writerWaits = wish
        defer { stream.writerWaits = [] }
        try await spaceCame.untilTold()
      }
    }
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .openCompleted, .lastByteIsIn: break
    case .hasBytesAvailable:
      stream.readerWaits = []
      bytesCame.tell()
    case .hasSpaceAvailable:
      stream.writerWaits = []
      spaceCame.tell()
    case .errorOccurred(let error):
      self.error = error
      wakeAll()
    case .endEncountered: wakeAll()
    }
  }

  /// Who waits tries once more, and meets the end.
  func streamWasClosed(_ stream: any ByteStream) { wakeAll() }

  private func wakeAll() {
    bytesCame.tell()
    spaceCame.tell()
  }
}

/// Somebody waits until he is told, or his task is cancelled, which can come from any thread.
private final class Wait: Sendable {
  private enum State {
    case idle, told
    case waiting(CheckedContinuation<Void, Never>)
  }
  private let state = Mutex(State.idle)

  func tell() {
    let waiting = state.withLock { state -> CheckedContinuation<Void, Never>? in
      guard case .waiting(let continuation) = state else {
        state = .told
        return nil
      }
      state = .idle
      return continuation
    }
    waiting?.resume()
  }

  /// Being told before counts; then it is asked again, and finds nothing.
  func untilTold() async throws {
    await withTaskCancellationHandler {
      await withCheckedContinuation { continuation in
        let wasTold = state.withLock { state in
          switch state {
          case .told:
            state = .idle
            return true
          case .idle:
            state = .waiting(continuation)
            return false
          case .waiting: preconditionFailure("one loop and one send at a time")
          }
        }
        if wasTold { continuation.resume() }
      }
    } onCancel: {
      tell()
    }
    try Task.checkCancellation()
  }
}
