// The same suite for every scheme: what any stream must do, whatever transport it uses. To join, a scheme needs a rig
// of about twenty lines that makes a far end (see TCPRig), and one test that calls `run`. Schemes of other packages
// join in the same way: this target is a product, and needs nothing but StreamBrokerCore.

import ByteStreams
import Dispatch
import Glibc
import StreamBrokerCore
import Testing

/// What the far end does after a client has connected.
public enum FarPart: Sendable {
  /// Sends everything back, until the end.
  case echo
  /// Sends each byte back changed: a right answer shows that it received the right bytes, and that no layer is missing.
  case changingEcho
  /// Sends these bytes and hangs up.
  case sayAndHangUp([UInt8])
  /// Reads up to the end, and then sends everything back.
  case answerAfterTheEnd
  /// Reads nothing until it is signalled, then everything.
  case sleepThenCount(DispatchSemaphore)
  /// No server.
  case refuse
}

extension FarPart {
  /// What a changing echo sends for `bytes`. No layer that masks or shifts single bytes does the same.
  public static func changed(_ bytes: [UInt8]) -> [UInt8] { bytes.map { $0 &* 5 &+ 1 } }
}

extension FarPart {
  /// Plays the part on a thread of its own, with the far end that `accept` waits for. Records what fails.
  public func begin(_ accept: @escaping @Sendable () throws -> any FarParty) {
    DispatchQueue(label: "far end").async {
      do { try accept().play(self) } catch { Issue.record(error) }
    }
  }
}

/// How a scheme gets its far end. `farEnd` starts it on its own thread (`FarPart.begin`) and returns the URL to open;
/// nil if this scheme does not support the part.
public protocol StreamRig: Sendable {
  func farEnd(_ part: FarPart) throws -> String?
}

/// The far end of a connection, as far as a part needs it.
public protocol FarParty: Sendable {
  func send(_ bytes: [UInt8]) throws
  /// The next bytes; empty at the end.
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
  public func receiveToEnd() throws -> [UInt8] {
    var bytes: [UInt8] = []
    while case let more = try receive(), !more.isEmpty { bytes += more }
    return bytes
  }

  /// Plays the part to its end. Blocks.
  public func play(_ part: FarPart) throws {
    switch part {
    case .echo: try answerAll { $0 }
    case .changingEcho: try answerAll(FarPart.changed)
    case .sayAndHangUp(let bytes): try send(bytes)
    case .answerAfterTheEnd: try send(try receiveToEnd())
    case .sleepThenCount(let mayWake):
      mayWake.wait()
      while !(try receive().isEmpty) {}
    case .refuse: break
    }
    close()
  }

  private func answerAll(_ answer: ([UInt8]) -> [UInt8]) throws {
    while true {
      let received = try receive()
      if received.isEmpty { break }
      try send(answer(received))
    }
  }
}

public struct StreamConformance: Sendable {
  private let rig: any StreamRig
  private let broker: Broker

  /// `broker` knows the rig's scheme.
  public init(_ rig: any StreamRig, _ broker: Broker) {
    self.rig = rig
    self.broker = broker
  }

  /// Runs every part that the rig supports.
  public func run() async throws {
    try await expectNoDescriptorLeak {
      try await echo(.echo) { $0 }
      try await echo(.changingEcho, answering: FarPart.changed)
      try await hangUp()
      try await halfClose()
      try await slowReader()
      try await refusal()
      try await reopening()
      try await closing()
    }
  }

  /// The grammar's example and defaults are valid, and the canonical text of a URL reads back as the same URL.
  private func expectForm(of text: String) throws {
    let url = try broker.url(text)
    #expect(throws: Never.self, "the grammar's example") { try broker.url(url.grammar.example) }
    for parameter in url.grammar.parameters {
      guard let standard = parameter.standard else { continue }
      #expect(throws: Never.self, "the default of \(parameter.name)") { try parameter.kind.read(standard) }
    }
    // Secrets are masked in the canonical text.
    if url.settings.contains(where: { if case .secret = $0.value { true } else { false } }) { return }
    #expect(throws: Never.self, "the canonical text of \(text)") {
      let again = try broker.url(url.description)
      #expect(again == url)
    }
  }

  /// Sent bytes come back complete and in order, with every chunk size.
  private func echo(_ part: FarPart, answering answer: @escaping @Sendable ([UInt8]) -> [UInt8]) async throws {
    guard let url = try rig.farEnd(part) else { return }
    try expectForm(of: url)
    var random = SeededRandom()
    let seed = random.seed
    let chunk = Int.random(in: 1...5000, using: &random)
    // On a busy machine each chunk may take a millisecond or two: a hundred thousand chunks of one byte would exceed
    // the test's time limit.
    let bytes = random.bytes(min(100_000, 400 * chunk))
    try await opened(url) { stream, lane in
      var sent = 0
      while sent < bytes.count {
        let part = Array(bytes[sent..<min(sent + chunk, bytes.count)])
        try await stream.writeAll(part, on: lane)
        let received = try await stream.read(exactly: part.count, on: lane)
        #expect(received == answer(part), "echo of \(url), seed \(seed)")
        sent += part.count
      }
    }
  }

  /// Bytes sent before the far end hung up arrive, and then the end.
  private func hangUp() async throws {
    let said = Array("last words".utf8)
    guard let url = try rig.farEnd(.sayAndHangUp(said)) else { return }
    try await opened(url) { stream, lane in
      #expect(try await stream.readToEnd(on: lane) == said, "hang-up of \(url)")
      let again = try stream.read()
      #expect(again == .ended)
    }
  }

  /// After `finishWriting` the answer still arrives.
  private func halfClose() async throws {
    guard let url = try rig.farEnd(.answerAfterTheEnd) else { return }
    var random = SeededRandom()
    let bytes = random.bytes(50_000)
    try await opened(url) { stream, lane in
      #expect(stream.closeBehavior.canHalfClose)
      try await stream.writeAll(bytes, on: lane)
      stream.finishWriting()
      #expect(try await stream.readToEnd(on: lane) == bytes, "half-close of \(url)")
    }
  }

  /// A far end that does not read blocks the writer, and `.hasSpaceAvailable` comes when there is space again.
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

  /// Without a server, opening fails with a message that names the address.
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

  /// It can be opened again right after it was closed.
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

  /// A closed stream returns `.ended`, reports only its close, and may be closed again.
  private func closing() async throws {
    guard let url = try rig.farEnd(.echo) else { return }
    try await opened(url) { stream, lane in
      try await stream.writeAll([1], on: lane)
      #expect(try await stream.read(exactly: 1, on: lane) == [1])
      try await expectCloses(stream, on: lane)
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
