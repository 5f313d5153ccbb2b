// pty:///run/baudway/gps?mode=0660&owner=gps&group=dialout: a serial port for programs of this machine. Whoever opens it is a
// client, until the last program that has it open closes it; several at once are one.

import ByteStreams
import StreamBroker
import Synchronization

/// A pty lives as long as programs open and close it one after the other. It makes way for another only when the gateway ended
/// the client, which must hang up on him, or when he left it so that nobody else could use it.
final class PtyListener: Listener, PollHandler {
  private let name: String
  private let context: ListenerContext
  private let binding: LocalBinding<PtyDoor>
  private var door: PtyDoor?
  /// It has no client.
  private var isFree = true
  /// The pty of the one it has is not the one that others open.
  private var isLeaving = false
  private var isTold = false
  private var pause: Timers.Token?
  private var isShort = false

  private static let pauseLength = Duration.milliseconds(100)

  init(_ listen: Config.Listen, _ context: ListenerContext) {
    let path = listen.url.path
    let ownership = NodeOwnership(listen.url)
    name = listen.place
    self.context = context
    let queue = LocalBinding<PtyDoor>.queue(of: path)
    binding = LocalBinding(context, listener: name, path: path) {
      do throws(OpenFailure) {
        return .success(try PtyDoor.open(path, ownership))
      } catch {
        return .failure(error)
      }
    } leave: {
      $0.leave(on: queue)
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
    look()
    context.poller.timers.cancel(pause)
    binding.stop(takeDoor(), then: done)
    context.status.tell(.listenerClosed(route: context.route, listener: name, bound: isTold ? name : nil))
  }

  /// It listened, and does not find another place at once.
  private func tellClosed() {
    if isTold { context.status.tell(.listenerClosed(route: context.route, listener: name, bound: name)) }
    isTold = false
  }

  private func takeDoor() -> PtyDoor? {
    if let door { context.poller.remove(door.opens.raw) }
    return door.take()
  }

  // MARK: - Who comes

  func ready(_ events: PollEvents) {
    door?.forgetOpenings()
    guard isFree, let door else { return }
    // Somebody who only looked in, such as stty, or one who is here.
    if door.isInUse || door.refresh() { look() } else { replace() }
  }

  private func look() {
    guard let door, isFree, door.isInUse else { return }
    do {
      let descriptor = try door.duplicate()
      isShort = false
      isFree = false
      isLeaving = false
      let seat = PtySeat(
        leaving: context.poller.expect { [weak self] isTrue in if isTrue { self?.leaves() } },
        closed: context.poller.expect { [weak self] hungUp in self?.hasGone(hungUp: hungUp) })
      context.arrived(
        Arrival(descriptor, kind: .ptyMaster, label: Arrival.Label(address: nil, listener: name), seat: seat))
    } catch {
      if !isShort { context.status.tell(.outOfDescriptors(route: context.route, listener: name, error)) }
      isShort = true
      context.poller.timers.cancel(pause)
      pause = context.poller.timers.after(Self.pauseLength) { [weak self] in self?.look() }
    }
  }

  // MARK: - Who goes

  /// He has closed the port and what he wrote has to wait. Whoever opens the next one waits for the end of that.
  private func leaves() {
    guard door != nil else { return }
    isLeaving = true
    replace()
  }

  private func hasGone(hungUp: Bool) {
    isFree = true
    guard let door else { return }
    if !isLeaving {
      // A user who is there still was sent away, and is hung up on like every client.
      guard hungUp || PtyMaster.isHungUp(door.master), door.refresh() else { return replace() }
    }
    look()
  }

  private func replace() { start(replacing: takeDoor()) }
}

/// A client's place at a pty. Both calls are made, each once, also when his stream is never made.
final class PtySeat: Sendable {
  private struct Calls {
    var leaving: (@Sendable (_ isTrue: Bool) -> Void)?
    var closed: (@Sendable (_ hungUp: Bool) -> Void)?
  }

  private let calls: Mutex<Calls>

  init(leaving: @escaping @Sendable (_ isTrue: Bool) -> Void, closed: @escaping @Sendable (_ hungUp: Bool) -> Void) {
    calls = Mutex(Calls(leaving: leaving, closed: closed))
  }

  func tell(_ departure: PtyClientStream.Departure) {
    switch departure {
    case .leaving: calls.withLock { $0.leaving.take() }?(true)
    case .closed(let hungUp):
      let (leaving, closed) = calls.withLock { ($0.leaving.take(), $0.closed.take()) }
      leaving?(false)
      closed?(hungUp)
    }
  }

  deinit { tell(.closed(hungUp: false)) }
}
