// Tells systemd how the gateway is: ready, reloading, stopping, a line of status, and that its lanes are alive. Listens to
// events as the log does. Exists only where NOTIFY_SOCKET says that somebody wants to know; without it no timer ever runs.

import ByteStreams
import Dispatch
import Glibc
import StreamBroker
import Synchronization

public final class ServiceManager: Sendable {
  private enum Phase { case starting, ready, reloading, stopping }

  private struct Picture {
    var phase = Phase.starting
    var hasStarted = false
    /// Listeners of the start that have not said yet whether they are bound, as "route listener".
    var unanswered: Set<String>
    var routes = 0
    var away: Set<String> = []
    var lastReloadFailed = false
    /// The line that was sent last.
    var told = ""
    /// The latest change of phase, while systemd's queue has no room for it.
    var owed: String?
    var isRetrying = false
  }

  private let socket: NotifySocket
  private let picture: Mutex<Picture>
  // Sessions come and go on all lanes: two atomics for them, where the lock would make lanes meet.
  private let clients = Atomic<Int>(0)
  private let isLineDue = Atomic<Bool>(false)
  private let toldAt = Atomic<UInt64>(0)
  private let isPinging = Atomic<Bool>(false)
  private let queue = DispatchQueue(label: "baudway.notify")
  /// How often systemd wants to hear that all is well; nil = never.
  let watchdog: Duration?

  /// At most one status line in so long: each wakes systemd.
  private static let pause: UInt64 = 1_000_000_000

  /// Nil where nobody asks, or at no address that a socket can have. `config` is what the gateway starts with.
  public init?(environment: [String: String], config: Config) {
    guard let address = environment["NOTIFY_SOCKET"], let socket = NotifySocket(address) else { return nil }
    self.socket = socket
    watchdog = Self.watchdog(environment)
    let listeners = config.routes.flatMap { route in route.listen.map { "\(route.name) \($0.place)" } }
    picture = Mutex(Picture(unanswered: Set(listeners)))
  }

  /// sd_watchdog_enabled(3). A variable meant for another process, our parent, means nothing.
  private static func watchdog(_ environment: [String: String]) -> Duration? {
    guard let microseconds = environment["WATCHDOG_USEC"].flatMap({ UInt64($0) }), microseconds > 0 else { return nil }
    if let pid = environment["WATCHDOG_PID"], pid != String(getpid()) { return nil }
    // Less than a tenth of a second would be a busy loop, more than a day a number that overflows.
    return .microseconds(min(max(microseconds, 100_000), 86_400_000_000))
  }

  // MARK: - Events

  /// Takes an event without waiting, from any thread.
  public func observe(_ event: StatusEvent) {
    switch event {
    case .sessionOpened: clients.add(1, ordering: .relaxed)
    case .sessionEnded(_, _, _, let report):
      guard report.wasOpened else { return }
      clients.subtract(1, ordering: .relaxed)
    default: picture.withLock { note(event, in: &$0) }
    }
    tellSoon()
  }

  private func note(_ event: StatusEvent, in picture: inout Picture) {
    switch event {
    case .started(let routes):
      picture.routes = routes
      picture.hasStarted = true
    case .listening(let route, let listener, _), .listenerWaits(let route, let listener, _, _):
      picture.unanswered.remove("\(route) \(listener)")
    case .link(let route, _, .waiting, _): picture.away.insert(route)
    case .link(let route, _, .open, _), .link(let route, _, .closed, _), .routeStopped(let route):
      picture.away.remove(route)
    case .reloading where picture.phase == .ready:
      enter(.reloading, "RELOADING=1\nMONOTONIC_USEC=\(monotonicNanoseconds() / 1000)", in: &picture)
    case .reloaded(let report):
      picture.routes = report.routes
      picture.lastReloadFailed = false
      if picture.phase == .reloading { enter(.ready, "READY=1", in: &picture) }
    case .reloadFailed:
      picture.lastReloadFailed = true
      if picture.phase == .reloading { enter(.ready, "READY=1", in: &picture) }
    case .stopping: enter(.stopping, "STOPPING=1", in: &picture)
    default: break
    }
    // Ready is when every listener has its first answer: bound, or waiting for its address.
    if picture.phase == .starting, picture.hasStarted, picture.unanswered.isEmpty {
      enter(.ready, "READY=1", in: &picture)
    }
  }

