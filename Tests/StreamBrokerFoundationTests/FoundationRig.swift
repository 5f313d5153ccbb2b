// What the tests of Foundation's streams share: a pair with a far end of the test, a thread with a run loop, delegates.

import ByteStreams
import Foundation
import StreamTestKit
import Synchronization
import Testing

import StreamBroker
@testable import StreamBrokerCore
@testable import StreamBrokerFoundation

/// fail:///path?step=N: a Unix socket whose Nth read or write fails with EIO. With `full=yes` it never takes output.
/// Its device has facts, and a better signal once something is written.
struct FailingConnector: Connector {
  static let grammar = SchemeGrammar(
    "fail", example: "fail:///run/x?step=1", authority: .none, path: .file,
    parameters: [
      .init("step", .integer(1...1000), standard: "1", "the call that fails"),
      .init("full", .flag, standard: "no", "never takes output"),
    ])
  private let unix: UnixConnector
  private let step: Int
  private let isFull: Bool

  init(_ url: EndpointURL) throws(URLProblem) {
    unix = try UnixConnector(url)
    step = url.integer("step") ?? 1
    isFull = url.flag("full") ?? false
  }

  func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    unix.open(request, on: poller) { [step, isFull] in
      done($0.map { FailingStream(over: $0, step: step, isFull: isFull) })
    }
  }
}

private final class FailingStream: LayeredStream {
  let below: any ByteStream
  var delegate: (any ByteStreamDelegate)? { didSet { if isClosed && delegate != nil { delegate = nil } } }
  private var left: Int
  private let isFull: Bool
  private var isClosed = false
  let metadata: StreamMetadata?

  init(over below: any ByteStream, step: Int, isFull: Bool) {
    (self.below, left, self.isFull) = (below, step, isFull)
    var facts = DeviceFacts()
    facts.name = "N"
    facts.manufacturer = "Ma"
    facts.model = "Mo"
    facts.serialNumber = "S"
    facts.firmware = "F"
    facts.signalStrength = -70
    metadata = StreamMetadata(facts)
    below.delegate = self
  }

  private func count() throws(SystemError) {
    left -= 1
    if left <= 0 { throw SystemError("io", EIO) }
  }

  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    try count()
    return try below.read(into: run)
  }
  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    if isFull { return .blocked(until: []) }
    try count()
    metadata?.update { $0.signalStrength = -50 }
    return try below.write(run)
  }
  func close() { end { below.close() } }
  func abort() { end { below.abort() } }
  private func end(_ closeBelow: () -> Void) {
    isClosed = true
    closeBelow()
    dismissDelegate()
  }
}

let foundationBroker = Broker(Schemes.standard + [FailingConnector.self])

/// A server of the test, and the URL that leads to it.
final class Echoless: Sendable {
  let folder: TemporaryFolder
  let server: UnixServer

  init() throws {
    folder = try TemporaryFolder()
    server = try UnixServer(folder / "server")
  }

  deinit {
    server.close()
    unlink(server.path)
  }

  func url(failing step: Int? = nil, isFull: Bool = false) -> String {
    if isFull { return "fail://\(server.path)?step=1000&full=yes" }
    return step.map { "fail://\(server.path)?step=\($0)" } ?? "unix://\(server.path)"
  }

  func link(failing step: Int? = nil, isFull: Bool = false) async throws -> EndpointLink {
    try await EndpointLink.open(url(failing: step, isFull: isFull), .seconds(10), foundationBroker, .background)
  }

  /// Runs `body` on a thread of its own with an open pair and its far end.
  func run<Result: Sendable>(
    failing step: Int? = nil, _ body: @escaping @Sendable (InputStream, OutputStream, FarEnd) throws -> Result
  ) async throws -> Result {
    let link = try await link(failing: step)
    return try await onThread { [server] in
      let (input, output) = link.streams()
      return try body(input, output, try server.accept())
    }
  }
}

/// Runs `body` on a thread of its own, whose run loop ends with it. (Dispatch keeps its threads, and their run loops,
/// for five seconds.)
func onThread<Result: Sendable>(_ body: @escaping @Sendable () throws -> Result) async throws -> Result {
  try await withCheckedThrowingContinuation { continuation in
    Thread.detachNewThread { continuation.resume(with: Swift.Result { try body() }) }
  }
}

/// Records the events of streams, and reacts to them.
final class Recorder: NSObject, StreamDelegate {
  var events: [(stream: String, event: Stream.Event)] = []
  var received: [UInt8] = []
  /// What the input reads at once; nil: nothing.
  var readsAtOnce: Int? = 4096
  var react: (Stream, Stream.Event) -> Void = { _, _ in }

  func stream(_ aStream: Stream, handle eventCode: Stream.Event) {
    events.append((aStream is InputStream ? "in" : "out", eventCode))
    if eventCode == .hasBytesAvailable, let input = aStream as? InputStream, let most = readsAtOnce {
      var piece = [UInt8](repeating: 0, count: most)
      let count = input.read(&piece, maxLength: most)
      if count > 0 { received += piece[..<count] }
    }
    react(aStream, eventCode)
  }

  /// The far end sends a little each time somebody asks.
  var sends: FarEnd?
  var hasErrors: Bool {
    try? sends?.send([2, 3, 4])
    return names("in").contains("error") && names("out").contains("error")
  }

  func names(_ stream: String) -> [String] { events.filter { $0.stream == stream }.map { $0.event.name } }
}

extension Stream.Event {
  var name: String {
    switch self {
    case .openCompleted: "open"
    case .hasBytesAvailable: "bytes"
    case .hasSpaceAvailable: "space"
    case .errorOccurred: "error"
    case .endEncountered: "end"
    default: "\(rawValue)"
    }
  }
}

/// Runs this thread's run loop until `isOver`; false if that takes longer than ten seconds.
@discardableResult
func runLoop(_ mode: RunLoop.Mode = .default, until isOver: () -> Bool) -> Bool {
  let end = Date(timeIntervalSinceNow: 10)
  while !isOver() {
    guard Date() < end else { return false }
    _ = RunLoop.current.run(mode: mode, before: Date(timeIntervalSinceNow: 0.02))
  }
  return true
}

/// Runs this thread's run loop for a moment, in which nothing is expected.
func idle(_ mode: RunLoop.Mode = .default, _ seconds: Double = 0.15) {
  let end = Date(timeIntervalSinceNow: seconds)
  while Date() < end { _ = RunLoop.current.run(mode: mode, before: end) }
}

extension Stream {
  var errorCode: Int? { streamError.map { ($0 as NSError).code } }
}

extension OutputStream {
  var isFull: Bool { streamStatus == .open && !hasSpaceAvailable }
}

extension InputStream {
  /// Reads until the end, blocking.
  func readAll() -> [UInt8] {
    var all: [UInt8] = []
    var piece = [UInt8](repeating: 0, count: 4096)
    while true {
      let count = read(&piece, maxLength: piece.count)
      guard count > 0 else { return all }
      all += piece[..<count]
    }
  }
}

/// A value that several threads change. (A class, because a local Atomic in such closures crashes the compiler of Swift
/// 6.3.)
final class Kept<Value: Sendable>: Sendable {
  private let content: Mutex<Value>
  init(_ value: Value) { content = Mutex(value) }
  var value: Value { content.withLock { $0 } }
  func set(_ value: Value) { content.withLock { $0 = value } }
  func change(_ body: (inout Value) -> Void) {
    content.withLock { content in
      var copy = content
      body(&copy)
      content = copy
    }
  }
}
