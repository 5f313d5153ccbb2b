// pty:///run/baudway/gps?mode=0660&owner=gps&group=dialout: a serial port for programs of this machine. A program that
// opens it is a client until the last program closes it; several at once are one client.

import ByteStreams
import CLinux
import StreamBroker
import Synchronization

/// One pty serves programs that open and close it one after the other. It is replaced only in two cases: the gateway
/// ends a client, which must then see a hang-up, or a client leaves the pty in a state that the next can't use. A
/// refused client may keep it open; the pty is then idle until that client closes it or another program opens it.
final class PtyListener: Listener, InotifyUser {
  private let name: String
  private let context: ListenerContext
  private let path: ListenPath<PtyDevice>
  private let queue: DeviceQueue
  private var device: PtyDevice?
  /// The settings that the pty shows to the next client, which asks for what it changes.
  private var offered: PtySettings
  private let toMake: PtyToMake
  /// The pty has no client.
  private var isFree = true
  /// The present client has an old pty; others open a new one.
  private var isLeaving = false
  /// A refused client still has the pty open.
  private var rest: OrderlyClose?
  private var isTold = false
  private var isShort = false
  /// Reports each time a program opens the slave.
  private var user: Int?
  private var opens: Int32?
  private var wasOpened = false
  private var nextLook: Timers.Token?
  /// When the present client connected.
  private var since: UInt64 = 0
  /// Earliest time to accept the next client.
  private var notBefore: UInt64 = 0

  private static let pauseLength = Duration.milliseconds(100)
  /// If the gateway hangs up on a client sooner than this, in nanoseconds, the next client has to wait for the same
  /// time. Otherwise a program that reopens at once would loop at full speed while the endpoint can't be opened.
  private static let shortest: UInt64 = 1_000_000_000

  init(_ listen: Config.Listen, _ context: ListenerContext) {
    let path = listen.url.path
    let ownership = NodeOwnership(listen.url)
    name = listen.target
    self.context = context
    offered = PtySettings(context.lineSettings())
    let toMake = PtyToMake(offered)
    self.toMake = toMake
    queue = ListenPath<PtyDevice>.queue(of: path)
    self.path = ListenPath(context, listener: name, path: path) { old in
      do throws(OpenFailure) {
        return .success(try PtyDevice.open(path, ownership, toMake.settings, replacing: old))
      } catch {
        return .failure(error)
      }
    } leave: {
      $0.leave()
    } isThere: {
      $0.isThere
    }
    self.path.waits = { [unowned self] in publishClosed() }
  }

  func start() {
    user = context.poller.inotify.join(self)
    start(replacing: nil)
  }

  private func start(replacing old: PtyDevice?) {
    toMake.settings = PtySettings(context.lineSettings())
    path.start(replacing: old) { [weak self] device in self?.serve(device) }
  }

  private func serve(_ device: PtyDevice) {
    self.device = device
    offered = device.settings
    offer()
    watch(device)
  }

  /// Watches for programs that open the pty, and serves those that have opened it before.
  private func watch(_ device: PtyDevice) {
    guard let user else { return }
    let inotify = context.poller.inotify
    switch inotify.adding(for: user) {
    case .failure(let refusal):
      inotify.startPolling(user, refusal)
      isReady()
    case .success(let adding):
      let old = opens
      opens = nil
      context.poller.offload(to: queue.queue) { () -> Result<Int32, SystemError> in
        if let old { adding.remove(old) }
        do throws(SystemError) { return .success(try adding.add(device.slave, UInt32(IN_OPEN)).watch) } catch {
          return .failure(error)
        }
      } then: { [weak self] result in
        guard let self, self.user != nil, self.device?.master == device.master else { return }
        switch result {
        case .success(let watch):
          opens = watch
          inotify.stopPolling(user)
        case .failure(let error): inotify.startPolling(user, InotifyRefusal(adding: error))
        }
        isReady()
      }
    }
  }

