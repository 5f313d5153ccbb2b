// A stream for any task or actor. Its work is done on a lane, out of sight; code that is isolated to a lane of its own
// uses `open(_:on:)` instead, and saves the changes of thread.

import ByteStreams
import Glibc
import Synchronization

extension Broker {
  /// Opens `url` and returns a stream that works on any task or actor.
  /// ```swift
  /// let stream = try await Broker.standard.connect("tcp://127.0.0.1:4001", timeout: .seconds(5))
  /// try await stream.write(Array("hello\n".utf8))
  /// let answer = try await stream.read(upTo: 100, within: .seconds(2))
  /// stream.close()
  /// ```
  /// `timeout` limits the whole opening, and each later one that `reconnect` causes. A Bluetooth device that must be
  /// found by a scan needs some 30 seconds. Throws `URLProblem`, `OpenFailure`, `SystemError` if the process is out of
  /// descriptors, and `CancellationError` soon after the task is cancelled; what a blocking call still opens is closed
  /// when that call returns.
  public func connect(
    _ url: String, timeout: Duration = .seconds(10), reconnect: Reconnect = .never, observer: StreamObserver? = nil
  ) async throws -> StreamHandle {
    let parsed = try self.url(url)
    let connector = try connector(parsed)
    try Task.checkCancellation()
    let lane = try LanePool.next()
    let shared = HandleShared(parsed, observer)
    let handle = LaneRef(on: lane) { HandleCore(shared, on: $0.poller) }
    let first = FirstOpening()
    let start: @Sendable (isolated Lane, HandleCore) -> Void = { lane, core in
      core.start(
        HandleLink(connector, of: self, timeout: timeout, reconnect, shared, on: lane.poller) { result in
          lane.poller.timers.cancel(first.deadline)
          first.finish(result)
        })
    }
    let result = await withTaskCancellationHandler {
      await withCheckedContinuation { (continuation: CheckedContinuation<Result<Void, any Error>, Never>) in
        guard first.begin(continuation) else { return }
        handle.post { lane, core in
          let isClosing = parsed.device.map { ClosingDevices.wait(for: $0) { handle.post(start) } } ?? false
          if reconnect.kind == .always || isClosing {
            first.deadline = lane.poller.timers.after(timeout) {
              let reason = shared.status
              core.abort()
              first.finish(
                .failure(
                  OpenFailure(
                    "open \(shared.url)", SystemError("open", ETIMEDOUT),
                    advice: "not open within \(timeout)" + (reason.reason.map { "; \($0)" } ?? ""))))
            }
          }
          if !isClosing { start(lane, core) }
        }
      }
    } onCancel: {
      handle.post { lane, core in
        lane.poller.timers.cancel(first.deadline)
        if first.finish(.failure(CancellationError())) { core.abort() }
      }
    }
    try result.get()
    return StreamHandle(shared, handle)
  }
}

/// The task that waits for the first opening, and its deadline.
private final class FirstOpening: Sendable {
  private enum State {
    case begins
    case waits(CheckedContinuation<Result<Void, any Error>, Never>)
    case over(Result<Void, any Error>)
  }
  private let state = Mutex(State.begins)
  // Used on the lane only.
  nonisolated(unsafe) var deadline: Timers.Token?

  /// False if it was cancelled before.
  func begin(_ continuation: CheckedContinuation<Result<Void, any Error>, Never>) -> Bool {
    let early = state.withLock { state -> Result<Void, any Error>? in
      if case .over(let result) = state { return result }
      state = .waits(continuation)
      return nil
    }
    if let early { continuation.resume(returning: early) }
    return early == nil
  }

  /// False if it is over already.
  @discardableResult
  func finish(_ result: Result<Void, any Error>) -> Bool {
    let before = state.withLock { state in
      let before = state
      if case .over = state { return before }
      state = .over(result)
      return before
    }
    if case .over = before { return false }
    if case .waits(let continuation) = before { continuation.resume(returning: result) }
    return true
  }
}

/// An open stream that any task or actor may use. Calls of several tasks queue in order, reads and writes apart from
/// each other. A call ends soon after its task is cancelled, by `CancellationError`; after its time-out (`within`), by
/// `SystemError` with ETIMEDOUT. The error that broke the stream is thrown by each later call. The endpoint is closed by
/// `close()`, by `abort()`, and when the last reference to the stream is released.
public final class StreamHandle: Sendable {
  private let shared: HandleShared
  private let core: LaneRef<HandleCore>
  private let readers = Turns()
  private let writers = Turns()
  private let askers = Turns()

