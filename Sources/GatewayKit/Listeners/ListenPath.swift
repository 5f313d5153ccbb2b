// The path of a listener in the file system: creates it (off the lane, with retries), checks that it is still there,
// and removes it at the end. Listeners on unix sockets and ptys use it.

import ByteStreams
import StreamBroker
import Synchronization

/// Runs on the listener's lane. All work on one path runs on one queue, so a listener that follows another at the same
/// path finds it removed.
final class ListenPath<Entry: Sendable> {
  private let context: ListenerContext
  private let listener: String
  private let path: String
  /// Called before it is reported that the listener waits.
  var waits: () -> Void = {}
  private let take: @Sendable (_ old: Entry?) -> Result<Entry, OpenFailure>
  private let leave: @Sendable (Entry) -> Void
  private let isThere: @Sendable (Entry) -> Bool
  private let queue: DeviceQueue
  private var retry: BindRetry
  /// The result of the try in progress.
  private var taking: Taking?
  private var isLooking = false
  /// Called once, after the next try.
  private var afterNextTry: () -> Void = {}
  private var isStopped = false

  /// The longest that stopping waits for a file system that hangs.
  private static var timeout: Duration { .seconds(1) }

  /// `take` creates the entry and may replace `old`, an entry of our own. `leave` removes it. `isThere` returns whether
  /// the path still leads to it. All three run on the queue of `path`. `listener` is its name in events.
  init(
    _ context: ListenerContext, listener: String, path: String,
    take: @escaping @Sendable (_ old: Entry?) -> Result<Entry, OpenFailure>, leave: @escaping @Sendable (Entry) -> Void,
    isThere: @escaping @Sendable (Entry) -> Bool
  ) {
    self.context = context
    self.listener = listener
    self.path = path
    self.take = take
    self.leave = leave
    self.isThere = isThere
    queue = Self.queue(of: path)
    retry = BindRetry(context.poller.timers)
  }

  static func queue(of path: String) -> DeviceQueue { DeviceQueue.of("listen \(path)") }

  /// Calls `taken` on the lane once the entry is created. If it throws, the entry is removed and tried again, like one
  /// that could not be created. Each new reason for waiting is reported once. `old` is an entry of our own to replace.
  func start(replacing old: Entry? = nil, _ taken: @escaping (Entry) throws(SystemError) -> Void) {
    let taking = Taking()
    self.taking = taking
    let take = take
    let leave = leave
    offload {
      let result = take(old)
      if case .success(let entry) = result { taking.entry.withLock { $0 = entry } }
      if let old { leave(old) }
      return result.map { _ in }
    } then: { [self] result in
      self.taking = nil
      let tried = afterNextTry
      afterNextTry = {}
      defer { tried() }
      if isStopped { return }  // `stop` removes the entry
      do throws(OpenFailure) {
        try result.get()
        guard let entry = taking.entry.withLock({ $0.take() }) else { return }
        do throws(SystemError) {
          try taken(entry)
          retry.succeeded()
        } catch {
          giveUp(entry) {}
          throw OpenFailure(error.call, error)
        }
      } catch {
        wait(error, taken)
      }
    }
  }

  /// Checks whether the path still leads to `entry`. If not, reports that and calls `takeAnew`, which must call
  /// `start`. Calls `done` after that try.
  func look(at entry: Entry, takeAnew: @escaping () -> Void, then done: @escaping () -> Void) {
    guard !isLooking, taking == nil else { return done() }
    isLooking = true
    let isThere = isThere
    offload {
      isThere(entry)
    } then: { [self] isThere in
      isLooking = false
      // While the entry is being replaced, the next check is soon enough.
      guard !isThere, !isStopped, taking == nil else { return done() }
      let failure = OpenFailure("look at \(path)", nil, advice: "it was removed or replaced; creating it again")
      waits()
      context.status.publish(.listenerWaits(route: context.route, listener: listener, failure, retry: .zero))
      afterNextTry = done
      takeAnew()
    }
  }

  private func wait(_ failure: OpenFailure, _ taken: @escaping (Entry) throws(SystemError) -> Void) {
    guard retry.failed(failure, again: { [weak self] in self?.start(taken) }) else { return }
    waits()
    context.status.publish(.listenerWaits(route: context.route, listener: listener, failure, retry: BindRetry.pause))
  }

  /// `entry` has become useless: removes it, and calls `takeAnew`, which must call `start`, after a pause.
  func lost(_ entry: Entry, _ error: SystemError, takeAnew: @escaping () -> Void) {
    giveUp(entry) {}
    let failure = OpenFailure.lost(error)
    let pause = retry.lost(failure, again: takeAnew)
    context.status.publish(.listenerWaits(route: context.route, listener: listener, failure, retry: pause))
  }

  /// Stops trying, and removes `entry` if there is one. Calls `done` after that, or after `timeout`.
  func stop(_ entry: Entry?, then done: @escaping () -> Void) {
    isStopped = true
    retry.cancel()
    var isDone = false
    let finish = {
      guard !isDone else { return }
      isDone = true
      done()
    }
    let limit = context.poller.timers.after(Self.timeout) { finish() }
    let stopped = { [context] in
      context.poller.timers.cancel(limit)
      finish()
    }
    // A try in progress may still create its entry: remove it right after, before another listener uses the path.
    guard let taking else { return giveUp(entry, then: stopped) }
    let leave = leave
    offload {
      for entry in [entry, taking.entry.withLock { $0.take() }] { entry.map(leave) }
    } then: {
      stopped()
    }
  }

  private func giveUp(_ entry: Entry?, then done: @escaping () -> Void) {
    guard let entry else { return done() }
    let leave = leave
    offload {
      leave(entry)
    } then: {
      done()
    }
  }

  /// Keeps the queue until `work` is done, even if the listener was freed: otherwise the next listener at this
  /// path would get another queue, and could run before the path is removed.
  private func offload<Result: Sendable>(
    _ work: @escaping @Sendable () -> Result, then done: @escaping (Result) -> Void
  ) {
    context.poller.offload(to: queue.queue) { [queue] in
      withExtendedLifetime(queue) { work() }
    } then: {
      done($0)
    }
  }

  /// An entry on its way from the queue to the lane; after `stop` it is removed on the queue.
  private final class Taking: Sendable {
    let entry = Mutex<Entry?>(nil)
  }
}