  private func isReady() {
    if !isTold { context.status.publish(.listening(route: context.route, listener: name, bound: name)) }
    isTold = true
    check()
  }

  func stop(then done: @escaping () -> Void) {
    notBefore = 0
    look()
    context.poller.timers.cancel(nextLook)
    path.stop(takeDevice(), then: done)
    if let user { context.poller.inotify.leave(user) }
    user = nil
    context.status.publish(.listenerClosed(route: context.route, listener: name, bound: isTold ? name : nil))
  }

  func contextChanged() { offer() }
  func lineChanged() { offer() }

  /// Shows the line's settings, unless a program has the pty open.
  private func offer() {
    let settings = PtySettings(context.lineSettings())
    guard settings != offered, isFree, let device, !device.isInUse else { return }
    device.show(settings)
    offered = settings
  }

  func checkSocketFile(then done: @escaping () -> Void) {
    guard let device else { return done() }
    path.look(at: device, takeAnew: { [weak self] in self?.makeAnew() }, then: done)
  }

  /// Creates a new pty and its link. A client that has the old one keeps it; the next client waits until it has closed.
  private func makeAnew() {
    if rest != nil { endRest() }
    if !isFree { isLeaving = true }
    replace()
  }

  /// Reports that the pty can no longer be opened, until it is created again.
  private func publishClosed() {
    if isTold { context.status.publish(.listenerClosed(route: context.route, listener: name, bound: name)) }
    isTold = false
  }

  private func takeDevice() -> PtyDevice? {
    forgetRest()
    return device.take()
  }

  // MARK: - Clients open the pty

  func note(_ watch: Int32, _ mask: UInt32, _ name: UnsafePointer<CChar>?) -> Bool {
    // Before its number is known, an event may be of the new watch.
    guard watch == opens || opens == nil || mask & UInt32(IN_Q_OVERFLOW) != 0 else { return false }
    wasOpened = true
    return true
  }

  func filesChanged() {
    // The number of events has no meaning: inotify merges equal ones.
    guard wasOpened, let device else { return }
    wasOpened = false
    // A program may have closed it so shortly before that we missed it.
    PtySettings.clearCLOCAL(of: device.master)
    if rest != nil { endRest() }
    check()
  }

  /// The kernel does not report who opens the pty.
  func poll() {
    if opens == nil, let device { watch(device) }
    look()
  }

  /// Whether it was opened since the last call.
  private func takeOpened() -> Bool {
    context.poller.inotify.readNow()
    defer { wasOpened = false }
    return wasOpened
  }

  private func check() {
    guard isFree, let device else { return }
    // A program still has the pty open, or has closed it at once, as stty does. In the second case, reset the pty.
    if device.isInUse || refresh(device) { look() } else { replace() }
  }

  private func look() {
    guard let device, isFree, device.isInUse else { return }
    let now = context.poller.timers.now
    guard now >= notBefore else { return check(in: .nanoseconds(Int64(notBefore - now))) }
    do {
      let descriptor = try device.duplicate()
      isShort = false
      isFree = false
      isLeaving = false
      since = now
      context.arrived(
        AcceptedConnection(
          descriptor, kind: .ptyMaster, label: AcceptedConnection.Label(address: nil, listener: name), seat: seat()))
    } catch {
      if !isShort { context.status.publish(.outOfDescriptors(route: context.route, listener: name, error)) }
      isShort = true
      check(in: Self.pauseLength)
    }
  }

  private func check(in pause: Duration) {
    context.poller.timers.cancel(nextLook)
    nextLook = context.poller.timers.after(pause) { [weak self] in self?.check() }
  }

  private func seat() -> PtyClientExit {
    PtyClientExit(
      offered: offered,
      leaving: context.poller.expect { [weak self] isTrue in if isTrue { self?.leaves() } },
      closed: context.poller.expect { [weak self] end in self?.hasGone(end) })
  }