  init(_ shared: HandleShared, _ core: LaneRef<HandleCore>) {
    self.shared = shared
    self.core = core
  }

  deinit { close() }

  // MARK: - What is known

  /// What is known about the stream.
  public struct Metadata: Hashable, Sendable {
    /// The canonical URL, without secrets.
    public let url: String
    /// What the device reports about itself, as far as it is known yet.
    public let facts: DeviceFacts
  }

  /// The URL, and the facts that are known now. Can be read on any thread.
  public var metadata: Metadata { Metadata(url: shared.url, facts: shared.facts) }

  /// Whether the link is open, waits for another try (with the reason), or is closed.
  public var status: LinkStatus { shared.status }

  /// Whether the endpoint goes on sending after `finishWriting()`; others take it as the end of everything.
  public var canHalfClose: Bool { shared.canHalfClose }

  // MARK: - Reading

  /// The next bytes, up to `count` of them; waits until there are some. Empty at the end, and after `close()`. The
  /// bytes before and after a loss of the link do not come together.
  public func read(upTo count: Int = 65_536, within timeout: Duration? = nil) async throws -> [UInt8] {
    guard count > 0 else { return [] }
    return try await take(.bytes(count), timeout) ?? []
  }

  /// The bytes up to and with `delimiter`. Without it: the rest at the end of the stream or where the link was lost,
  /// and `most` bytes if they do not contain it, 32 KiB at most. Empty at the end. After a time-out the bytes are still
  /// there.
  public func read(
    until delimiter: [UInt8], upTo most: Int = 32_768, within timeout: Duration? = nil
  ) async throws -> [UInt8] {
    // The lane reads ahead no more than this, so a longer wait would have no end.
    let most = max(1, min(most, HandleInput.capacity / 2))
    return try await take(.until(delimiter, most: most, scanned: 0), timeout) ?? []
  }

  /// Nil at the end.
  private func take(_ want: InputBuffer.Want, _ timeout: Duration?) async throws -> [UInt8]? {
    let deadline = timeout.map { Self.deadline(in: $0) }
    try await turn(of: readers, before: deadline)
    defer {
      shared.input.endTurn()
      readers.pass()
    }
    var want = want
    let outcome: HandleInput.Outcome
    if let (taken, chore) = shared.input.take(&want) {
      order(chore)
      outcome = taken
    } else {
      (outcome, want) = await shared.input.wait(for: want, until: deadline) { order($0) }
      order(shared.input.chore())
    }
    switch outcome {
    case .bytes(let bytes): return bytes
    case .ended: return nil
    case .failed(let error): throw error
    case .timedOut: throw SystemError("read", ETIMEDOUT)
    case .cancelled: throw CancellationError()
    }
  }

  private func order(_ chore: HandleInput.Chore) {
    guard !chore.isEmpty else { return }
    core.post { _, core in
      if chore.contains(.readOn) { core.readOn() }
      if chore.contains(.setAlarm) { core.setAlarm() }
    }
  }

  /// Waits for a turn, until `deadline`.
  private func turn(of turns: Turns, before deadline: UInt64?) async throws {
    let alarm = TurnAlarm()
    defer { if alarm.isSet { core.post { lane, _ in lane.poller.timers.cancel(alarm.token) } } }
    try await turns.take { giveUp in
      guard let deadline else { return }
      alarm.isSet = true
      core.post { lane, _ in alarm.token = lane.poller.timers.at(deadline, giveUp) }
    }
  }

  private static func deadline(in timeout: Duration) -> UInt64 {
    let (time, overflow) = monotonicNanoseconds().addingReportingOverflow(timeout.nanoseconds)
    return overflow ? .max : time
  }

  /// From now on `nextPacket` cuts by `rule`.
  func cut(by rule: PacketRule) async throws {
    try await readers.take()
    defer { readers.pass() }
    shared.input.cut(by: rule)
  }

  /// Nil at the end.
  func nextPacket(within timeout: Duration?) async throws -> [UInt8]? { try await take(.packet, timeout) }

  // MARK: - Writing

