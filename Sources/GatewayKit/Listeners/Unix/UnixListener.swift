// unix:///run/baudway/gps.sock?mode=0660&owner=gps&group=dialout: programs of this machine, as far as the file's mode lets them.

import ByteStreams
import CLinux
import StreamBroker

final class UnixListener: Listener {
  private let name: String
  private let context: ListenerContext
  private let binding: LocalBinding<UnixDoor>
  private var door: UnixDoor?
  private var loop: AcceptLoop?
  private var rebindPause = RebindPause()

  // Clients that may wait for accept(2); the kernel cuts it to net.core.somaxconn.
  private static let queue: Int32 = 4096

  init(_ listen: Config.Listen, _ context: ListenerContext) {
    let path = listen.url.path
    let ownership = NodeOwnership(listen.url)
    name = listen.place
    self.context = context
    let inherited = context.inherited
    binding = LocalBinding(context, listener: name, path: path) { _ in
      do throws(OpenFailure) {
        let given = inherited.matching(listen).first
        if let given, given.accepts { return .success(try .inherited(given)) }
        return .success(try UnixDoor.open(path, ownership, queue: Self.queue, replacingDead: given != nil))
      } catch {
        return .failure(error)
      }
    } leave: {
      $0.removeFile()
    } isThere: {
      $0.isThere
    }
    binding.waits = { [unowned self] in hasLostItsFile() }
  }

  func start() {
    binding.start { [weak self] door throws(SystemError) in try self?.accept(at: door) }
  }

  private func accept(at door: UnixDoor) throws(SystemError) {
    let context = context
    let name = name
    loop = try AcceptLoop(
      door.socket.take()!, on: context.poller,  // nobody else has seen the parcel
      farewell: context.sendsNotices ? "baudway: out of descriptors" : nil,
      outOfDescriptors: { context.status.tell(.outOfDescriptors(route: context.route, listener: name, $0)) },
      lost: { [unowned self] in lost($0) },  // its loop stops before it goes
      accepted: { descriptor, _ in
        let label = Arrival.Label(address: nil, process: PeerProcess(of: descriptor.raw), listener: name)
        context.arrived(Arrival(descriptor, kind: .socket, label: label))
      })
    self.door = door
    context.status.tell(.listening(route: context.route, listener: name, bound: name))
  }

  func lookAfterPlace(then done: @escaping () -> Void) {
    guard let door else { return done() }
    binding.look(at: door, takeAnew: { [weak self] in self?.start() }, then: done)
  }

  /// Who has connected already is let in.
  private func hasLostItsFile() {
    guard let loop else { return }  // it never had one
    loop.stop()
    self.loop = nil
    door = nil
    context.status.tell(.listenerClosed(route: context.route, listener: name, bound: name))
  }

  private func lost(_ error: SystemError) {
    guard let door else { return }
    hasLostItsFile()
    let pause = rebindPause.next(at: context.poller.timers.now)
    binding.lost(door, .lost(error), pause: pause) { [weak self] in self?.start() }
  }

  func stop(then done: @escaping () -> Void) {
    loop?.stop(isSocketShared: door?.isInherited ?? false)
    let wasBound = loop != nil
    loop = nil
    binding.stop(door, then: done)
    door = nil
    context.status.tell(.listenerClosed(route: context.route, listener: name, bound: wasBound ? name : nil))
  }
}

/// Who connected to a socket of this machine, as the kernel noted it then (SO_PEERCRED of unix(7)).
public struct PeerProcess: Hashable, Sendable, CustomStringConvertible {
  public let user: UInt32
  /// 0 for one of another PID namespace.
  public let process: Int32

  init(user: UInt32, process: Int32) {
    self.user = user
    self.process = process
  }

  init?(of socket: Int32) {
    var user = uid_t()
    var process = pid_t()
    guard linux_peer_process(socket, &process, &user) == 0 else { return nil }
    self.init(user: user, process: process)
  }

  /// "uid 1000, pid 4711"
  public var description: String { process > 0 ? "uid \(user), pid \(process)" : "uid \(user)" }
}
