// A scheme for tests of handles: each test makes the streams that an opening gives, or the connector behind it.

import ByteStreams
import Glibc
import StreamTestKit
import Synchronization
import Testing

@testable import StreamBrokerCore

/// test:///NAME opens what the test's `TestEndpoint` of that name makes.
struct TestConnector: Connector {
  static let grammar = SchemeGrammar("test", example: "test:///x", authority: .none, path: .file)
  private let endpoint: TestEndpoint?
  private let path: String

  init(_ url: EndpointURL) throws(URLProblem) {
    path = url.path
    endpoint = TestEndpoint.named(url.path)
  }

  var node: String? { endpoint?.connector?.node }

  func watch(
    on poller: Poller, after cause: SystemError?, _ changed: @escaping (DeviceNews) -> Void
  ) -> (any DeviceWatch)? {
    endpoint?.connector?.watch(on: poller, after: cause, changed)
  }

  func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    request.report?(.open(path))
    guard let endpoint else {
      done(.failure(OpenFailure("open \(path)", SystemError("open", ENOENT))))
      return CompletedOpening()
    }
    if let connector = endpoint.connector { return connector.open(request, on: poller, done) }
    return endpoint.open(on: poller, done)
  }
}

/// Makes the streams of one test. Its URL works until it is released.
final class TestEndpoint: Sendable {
  typealias Make = @Sendable (Poller) throws -> any ByteStream

  private struct Weak { weak var endpoint: TestEndpoint? }
  private static let all = Mutex<[String: Weak]>([:])
  private static let count = Atomic<Int>(0)

  let url: String
  /// Opens in place of `make`.
  let connector: (any Connector)?
  private let make: Make
  /// How many openings there were, failed ones too.
  let openings = Atomic<Int>(0)

  init(_ make: @escaping Make) {
    let name = "/\(Self.count.add(1, ordering: .relaxed).newValue)"
    url = "test://\(name)"
    self.make = make
    connector = nil
    Self.all.withLock { $0[name] = Weak(endpoint: self) }
  }

  init(_ connector: any Connector) {
    let name = "/\(Self.count.add(1, ordering: .relaxed).newValue)"
    url = "test://\(name)"
    make = { _ in throw SystemError("open", ENOENT) }
    self.connector = connector
    Self.all.withLock { $0[name] = Weak(endpoint: self) }
  }

  static func named(_ name: String) -> TestEndpoint? { all.withLock { $0[name]?.endpoint } }

  fileprivate func open(
    on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    openings.add(1, ordering: .relaxed)
    do { done(.success(try make(poller))) } catch {
      done(.failure(OpenFailure("open \(url)", error as? SystemError)))
    }
    return CompletedOpening()
  }
}

let testBroker = Broker([TestConnector.self] + CoreSchemes.all)

/// A handle over a socket pair, and the other end of the pair.
func connectedPair(observer: StreamObserver? = nil) async throws -> (stream: StreamHandle, far: FarEnd) {
  let (near, far) = try FarEnd.pair()
  let endpoint = TestEndpoint { try near.stream(on: $0) }
  return (try await testBroker.connect(endpoint.url, observer: observer), far)
}

/// A stream, or another object, that a test's endpoint makes on the lane of a handle. The test uses it there.
final class OnHandleLane<Value: AnyObject>: Sendable {
  private struct State {
    var bodies: [@Sendable (Value) -> Void] = []
    var bell: (@Sendable (Bool) -> Void)?
  }
  private let state = Mutex(State())
  // Both are set and used on the lane.
  private nonisolated(unsafe) var value: Value?
  private nonisolated(unsafe) var poller: Poller?

  /// Call it on the lane, once.
  func set(_ value: Value, on poller: Poller) {
    self.value = value
    self.poller = poller
    run()
  }

  private func run() {
    let bell = poller?.expect { [weak self] (_: Bool) in self?.run() }
    let bodies = state.withLock { state in
      defer { state = State(bell: bell) }
      return state.bodies
    }
    for body in bodies { if let value { body(value) } }
  }

  /// Runs `body` on the lane and waits for its result. Works from the moment when the value is set.
  @discardableResult
  func ask<Answer: Sendable>(_ body: @escaping @Sendable (Value) -> Answer) async -> Answer {
    await withCheckedContinuation { continuation in
      let bell = state.withLock { state in
        state.bodies.append { continuation.resume(returning: body($0)) }
        return state.bell.take()
      }
      bell?(true)
    }
  }

  /// Asks until the answer is true, for ten seconds.
  func reaches(_ condition: @escaping @Sendable (Value) -> Bool) async -> Bool {
    let end = monotonicNanoseconds() + Patience.nanoseconds
    while monotonicNanoseconds() < end {
      if await ask(condition) { return true }
    }
    return false
  }
}

/// A handle over a scripted stream.
func scripted(
  _ reconnect: Reconnect = .never, observer: StreamObserver? = nil, _ make: @escaping @Sendable () -> ScriptedStream
) async throws -> (stream: StreamHandle, kernel: OnHandleLane<ScriptedStream>) {
  let kernel = OnHandleLane<ScriptedStream>()
  let endpoint = TestEndpoint { poller in
    let stream = make()
    kernel.set(stream, on: poller)
    return stream
  }
  return (try await testBroker.connect(endpoint.url, reconnect: reconnect, observer: observer), kernel)
}