  /// Sends all of `bytes`; returns when the stream has taken them. A stream that is full makes it wait, and so does a
  /// link that is lost and opened again: the link that opens next gets these bytes from the first on. After a time-out
  /// or a cancellation, part of them may have been sent.
  public func write(_ bytes: [UInt8], within timeout: Duration? = nil) async throws {
    guard !bytes.isEmpty else { return }
    let deadline = timeout.map { Self.deadline(in: $0) }
    try await turn(of: writers, before: deadline)
    defer { writers.pass() }
    if let error = shared.outputError { throw error }
    try await call { core, call in core.send(bytes, before: deadline, call) }
  }

  /// Returns when the bytes of all earlier writes have left, as far as the kernel can tell: a serial port has sent
  /// them, a TCP peer's machine has acknowledged them, a program has read them. Throws the reason if the link was lost
  /// before that, even if it is open again: those bytes may not have arrived.
  public func flush(within timeout: Duration? = nil) async throws {
    let deadline = timeout.map { Self.deadline(in: $0) }
    try await turn(of: writers, before: deadline)
    defer { writers.pass() }
    try await call { core, call in core.flush(before: deadline, call) }
  }

  /// Ends the output after the bytes of all earlier writes, where the endpoint can be told (TCP, TLS, a program's
  /// standard input); reading goes on. A link that is lost later is not opened again.
  public func finishWriting(within timeout: Duration? = nil) async throws {
    let deadline = timeout.map { Self.deadline(in: $0) }
    try await turn(of: writers, before: deadline)
    defer { writers.pass() }
    try await call { core, call in core.finishWriting(before: deadline, call) }
  }

  /// Runs `body` on the lane and waits until the call is finished.
  private func call(_ body: @escaping @Sendable (HandleCore, HandleCall) -> Void) async throws {
    let ticket = CallTicket()
    let error = await withTaskCancellationHandler {
      await withCheckedContinuation { (continuation: CheckedContinuation<(any Error)?, Never>) in
        core.post { _, core in
          let call = HandleCall(ticket, on: core.poller) { continuation.resume(returning: $0) }
          if ticket.isCancelled { call.finish(CancellationError()) } else { body(core, call) }
        }
      }
    } onCancel: {
      ticket.cancel()
      core.post { _, core in core.cancel(ticket) }
    }
    if let error { throw error }
  }

  // MARK: - The end

  /// Delivers the bytes of all finished writes, then closes the endpoint in order. Returns at once; a later `connect`
  /// to the same device waits for it. Calls that wait end: a read returns no bytes, a write fails with EPIPE. Safe to
  /// call twice.
  public func close() {
    shared.beginClosing()
    core.post { _, core in core.close() }
  }

  /// Closes as `close()` does, and waits until the endpoint is free for other programs: its bytes have left or were
  /// given up, its lock file is gone. A program that is about to exit calls this. Throws ETIMEDOUT if that takes longer
  /// than `timeout`; the closing continues.
  public func close(within timeout: Duration) async throws {
    close()
    let deadline = Self.deadline(in: timeout)
    try await call { core, call in core.whenReleased(before: deadline, call) }
  }

  /// Closes at once; bytes that were taken may be lost, and a TCP peer sees a reset. Safe to call twice.
  public func abort() {
    shared.beginClosing()
    core.post { _, core in core.abort() }
  }

  // MARK: - The line

  /// Runs `ask` on the lane with the stream's line, and waits for its answer. One question at a time.
  func ask<Answer: Sendable>(
    within timeout: Duration?,
    _ ask:
      @escaping @Sendable (any SerialLine, HandleCore, @escaping (Result<Answer, SystemError>) -> Void) -> Void
  ) async throws -> Answer {
    let deadline = timeout.map { Self.deadline(in: $0) }
    try await turn(of: askers, before: deadline)
    defer { askers.pass() }
    let answer = Answered<Answer>()
    try await call { core, call in
      core.ask(before: deadline, call) { line, end in
        ask(line, core) { result in
          if case .success(let value) = result { answer.value.withLock { $0 = value } }
          end(result.map { _ in })
        }
      }
    }
    return answer.value.withLock { $0! }  // the call would have failed without it
  }
}

/// The deadline of a task that waits for its turn.
private final class TurnAlarm: Sendable {
  // Used by the task only.
  nonisolated(unsafe) var isSet = false
  // Used on the lane only.
  nonisolated(unsafe) var token: Timers.Token?
}

/// Carries an answer from the lane to a task.
private final class Answered<Answer: Sendable>: Sendable {
  let value = Mutex<Answer?>(nil)
}
