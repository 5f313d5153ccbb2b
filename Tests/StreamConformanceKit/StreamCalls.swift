// Reading and writing arrays, for tests that check single results.

import ByteStreams

extension ByteStream {
  /// One read into a buffer of its own; the bytes are dropped.
  public func read() throws -> Transfer {
    var bytes = [UInt8](repeating: 0, count: 4096)
    return try bytes.withUnsafeMutableBytes { try read(into: $0) }
  }

  public func write(_ bytes: [UInt8]) throws -> Transfer { try bytes.withUnsafeBytes { try write($0) } }

  /// The bytes available now, at most 4 KiB; nil if the read was blocked or ended.
  public func readSome() throws -> [UInt8]? {
    var bytes = [UInt8](repeating: 0, count: 4096)
    guard case .moved(let count) = try bytes.withUnsafeMutableBytes({ try read(into: $0) }) else { return nil }
    return Array(bytes[..<count])
  }

  /// Whether a read returns `.ended`. Only for streams with nothing left to read.
  public var sawEnd: Bool { (try? read()) == .ended }

  /// Reads until the stream ends, waiting when blocked. Uses the stream's delegate meanwhile.
  public func readToEnd(on lane: isolated Lane) async throws -> [UInt8] { try await read(exactly: .max, on: lane) }

  /// Reads `count` bytes, or fewer if the stream ends before.
  public func read(exactly count: Int, on lane: isolated Lane) async throws -> [UInt8] {
    let before = delegate
    defer {
      delegate = before
      readerWaits = []
    }
    var received: [UInt8] = []
    var run = [UInt8](repeating: 0, count: 16_384)
    while received.count < count {
      switch try run.withUnsafeMutableBytes({
        try read(into: UnsafeMutableRawBufferPointer(rebasing: $0.prefix(count - received.count)))
      }) {
      case .moved(let got): received += run[..<got]
      case .ended: return received
      case .blocked(let wish):
        let gate = Gate()
        let recorder = EventRecorder { _ in gate.open() }
        delegate = recorder
        readerWaits = wish
        await gate.wait(on: lane)
        try Task.checkCancellation()
      }
    }
    return received
  }

  /// Writes everything, waiting when blocked. Uses the stream's delegate meanwhile.
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

  /// Writes everything and reads `count` bytes meanwhile, or fewer if the stream ends before. Writing everything first
  /// would block both ends forever if the buffers between them hold less: a pty's hold about 12 KiB each way. Uses the
  /// stream's delegate meanwhile.
  public func exchange(_ bytes: [UInt8], for count: Int, on lane: isolated Lane) async throws -> [UInt8] {
    let before = delegate
    defer { delegate = before }
    var sent = 0
    var received: [UInt8] = []
    while received.count < count {
      var writerWish: Readiness = []
      if sent < bytes.count {
        switch try bytes.withUnsafeBytes({ try write(UnsafeRawBufferPointer(rebasing: $0[sent...])) }) {
        case .moved(let count): sent += count
        case .ended: throw SystemError("write", 32)  // EPIPE
        case .blocked(let wish): writerWish = wish
        }
      }
      var run = [UInt8](repeating: 0, count: min(16_384, count - received.count))
      switch try run.withUnsafeMutableBytes({ try read(into: $0) }) {
      case .moved(let got): received += run[..<got]
      case .ended: return received
      case .blocked(let readerWish):
        guard sent == bytes.count || !writerWish.isEmpty else { continue }
        let gate = Gate()
        let recorder = EventRecorder { _ in gate.open() }
        delegate = recorder
        readerWaits = readerWish
        writerWaits = writerWish
        await gate.wait(on: lane)
        readerWaits = []
        writerWaits = []
        try Task.checkCancellation()
      }
    }
    return received
  }
}
