// Takes a place in the file system for a listener, off its lane, and tries again while that can't be done. The doors of this
// machine, unix sockets and ptys, use it.

import ByteStreams
import StreamBroker

/// Lives on the listener's lane. Whatever concerns one path runs on one queue: a listener that follows another at the same
/// place finds it cleared.
final class LocalBinding<Place: Sendable> {
  private let context: ListenerContext
  private let listener: String
  private let path: String
  /// Called before it is told that the listener waits.
  var waits: () -> Void = {}
  private let take: @Sendable () -> Result<Place, OpenFailure>
  private let leave: @Sendable (Place) -> Void
  private let isThere: @Sendable (Place) -> Bool
  private let queue: DeviceQueue
  private var retryTimer: Timers.Token?
  private var lastFailure: OpenFailure?
  private var isTaking = false
  private var isLooking = false
  /// Called once, when the place was tried next.
  private var whenTried: () -> Void = {}
  private var isStopped = false
  private var whenStopped: (() -> Void)?

  private static var retry: Duration { .seconds(1) }
  /// Stopping waits no longer than this for a file system that hangs.
  private static var patience: Duration { .seconds(1) }

  /// `take`, `leave` and `isThere`, which says whether the place has its name still, run on the queue of `path`. `listener` is what
  /// it is called in events.
  init(
    _ context: ListenerContext, listener: String, path: String,
    take: @escaping @Sendable () -> Result<Place, OpenFailure>, leave: @escaping @Sendable (Place) -> Void,
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
    isTaking = true
    let take = take
    let leave = leave
    context.poller.offload(to: queue.queue) {
      let result = take()
      if let old { leave(old) }
      return result
    } then: { [self] result in
      isTaking = false
      if isStopped { return giveUp(try? result.get(), then: whenStopped ?? {}) }
      do throws(OpenFailure) {
        let place = try result.get()
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
      let tried = whenTried
      whenTried = {}
      tried()
    }
  }

  /// Looks whether `place` has its name still. If not, this is told and `takeAnew` called, which has to `start` again. Calls `done`
  /// when that was tried.
  func look(at place: Place, takeAnew: @escaping () -> Void, then done: @escaping () -> Void) {
    guard !isLooking, !isTaking else { return done() }
    isLooking = true
    let isThere = isThere
    context.poller.offload(to: queue.queue) {
      isThere(place)
    } then: { [self] isThere in
      isLooking = false
      // A place that is being exchanged is looked at next time.
      guard !isThere, !isStopped, !isTaking else { return done() }
      let failure = OpenFailure("look at \(path)", nil, advice: "somebody has removed it; it is made anew")
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
    // What is under way may take the place still: then that is given up first.
    if isTaking { whenStopped = stopped } else { giveUp(place, then: stopped) }
  }

  private func giveUp(_ place: Place?, then done: @escaping () -> Void) {
    guard let place else { return done() }
    let leave = leave
    context.poller.offload(to: queue.queue) {
      leave(place)
    } then: {
      done()
    }
  }
}
