// The same suite for every scheme: what any stream must do, whatever is behind it. A scheme joins by a rig of some twenty
// lines that says how to make a far end (see TCPRig), and one test that calls `run`.

import ByteStreams
import Dispatch
import Glibc
import StreamBroker
import Testing

/// What the far end does once somebody has connected.
public enum FarPart: Sendable {
  /// Says back what it hears, until the end.
  case echo
  /// Says this and hangs up.
  case sayAndHangUp([UInt8])
  /// Hears everything up to the end, and then says it back.
  case answerAfterTheEnd
  /// Does not listen before it is told to, then to everything.
  case sleepThenCount(DispatchSemaphore)
  /// Nobody is there.
  case refuse
}

/// How a scheme gets its far end. `farEnd` starts it on a thread of its own and answers the URL to open; nil when this
/// scheme has nothing of the kind.
public protocol StreamRig: Sendable {
  func farEnd(_ part: FarPart) throws -> String?
}

/// The far end of a connection, as far as a part needs it.
public protocol FarParty: Sendable {
  func send(_ bytes: [UInt8]) throws
  /// What comes next; empty at the end.
  func receive() throws -> [UInt8]
  func receiveToEnd() throws -> [UInt8]
  func finishWriting()
  func close()
}

extension FarEnd: FarParty {
  public func send(_ bytes: [UInt8]) throws { try send(bytes[...]) }
  public func receive() throws -> [UInt8] { try receive(upTo: 65_536) }
}

extension FarParty {
  /// Plays the part, blocking, to its end.
  public func play(_ part: FarPart) throws {
    switch part {
    case .echo:
      while true {
        let heard = try receive()
        if heard.isEmpty { break }
        try send(heard)
      }
    case .sayAndHangUp(let bytes): try send(bytes)
    case .answerAfterTheEnd: try send(try receiveToEnd())
    case .sleepThenCount(let mayWake):
      mayWake.wait()
      while !(try receive().isEmpty) {}
    case .refuse: break
    }
    close()
  }
}

public struct StreamConformance: Sendable {
  private let rig: any StreamRig
  private let broker: Broker

  public init(_ rig: any StreamRig, _ broker: Broker = Broker(Schemes.standard)) {
    self.rig = rig
    self.broker = broker
  }

  /// Runs everything the rig can make a far end for.
  public func run() async throws {
    try await expectNoDescriptorLeak {
      try await echo()
      try await hangUp()
      try await halfClose()
      try await slowReader()
      try await refusal()
      try await reopening()
      try await closing()
    }
  }

  /// What is sent comes back whole, in order, whatever the chunks.
  private func echo() async throws {
    guard let url = try rig.farEnd(.echo) else { return }
    var random = SeededRandom()
    let seed = random.seed
    let chunk = Int.random(in: 1...5000, using: &random)
    // On a busy machine each chunk may take a millisecond or two: a hundred thousand of one byte would outlast the test.
    let bytes = random.bytes(min(100_000, 400 * chunk))
    try await opened(url) { stream, lane in
      var sent = 0
      while sent < bytes.count {
        let part = Array(bytes[sent..<min(sent + chunk, bytes.count)])
        try await stream.writeAll(part, on: lane)
        #expect(try await stream.read(exactly: part.count, on: lane) == part, "echo of \(url), seed \(seed)")
        sent += part.count
      }
    }
  }

  /// What was said before the far end hung up arrives, and then the end; nothing is told that nobody waits for.
  private func hangUp() async throws {
    let said = Array("last words".utf8)
    guard let url = try rig.farEnd(.sayAndHangUp(said)) else { return }
    try await opened(url) { stream, lane in
      #expect(try await stream.readToEnd(on: lane) == said, "hang-up of \(url)")
      let again = try stream.read()
      #expect(again == .ended)
    }
  }

  /// Who has finished writing still hears the answer.
  private func halfClose() async throws {
    guard let url = try rig.farEnd(.answerAfterTheEnd) else { return }
    var random = SeededRandom()
    let bytes = random.bytes(50_000)
    try await opened(url) { stream, lane in
      #expect(stream.canHalfClose)
      try await stream.writeAll(bytes, on: lane)
      stream.finishWriting()
      #expect(try await stream.readToEnd(on: lane) == bytes, "half-close of \(url)")
    }
  }

  /// A far end that does not read pushes back, is not waited for in vain, and is told of when there is space again.
  private func slowReader() async throws {
    let mayWake = DispatchSemaphore(value: 0)
    guard let url = try rig.farEnd(.sleepThenCount(mayWake)) else { return }
    try await opened(url) { stream, lane in
      let chunk = [UInt8](repeating: 0x55, count: 64 * 1024)
      var sent = 0
      var wish: Readiness?
      while wish == nil, sent < 256 << 20 {
        switch try stream.write(chunk) {
        case .moved(let count): sent += count
        case .blocked(let until): wish = until
        case .ended: throw SystemError("write", EPIPE)
        }
      }
      #expect(wish == .writable, "\(url) takes without end")
      let gate = Gate()
      let recorder = EventRecorder { _ in gate.open() }
      stream.delegate = recorder
      stream.writerWaits = .writable
      mayWake.signal()
      await gate.wait(on: lane)
      stream.writerWaits = []
      #expect(recorder.events.first == .hasSpaceAvailable)
      try await stream.writeAll(chunk, on: lane)
    }
  }

  /// Where nobody is, the opening fails with a sentence that names the place.
  private func refusal() async throws {
    guard let url = try rig.farEnd(.refuse) else { return }
    try await onLane { lane in
      do {
        try await broker.open(url, on: lane).close()
        Issue.record("\(url) opened though nobody is there")
      } catch let failure as OpenFailure {
        #expect(failure.cause != nil && "\(failure)".contains(" "))
      }
    }
  }

  /// It can be opened again at once after it was closed.
  private func reopening() async throws {
    for round in 0..<5 {
      guard let url = try rig.farEnd(.echo) else { return }
      try await opened(url) { stream, lane in
        let bytes = Array("round \(round)".utf8)
        try await stream.writeAll(bytes, on: lane)
        #expect(try await stream.read(exactly: bytes.count, on: lane) == bytes)
      }
    }
  }

  /// A closed stream answers ended, says nothing more but that, and may be closed again.
  private func closing() async throws {
    guard let url = try rig.farEnd(.echo) else { return }
    try await opened(url) { stream, lane in
      try await stream.writeAll([1], on: lane)
      #expect(try await stream.read(exactly: 1, on: lane) == [1])
      let recorder = EventRecorder()
      stream.delegate = recorder
      stream.readerWaits = .readable
      stream.writerWaits = .writable
      stream.close()
      let answers = (try stream.read(), try stream.write([1]))
      #expect(answers == (.ended, .ended))
      stream.readerWaits = []
      let gate = Gate()
      lane.poller.timers.after(.milliseconds(20)) { gate.open() }
      await gate.wait(on: lane)
      #expect(recorder.events.isEmpty && recorder.closings == 1)
      stream.abort()
      stream.delegate = recorder
      #expect(recorder.closings == 1 && stream.delegate == nil)
    }
  }

  private func opened(
    _ url: String, _ body: @Sendable (any ByteStream, isolated Lane) async throws -> Void
  ) async throws {
    try await onLane(url) { lane in
      let stream = try await broker.open(url, on: lane)
      defer { stream.close() }
      try await body(stream, lane)
    }
  }
}