  // MARK: - Clients close the pty

  /// The client has closed the pty, but its input has to wait. The next client gets another pty, and waits until this
  /// input is delivered.
  private func leaves() {
    guard device != nil, !isLeaving else { return }
    isLeaving = true
    replace()
  }

  private func hasGone(_ end: PtyClientExit.End) {
    isFree = true
    guard let device else { return }
    if !isLeaving {
      let hasClosed = end == .hungUp || PtyMaster.isHungUp(device.master)
      if end == .refused && !hasClosed { return rest(at: device) }
      // The gateway ended a client that still has it open: the client must see a hang-up.
      guard hasClosed else { return hangUp() }
      guard refresh(device) else { return replace() }
    }
    look()
  }

  private func refresh(_ device: PtyDevice) -> Bool {
    offered = PtySettings(context.lineSettings())
    let isGood = device.refresh()
    _ = takeOpened()  // drops the event of our own open(2)
    device.show(offered)
    return isGood
  }

  private func hangUp() {
    let now = context.poller.timers.now
    if now - since < Self.shortest { notBefore = now + Self.shortest }
    replace()
  }

  private func rest(at device: PtyDevice) {
    guard let descriptor = try? device.duplicate() else { return hangUp() }
    isFree = false
    _ = takeOpened()  // drops the event of our own open(2)
    rest = OrderlyClose(keeping: PtyClientStream(descriptor, on: context.poller), on: context.poller) { [weak self] in
      guard let self, takeOpened() else { return false }
      endRest()
      look()
      return true
    } then: { [weak self] hasClosed in
      self?.rest = nil
      self?.hasGone(hasClosed ? .hungUp : .sentAway)
    }
    rest?.start()
  }

  private func endRest() {
    forgetRest()
    isFree = true
  }

  private func forgetRest() {
    rest?.forget()
    rest = nil
  }

  private func replace() { start(replacing: takeDevice()) }
}

extension PtyListener {
  static let grammar = SchemeGrammar(
    "pty", example: "pty:///run/baudway/gps", authority: .none, path: .file,
    parameters: ListenerSchemes.ownership + [ListenerSchemes.role])
}

/// The settings of a pty that a queue makes.
private final class PtyToMake: Sendable {
  private let value: Mutex<PtySettings>
  init(_ settings: PtySettings) { value = Mutex(settings) }
  var settings: PtySettings {
    get { value.withLock { $0 } }
    set { value.withLock { $0 = newValue } }
  }
}

/// Reports to the listener when a client closes its pty. Calls each of the two closures once, even if no stream is ever
/// made.
final class PtyClientExit: Sendable {
  /// How the client's use of the pty ended.
  enum End: Sendable {
    case hungUp, sentAway
    /// The route refused it.
    case refused
  }

  private struct Calls {
    var leaving: (@Sendable (_ isTrue: Bool) -> Void)?
    var closed: (@Sendable (End) -> Void)?
    var isRefused = false
  }

  private let calls: Mutex<Calls>
  /// The settings that the client has found.
  let offered: PtySettings

  init(
    offered: PtySettings, leaving: @escaping @Sendable (_ isTrue: Bool) -> Void,
    closed: @escaping @Sendable (End) -> Void
  ) {
    self.offered = offered
    calls = Mutex(Calls(leaving: leaving, closed: closed))
  }

  /// The route refuses the client.
  func refuse() { calls.withLock { $0.isRefused = true } }

  func report(_ departure: PtyClientStream.Departure) {
    switch departure {
    case .leaving: calls.withLock { $0.leaving.take() }?(true)
    case .closed(let hungUp):
      let (leaving, closed, isRefused) = calls.withLock { ($0.leaving.take(), $0.closed.take(), $0.isRefused) }
      leaving?(false)
      closed?(hungUp ? .hungUp : isRefused ? .refused : .sentAway)
    }
  }

  deinit { report(.closed(hungUp: false)) }
}
