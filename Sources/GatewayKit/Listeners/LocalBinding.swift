// Takes a place in the file system for a listener, off its lane, and tries again while that can't be done. The doors of this
// machine, unix sockets and ptys, use it.

import ByteStreams
import StreamBroker
import Synchronization

/// Lives on the listener's lane. Whatever concerns one path runs on one queue: a listener that follows another at the same
/// place finds it cleared.
final class LocalBinding<Place: Sendable> {
  private let context: ListenerContext
  private let listener: String
  private let path: String
  /// Called before it is told that the listener waits.
  var waits: () -> Void = {}
  private let take: @Sendable (_ old: Place?) -> Result<Place, OpenFailure>
  private let leave: @Sendable (Place) -> Void
  private let isThere: @Sendable (Place) -> Bool
  private let queue: DeviceQueue
  private var retryTimer: Timers.Token?
  private var lastFailure: OpenFailure?
  /// What a try that is under way takes.
  private var taking: Taking?
  private var isLooking = false
  /// Called once, when the place was tried next.
  private var whenTried: () -> Void = {}
  private var isStopped = false

  private static var retry: Duration { .seconds(1) }
  /// Stopping waits no longer than this for a file system that hangs.
  private static var patience: Duration { .seconds(1) }

  /// `take`, `leave` and `isThere`, which says whether the place has its name still, run on the queue of `path`. `listener` is what
  /// it is called in events. `old` is one of our own that makes way.
  init(
    _ context: ListenerContext, listener: String, path: String,
    take: @escaping @Sendable (_ old: Place?) -> Result<Place, OpenFailure>, leave: @escaping @Sendable (Place) -> Void,
    isThere: @escaping @Sendable (Place) -> Bool
  ) {
    self.context = context
    self.listener = listener
    self.path = path
    self.take = take
    self.leave = leave
    self.isThere = isThere
    queue = Self.queue(of: path)
  }

  static func queue(of path: String) -> DeviceQueue { DeviceQueue.of("listen \(path)") }

  /// Calls `taken` on the lane as soon as the place is ours; if it throws, the place is given up and tried again like one that
  /// could not be taken. Why it waits is said once per reason.
  /// With `replacing`, another of our own makes way for it.
  func start(replacing old: Place? = nil, _ taken: @escaping (Place) throws(SystemError) -> Void) {
    let taking = Taking()
    self.taking = taking
    let take = take
    let leave = leave
    offload {
      let result = take(old)
      if case .success(let place) = result { taking.place.withLock { $0 = place } }
      if let old { leave(old) }
      return result.map { _ in }
    } then: { [self] result in
      self.taking = nil
      let tried = whenTried
      whenTried = {}
      defer { tried() }
      if isStopped { return }  // and given up
      do throws(OpenFailure) {
        try result.get()
        guard let place = taking.place.withLock({ $0.take() }) else { return }
        do throws(SystemError) {
          try taken(place)
          lastFailure = nil
        } catch {
          giveUp(place) {}
          throw OpenFailure(error.call, error)
        }
      } catch {
        wait(error, taken)
      }
    }
  }

  /// Looks whether `place` has its name still. If not, this is told and `takeAnew` called, which has to `start` again. Calls `done`
  /// when that was tried.
  func look(at place: Place, takeAnew: @escaping () -> Void, then done: @escaping () -> Void) {
    guard !isLooking, taking == nil else { return done() }
    isLooking = true
    let isThere = isThere
    offload {
      isThere(place)
    } then: { [self] isThere in
      isLooking = false
      // A place that is being exchanged is looked at next time.
      guard !isThere, !isStopped, taking == nil else { return done() }
      let failure = OpenFailure("look at \(path)", nil, advice: "somebody has removed or replaced it; it is made anew")
      waits()
      context.status.tell(.listenerWaits(route: context.route, listener: listener, failure, retry: .zero))
      whenTried = done
      takeAnew()
    }
  }

  private func wait(_ failure: OpenFailure, _ taken: @escaping (Place) throws(SystemError) -> Void) {
    if failure != lastFailure {
      waits()
      context.status.tell(.listenerWaits(route: context.route, listener: listener, failure, retry: Self.retry))
    }
    lastFailure = failure
    retryTimer = context.poller.timers.after(Self.retry) { [weak self] in self?.start(taken) }
  }

  /// The place can't be used any more: it is given up, and `takeAnew` called after `pause`, which has to `start` again.
  func lost(_ place: Place, _ failure: OpenFailure, pause: Duration, takeAnew: @escaping () -> Void) {
    giveUp(place) {}
    context.status.tell(.listenerWaits(route: context.route, listener: listener, failure, retry: pause))
    lastFailure = failure
    retryTimer = context.poller.timers.after(pause) { takeAnew() }
  }

  /// Tries no more, and gives up `place` if it was taken. `done` is called when that has happened, or takes too long.
  func stop(_ place: Place?, then done: @escaping () -> Void) {
    isStopped = true
    context.poller.timers.cancel(retryTimer)
    var isDone = false
    let finish = {
      guard !isDone else { return }
      isDone = true
      done()
    }
    let limit = context.poller.timers.after(Self.patience) { finish() }
    let stopped = { [context] in
      context.poller.timers.cancel(limit)
      finish()
    }
    // What is under way may take the place still: it is given up right behind that, before anybody else takes it.
    guard let taking else { return giveUp(place, then: stopped) }
    let leave = leave
    offload {
      for place in [place, taking.place.withLock { $0.take() }] { place.map(leave) }
    } then: {
      stopped()
    }
  }

  private func giveUp(_ place: Place?, then done: @escaping () -> Void) {
    guard let place else { return done() }
    let leave = leave
    offload {
      leave(place)
    } then: {
      done()
    }
  }

  /// The queue is kept until `work` is done, also when its listener has gone by then: who follows at the same place would be given
  /// another queue, and overtake what clears it.
  private func offload<Result: Sendable>(
    _ work: @escaping @Sendable () -> Result, then done: @escaping (Result) -> Void
  ) {
    context.poller.offload(to: queue.queue) { [queue] in
      withExtendedLifetime(queue) { work() }
    } then: {
      done($0)
    }
  }

  /// Handed from the queue to the lane, or given up on the queue.
  private final class Taking: Sendable {
    let place = Mutex<Place?>(nil)
  }
}