  private func enter(_ phase: Phase, _ message: String, in picture: inout Picture) {
    picture.phase = phase
    let line = line(of: picture)
    picture.told = line
    picture.owed = "\(message)\nSTATUS=\(line)"
    sendOwed(&picture)
  }

  /// The latest phase takes the place of one that could not be sent; it must arrive, or the start or the reload times out.
  private func sendOwed(_ picture: inout Picture) {
    guard let message = picture.owed, !picture.isRetrying else { return }
    guard case .full = socket.send(message) else {
      picture.owed = nil
      return
    }
    picture.isRetrying = true
    queue.asyncAfter(deadline: .now() + .milliseconds(100)) { [weak self] in
      guard let self else { return }
      self.picture.withLock { picture in
        picture.isRetrying = false
        self.sendOwed(&picture)
      }
    }
  }

  // MARK: - The status line

  /// Sends the line if it has changed: now, or when the pause since the last one is over.
  private func tellSoon() {
    guard !isLineDue.exchange(true, ordering: .acquiringAndReleasing) else { return }
    let next = toldAt.load(ordering: .relaxed) + Self.pause
    let now = monotonicNanoseconds()
    let wait = toldAt.load(ordering: .relaxed) == 0 || next <= now ? 0 : Int(clamping: next - now)
    queue.asyncAfter(deadline: .now() + .nanoseconds(wait)) { [weak self] in self?.tell() }
  }

  private func tell() {
    // What changes from here on is for the next line. An exchange, because a store would not see what those before it have counted.
    _ = isLineDue.exchange(false, ordering: .acquiringAndReleasing)
    picture.withLock { picture in
      let line = line(of: picture)
      guard picture.phase != .starting, picture.owed == nil, line != picture.told else { return }
      toldAt.store(monotonicNanoseconds(), ordering: .relaxed)
      if case .full = socket.send("STATUS=\(line)") { return tellSoon() }
      picture.told = line
    }
  }

  /// "3 routes, 5 clients, 1 device away"
  private func line(of picture: Picture) -> String {
    func count(_ number: Int, _ noun: String) -> String { "\(number) \(noun)\(number == 1 ? "" : "s")" }
    var parts = [
      count(picture.routes, "route"), count(max(0, clients.load(ordering: .relaxed)), "client"),
    ]
    if !picture.away.isEmpty { parts.append(count(picture.away.count, "device") + " away") }
    if picture.phase == .stopping { parts.insert("stopping", at: 0) }
    if picture.lastReloadFailed { parts.append("the last reload failed (see the log)") }
    return parts.joined(separator: ", ")
  }

  // MARK: - The watchdog

  /// Tells systemd twice in its interval that all is well, each time only once every lane of `gateway` has answered.
  public func watch(_ gateway: Gateway) { watch { gateway.ping(then: $0) } }

  func watch(ping: @escaping @Sendable (@escaping @Sendable () -> Void) -> Void) {
    guard let watchdog else { return }
    let half = DispatchTimeInterval.nanoseconds(Int(clamping: watchdog.nanoseconds / 2))
    queue.async { [weak self] in self?.beat(every: half, ping) }
  }

  private func beat(
    every half: DispatchTimeInterval, _ ping: @escaping @Sendable (@escaping @Sendable () -> Void) -> Void
  ) {
    queue.asyncAfter(deadline: .now() + half) { [weak self] in self?.beat(every: half, ping) }
    // One at a time: a lane that hangs is not to be buried in pings.
    guard !isPinging.exchange(true, ordering: .acquiringAndReleasing) else { return }
    ping { [weak self] in
      guard let self else { return }
      isPinging.store(false, ordering: .releasing)
      _ = socket.send("WATCHDOG=1")
    }
  }
}
