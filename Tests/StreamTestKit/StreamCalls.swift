// Reading and writing arrays, for tests that look at single answers.

import ByteStreams

extension ByteStream {
  /// One read into a buffer of its own; the bytes are dropped.
  public func read() throws -> Transfer {
    var bytes = [UInt8](repeating: 0, count: 4096)
    return try bytes.withUnsafeMutableBytes { try read(into: $0) }
  }

  public func write(_ bytes: [UInt8]) throws -> Transfer { try bytes.withUnsafeBytes { try write($0) } }

  /// What there is now, at most 4 KiB; nil when the read was blocked or ended.
  public func readSome() throws -> [UInt8]? {
    var bytes = [UInt8](repeating: 0, count: 4096)
    guard case .moved(let count) = try bytes.withUnsafeMutableBytes({ try read(into: $0) }) else { return nil }
    return Array(bytes[..<count])
  }

  /// Whether a read says ended. Only for streams with nothing left to read.
  public var sawEnd: Bool { (try? read()) == .ended }

  /// Reads until the stream ends, waiting in between. Takes the stream's delegate for that long.
  public func readToEnd(on lane: isolated Lane) async throws -> [UInt8] { try await read(exactly: .max, on: lane) }

  /// Reads `count` bytes, or fewer when the stream ends before.
  public func read(exactly count: Int, on lane: isolated Lane) async throws -> [UInt8] {
    let before = delegate
    defer {
      delegate = before
      readerWaits = []
    }
    var heard: [UInt8] = []
    var run = [UInt8](repeating: 0, count: 16_384)
    while heard.count < count {
      switch try run.withUnsafeMutableBytes({
        try read(into: UnsafeMutableRawBufferPointer(rebasing: $0.prefix(count - heard.count)))
      }) {
      case .moved(let got): heard += run[..<got]
      case .ended: return heard
      case .blocked(let wish):
        let gate = Gate()
        let recorder = EventRecorder { _ in gate.open() }
        delegate = recorder
        readerWaits = wish
        await gate.wait(on: lane)
        try Task.checkCancellation()
      }
    }
    return heard
  }

  /// Writes everything, waiting in between. Takes the stream's delegate for that long.
  public func writeAll(_ bytes: [UInt8], on lane: isolated Lane) async throws {
    let before = delegate
    defer {
      delegate = before
      writerWaits = []
    }
    var sent = 0
    while sent < bytes.count {
      switch try bytes.withUnsafeBytes({ try write(UnsafeRawBufferPointer(rebasing: $0[sent...])) }) {
      case .moved(let count): sent += count
      case .ended: throw SystemError("write", 32)  // EPIPE
      case .blocked(let wish):
        let gate = Gate()
        let recorder = EventRecorder { _ in gate.open() }
        delegate = recorder
        writerWaits = wish
        await gate.wait(on: lane)
        try Task.checkCancellation()
      }
    }
  }
}
