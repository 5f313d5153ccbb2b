// The same suite for the handle of every scheme, with the far ends of ConformanceTests.

import ByteStreams
import Dispatch
import Glibc
import StreamTestKit
import Testing

import StreamBroker
@testable import StreamBrokerCore

@Suite("A handle on every scheme", .timeLimit(.minutes(5)))
struct HandleConformanceTests {
  @Test("tcp: keeps what a handle promises", arguments: ["127.0.0.1", "::1"])
  func tcp(host: String) async throws { try await HandleConformance(TCPRig(host: host)).run() }

  @Test("tls: keeps what a handle promises")
  func tls() async throws { try await HandleConformance(TLSRig()).run() }

  @Test("ws: keeps what a handle promises")
  func ws() async throws { try await HandleConformance(WebSocketRig()).run() }

  @Test("wss: keeps what a handle promises")
  func wss() async throws { try await HandleConformance(WebSocketRig(tls: TLSRig())).run() }

  @Test("tty: keeps what a handle promises")
  func tty() async throws { try await HandleConformance(PtyRig()).run() }

  @Test("unix: keeps what a handle promises")
  func unix() async throws { try await HandleConformance(UnixRig(folder: TemporaryFolder())).run() }

  @Test("pty: keeps what a handle promises")
  func pty() async throws { try await HandleConformance(ProgramRig(folder: TemporaryFolder())).run() }

  @Test("exec: keeps what a handle promises")
  func exec() async throws {
    try ProgramGuard.shared.start()  // keeps one descriptor open for good
    try await HandleConformance(ExecRig(folder: TemporaryFolder())).run()
  }

  @Test("sim: keeps what a handle promises")
  func sim() async throws { try await HandleConformance(SimRig()).run() }
}

private struct HandleConformance: Sendable {
  private let rig: any StreamRig
  private let broker = Broker(Schemes.standard)

  init(_ rig: any StreamRig) { self.rig = rig }

  func run() async throws {
    for _ in 0..<8 { try await broker.connect("sim://echo").close() }  // makes the lanes, which stay
    try await expectNoDescriptorLeak {
      try await echo(.echo) { $0 }
      try await echo(.changingEcho, FarPart.changed)
      try await hangUp()
      try await halfClose()
      try await slowReader()
      try await refusal()
      try await reopening()
    }
  }

  /// Bytes come back complete and in order, with every chunk size, and for a writer and a reader at the same time.
  private func echo(_ part: FarPart, _ answer: @escaping @Sendable ([UInt8]) -> [UInt8]) async throws {
    guard let url = try rig.farEnd(part) else { return }
    var random = SeededRandom()
    let seed = random.seed
    let chunk = Int.random(in: 1...5000, using: &random)
    let bytes = random.bytes(min(100_000, 200 * chunk))
    let stream = try await broker.connect(url)
    #expect(stream.metadata.url.hasPrefix(url.prefix { $0 != ":" }) && stream.status == .open)
    let writing = Task {
      for start in stride(from: 0, to: bytes.count, by: chunk) {
        try await stream.write(Array(bytes[start..<min(start + chunk, bytes.count)]), within: .seconds(30))
      }
    }
    var received: [UInt8] = []
    while received.count < bytes.count {
      let more = try await stream.read(upTo: chunk, within: .seconds(30))
      if more.isEmpty { break }
      received += more
    }
    try await writing.value
    #expect(received == answer(bytes), "echo of \(url), seed \(seed)")
    try await stream.flush(within: .seconds(30))
    let error = await #expect(throws: SystemError.self) { try await stream.read(within: .milliseconds(5)) }
    #expect(error?.errno == ETIMEDOUT)
    let waiting = Task { try await stream.read() }
    stream.close()
    #expect(try await waiting.value.isEmpty)
    await #expect(throws: SystemError.self) { try await stream.write([1]) }
  }

  /// Bytes sent before the far end hung up arrive, and then the end.
  private func hangUp() async throws {
    let said = Array("last words".utf8)
    guard let url = try rig.farEnd(.sayAndHangUp(said)) else { return }
    let stream = try await broker.connect(url)
    var lines: [String] = []
    for try await line in stream.lines { lines.append(line) }
    #expect(lines == ["last words"], "hang-up of \(url)")
    #expect(try await stream.read().isEmpty)
  }

  /// After `finishWriting` the answer still arrives.
  private func halfClose() async throws {
    guard let url = try rig.farEnd(.answerAfterTheEnd) else { return }
    var random = SeededRandom()
    let bytes = random.bytes(50_000)
    let stream = try await broker.connect(url)
    try await stream.write(bytes)
    try await stream.finishWriting(within: .seconds(10))
    var received: [UInt8] = []
    for try await chunk in stream.bytes { received += chunk }
    #expect(received == bytes, "half-close of \(url)")
  }

  /// A far end that does not read makes `write` wait, within its time; later it goes on.
  private func slowReader() async throws {
    let mayWake = DispatchSemaphore(value: 0)
    guard let url = try rig.farEnd(.sleepThenCount(mayWake)) else { return }
    let stream = try await broker.connect(url)
    let much = [UInt8](repeating: 0x55, count: 64 << 20)
    let error = await #expect(throws: SystemError.self) { try await stream.write(much, within: .milliseconds(500)) }
    #expect(error?.errno == ETIMEDOUT, "\(url) takes without end")
    let waiting = Task { try await stream.write(much) }
    waiting.cancel()
    await #expect(throws: CancellationError.self) { try await waiting.value }
    mayWake.signal()
    // Without a time limit: the far end has some MiB to read, one byte after the other for WebSocket.
    try await stream.write([UInt8](repeating: 0x55, count: 64 << 10))
    try await stream.flush()
  }

  /// Without a server, opening fails.
  private func refusal() async throws {
    guard let url = try rig.farEnd(.refuse) else { return }
    let failure = await #expect(throws: OpenFailure.self, "\(url)") { try await broker.connect(url) }
    #expect(failure?.cause != nil)
  }

  /// It can be opened again right after it was closed, and after its last reference.
  private func reopening() async throws {
    for round in 0..<5 {
      guard let url = try rig.farEnd(.echo) else { return }
      let stream = try await broker.connect(url)
      let bytes = Array("round \(round);".utf8)
      try await stream.write(bytes)
      #expect(try await stream.read(until: [UInt8(ascii: ";")], within: .seconds(30)) == bytes)
      if round % 2 == 0 { stream.close() }
    }
  }
}
