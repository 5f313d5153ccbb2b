// pty:///run/baudway/gps?mode=0660&owner=gps&group=dialout: a serial port for programs of this machine. Whoever opens it is a
// client, until the last program that has it open closes it; several at once are one.

import ByteStreams
import StreamBroker
import Synchronization

/// A pty lives as long as programs open and close it one after the other. It makes way for another only when the gateway ended
/// the client, which must hang up on him, or when he left it so that nobody else could use it. One who was not let in may
/// keep it, and then it rests until he closes it or somebody else opens it.
final class PtyListener: Listener, PollHandler {
  private let name: String
  private let context: ListenerContext
  private let binding: LocalBinding<PtyDoor>
  private var door: PtyDoor?
  /// It has no client.
  private var isFree = true
  /// The pty of the one it has is not the one that others open.
  private var isLeaving = false
  /// One who was not let in has it still.
  private var rest: PtyRest?
  private var isTold = false
  private var isShort = false
  private var nextLook: Timers.Token?
  /// When its client came.
  private var since: UInt64 = 0
  /// Nobody becomes a client before that.
  private var notBefore: UInt64 = 0

  private static let pauseLength = Duration.milliseconds(100)
  /// A program that opens the port again at once, whenever it is hung up on, would else come and go as fast as the machine
  /// can, while the endpoint is not to be had.
  private static let shortest: UInt64 = 1_000_000_000

  init(_ listen: Config.Listen, _ context: ListenerContext) {
    let path = listen.url.path
    let ownership = NodeOwnership(listen.url)
    name = listen.place
    self.context = context
    let queue = LocalBinding<PtyDoor>.queue(of: path)
    binding = LocalBinding(context, listener: name, path: path) { old in
      do throws(OpenFailure) {
        return .success(try PtyDoor.open(path, ownership, replacing: old))
      } catch {
        return .failure(error)
      }
    } leave: {
      $0.leave(on: queue)
    } isThere: {
      $0.isThere
    }
    binding.waits = { [unowned self] in tellClosed() }
  }

  func start() { start(replacing: nil) }

  private func start(replacing old: PtyDoor?) {
    binding.start(replacing: old) { [weak self] door throws(SystemError) in try self?.serve(door) }
  }

  private func serve(_ door: PtyDoor) throws(SystemError) {
    try context.poller.add(door.opens.raw, handler: self, for: .readable)
    self.door = door
    if !isTold { context.status.tell(.listening(route: context.route, listener: name, bound: name)) }
    isTold = true
    look()
  }

  func stop(then done: @escaping () -> Void) {
    notBefore = 0
    look()
    context.poller.timers.cancel(nextLook)
    binding.stop(takeDoor(), then: done)
    context.status.tell(.listenerClosed(route: context.route, listener: name, bound: isTold ? name : nil))
  }

  func lookAfterPlace(then done: @escaping () -> Void) {
    guard let door else { return done() }
    binding.look(at: door, takeAnew: { [weak self] in self?.makeAnew() }, then: done)
  }

  /// Another pty, with a link. Who has the one before open stays with it, and the next waits for his end.
  private func makeAnew() {
    if rest != nil { endRest() }
    if !isFree { isLeaving = true }
    replace()
  }

  /// It listened, and does not find another place at once.
  private func tellClosed() {
    if isTold { context.status.tell(.listenerClosed(route: context.route, listener: name, bound: name)) }
    isTold = false
  }

  private func takeDoor() -> PtyDoor? {
    rest?.end()
    rest = nil
    if let door { context.poller.remove(door.opens.raw) }
    return door.take()
  }

  // MARK: - Who comes

  func ready(_ events: PollEvents) {
    guard let door, door.wasOpened() else { return }
    if rest != nil { endRest() }
    check()
  }

  private func check() {
    guard isFree, let door else { return }
    // Somebody who only looked in, such as stty, or one who is here.
    if door.isInUse || door.refresh() { look() } else { replace() }
  }

