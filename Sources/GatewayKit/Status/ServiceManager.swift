// Notifies systemd: ready, reloading, stopping, a status line, and the watchdog. Observes events, as the log does.
// Exists only if NOTIFY_SOCKET is set; without it no timer ever runs.

import ByteStreams
import Dispatch
import Glibc
import StreamBroker
import Synchronization

package final class ServiceManager: Sendable {
  private enum Phase { case starting, ready, reloading, stopping }

  private struct Picture {
    var phase = Phase.starting
    var hasStarted = false
    /// Listeners that the start waits for, as "route listener": they have no first result yet.
    var unanswered: Set<String>
    var routes = 0
    var away: Set<String> = []
    var lastReloadFailed = false
    /// The last status line that was sent.
    var reported = ""
    /// The latest phase, while systemd's queue is full.
    var owed: String?
    var isRetrying = false
  }

  private let socket: NotifySocket
  private let picture: Mutex<Picture>
  // Sessions begin and end on all lanes. These are atomics because lanes would wait for each other at a lock.
  private let clients = Atomic<Int>(0)
  private let isLineDue = Atomic<Bool>(false)
  private let toldAt = Atomic<UInt64>(0)
  private let isPinging = Atomic<Bool>(false)
  private let clock: QueueClock
  private let queue = DispatchQueue(label: "baudway.notify")
  /// The interval of systemd's watchdog; nil = none.
  let watchdog: Duration?

  /// The shortest time between status lines, in nanoseconds: each wakes systemd.
  private static let pause: UInt64 = 1_000_000_000

  /// Nil when NOTIFY_SOCKET is not set or is no valid address. `config` is what the gateway starts with.
  package convenience init?(environment: [String: String], config: Config) {
    self.init(environment: environment, config: config, clock: .monotonic)
  }

  init?(environment: [String: String], config: Config, clock: QueueClock) {
    guard let address = environment["NOTIFY_SOCKET"], let socket = NotifySocket(address) else { return nil }
    self.socket = socket
    self.clock = clock
    watchdog = Self.watchdog(environment)
    let listeners = config.routes.flatMap { route in route.listen.map { "\(route.name) \($0.target)" } }
    let admin = config.admin.listen.map { "\(AdminServer.owner) \($0.target)" }
    picture = Mutex(Picture(unanswered: Set(listeners + admin)))
  }

  /// sd_watchdog_enabled(3). Ignored when WATCHDOG_PID names another process, such as our parent.
  private static func watchdog(_ environment: [String: String]) -> Duration? {
    guard let microseconds = environment["WATCHDOG_USEC"].flatMap({ UInt64($0) }), microseconds > 0 else { return nil }
    if let pid = environment["WATCHDOG_PID"], pid != String(getpid()) { return nil }
    // Less than 0.1 s would be a busy loop; more than a day would overflow.
    return .microseconds(min(max(microseconds, 100_000), 86_400_000_000))
  }

  // MARK: - Events

  /// Accepts an event without waiting, on any thread.
  package func observe(_ event: StatusEvent) {
    switch event {
    case .sessionOpened: clients.add(1, ordering: .relaxed)
    case .sessionEnded(_, _, _, let report):
      guard report.wasOpened else { return }
      clients.subtract(1, ordering: .relaxed)
    default: picture.withLock { note(event, in: &$0) }
    }
    notifySoon()
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
      picture.lastReloadFailed = report.newerWasRefused
      if picture.phase == .reloading { enter(.ready, "READY=1", in: &picture) }
    case .reloadFailed:
      picture.lastReloadFailed = true
      if picture.phase == .reloading { enter(.ready, "READY=1", in: &picture) }
    case .stopping: enter(.stopping, "STOPPING=1", in: &picture)
    default: break
    }
    // Ready means that every listener has its first result: bound, or waiting for its address.
    if picture.phase == .starting, picture.hasStarted, picture.unanswered.isEmpty {
      enter(.ready, "READY=1", in: &picture)
    }
  }

  private func enter(_ phase: Phase, _ message: String, in picture: inout Picture) {
    picture.phase = phase
    let line = line(of: picture)
    picture.reported = line
    picture.owed = "\(message)\nSTATUS=\(line)"
    sendOwed(&picture)
  }

  /// The latest phase replaces one that could not be sent. It must arrive, or the start or the reload times out.
  private func sendOwed(_ picture: inout Picture) {
    guard let message = picture.owed, !picture.isRetrying else { return }
    guard case .full = socket.send(message) else {
      picture.owed = nil
      return
    }
    picture.isRetrying = true
    clock.run(clock.now() + 100_000_000, queue) { [weak self] in
      guard let self else { return }
      self.picture.withLock { picture in
        picture.isRetrying = false
        self.sendOwed(&picture)
      }
    }
  }

  // MARK: - The status line

  /// Sends the line if it has changed: now, or after the pause since the last one.
  private func notifySoon() {
    guard !isLineDue.exchange(true, ordering: .acquiringAndReleasing) else { return }
    let last = toldAt.load(ordering: .relaxed)
    clock.run(last == 0 ? 0 : last + Self.pause, queue) { [weak self] in self?.report() }
  }

  private func report() {
    // Later changes are for the next line. An exchange and not a store: a store would not see the counts of earlier
    // events.
    _ = isLineDue.exchange(false, ordering: .acquiringAndReleasing)
    picture.withLock { picture in
      let line = line(of: picture)
      guard picture.phase != .starting, picture.owed == nil, line != picture.reported else { return }
      toldAt.store(clock.now(), ordering: .relaxed)
      if case .full = socket.send("STATUS=\(line)") { return notifySoon() }
      picture.reported = line
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

  /// Sends WATCHDOG=1 twice per interval, each time only after every lane of `gateway` has answered.
  package func watch(_ gateway: Gateway) { watch { gateway.ping(then: $0) } }

  func watch(ping: @escaping @Sendable (@escaping @Sendable () -> Void) -> Void) {
    guard let watchdog else { return }
    let half = watchdog.nanoseconds / 2
    queue.async { [weak self] in self?.beat(every: half, ping) }
  }

  private func beat(
    every half: UInt64, _ ping: @escaping @Sendable (@escaping @Sendable () -> Void) -> Void
  ) {
    clock.run(clock.now() + half, queue) { [weak self] in self?.beat(every: half, ping) }
    // One ping at a time: they must not pile up on a lane that hangs.
    guard !isPinging.exchange(true, ordering: .acquiringAndReleasing) else { return }
    ping { [weak self] in
      guard let self else { return }
      isPinging.store(false, ordering: .releasing)
      _ = socket.send("WATCHDOG=1")
    }
  }
}
