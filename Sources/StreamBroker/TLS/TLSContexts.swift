// The TLS context of one endpoint. It is made off the lane, because reading the system's authorities takes some 10 ms.
// All openings of the endpoint share it, and it is made again when a file has changed.

import ByteStreams
import Dispatch
import StreamTLS
import Synchronization

final class TLSContexts: Sendable {
  private struct State {
    var context: TLSClientContext?
    var lookedAt: UInt64 = 0
  }
  private let settings: TLSClientSettings
  private let queue = DispatchQueue(label: "certificates")
  private let state = Mutex(State())
  // Nanoseconds for which the files are assumed to be unchanged.
  private static let freshness: UInt64 = 2_000_000_000

  init(_ settings: TLSClientSettings) { self.settings = settings }

  /// Calls `done` with a context: at once if there is a fresh one, otherwise later on the lane of `poller`.
  func get(on poller: Poller, _ done: @escaping (Result<TLSClientContext, TLSSettingsFault>) -> Void) {
    if let context = fresh { return done(.success(context)) }
    poller.offload(to: queue, { [self] in look() }, then: done)
  }

  /// The next `get` checks the files, even if the context is fresh. For tests.
  func forget() { state.withLock { $0.lookedAt = 0 } }

  private var fresh: TLSClientContext? {
    state.withLock { state in
      guard let context = state.context else { return nil }
      let isFresh = context.files.isEmpty || monotonicNanoseconds() &- state.lookedAt < Self.freshness
      return isFresh ? context : nil
    }
  }

  /// Runs on the queue, so one at a time.
  private func look() -> Result<TLSClientContext, TLSSettingsFault> {
    if let context = fresh { return .success(context) }
    let old = state.withLock { $0.context }
    do throws(TLSSettingsFault) {
      let context = if let old, !old.filesHaveChanged { old } else { try TLSClientContext(settings) }
      state.withLock { $0 = State(context: context, lookedAt: monotonicNanoseconds()) }
      return .success(context)
    } catch {
      // The file may be half written: keep the last good context. The next call checks again.
      return old.map { .success($0) } ?? .failure(error)
    }
  }
}