  private func look() {
    guard let door, isFree, door.isInUse else { return }
    let now = context.poller.timers.now
    guard now >= notBefore else { return check(in: .nanoseconds(Int64(notBefore - now))) }
    do {
      let descriptor = try door.duplicate()
      isShort = false
      isFree = false
      isLeaving = false
      since = now
      context.arrived(
        Arrival(descriptor, kind: .ptyMaster, label: Arrival.Label(address: nil, listener: name), seat: seat()))
    } catch {
      if !isShort { context.status.tell(.outOfDescriptors(route: context.route, listener: name, error)) }
      isShort = true
      check(in: Self.pauseLength)
    }
  }

  private func check(in pause: Duration) {
    context.poller.timers.cancel(nextLook)
    nextLook = context.poller.timers.after(pause) { [weak self] in self?.check() }
  }

  private func seat() -> PtySeat {
    PtySeat(
      leaving: context.poller.expect { [weak self] isTrue in if isTrue { self?.leaves() } },
      closed: context.poller.expect { [weak self] end in self?.hasGone(end) })
  }

  // MARK: - Who goes

  /// He has closed the port and what he wrote has to wait. Whoever opens the next one waits for the end of that.
  private func leaves() {
    guard door != nil, !isLeaving else { return }
    isLeaving = true
    replace()
  }

  private func hasGone(_ end: PtySeat.End) {
    isFree = true
    guard let door else { return }
    if !isLeaving {
      let hasClosed = end == .hungUp || PtyMaster.isHungUp(door.master)
      if end == .refused && !hasClosed { return rest(at: door) }
      // A user who is there still was sent away, and is hung up on like every client.
      guard hasClosed else { return hangUp() }
      guard door.refresh() else { return replace() }
    }
    look()
  }

  private func hangUp() {
    let now = context.poller.timers.now
    if now - since < Self.shortest { notBefore = now + Self.shortest }
    replace()
  }

  private func rest(at door: PtyDoor) {
    guard let descriptor = try? door.duplicate() else { return hangUp() }
    isFree = false
    _ = door.wasOpened()  // by us, who looked what he had read
    rest = PtyRest(descriptor, on: context.poller) { [weak self] in
      guard let self, door.wasOpened() else { return false }
      endRest()
      look()
      return true
    } over: { [weak self] hungUp in
      self?.rest = nil
      self?.hasGone(hungUp ? .hungUp : .sentAway)
    }
  }

  private func endRest() {
    rest?.end()
    rest = nil
    isFree = true
  }

  private func replace() { start(replacing: takeDoor()) }
}

/// A client's place at a pty. Both calls are made, each once, also when his stream is never made.
final class PtySeat: Sendable {
  /// How he went.
  enum End: Sendable {
    case hungUp, sentAway
    /// He never was a client.
    case refused
  }

  private struct Calls {
    var leaving: (@Sendable (_ isTrue: Bool) -> Void)?
    var closed: (@Sendable (End) -> Void)?
    var isRefused = false
  }

  private let calls: Mutex<Calls>

  init(leaving: @escaping @Sendable (_ isTrue: Bool) -> Void, closed: @escaping @Sendable (End) -> Void) {
    calls = Mutex(Calls(leaving: leaving, closed: closed))
  }

  /// There is no place for him behind this one.
  func refuse() { calls.withLock { $0.isRefused = true } }

  func tell(_ departure: PtyClientStream.Departure) {
    switch departure {
    case .leaving: calls.withLock { $0.leaving.take() }?(true)
    case .closed(let hungUp):
      let (leaving, closed, isRefused) = calls.withLock { ($0.leaving.take(), $0.closed.take(), $0.isRefused) }
      leaving?(false)
      closed?(hungUp ? .hungUp : isRefused ? .refused : .sentAway)
    }
  }

  deinit { tell(.closed(hungUp: false)) }
}
