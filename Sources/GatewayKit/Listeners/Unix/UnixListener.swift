// unix:///run/baudway/gps.sock?mode=0660&owner=gps&group=dialout: for programs of this machine that the file's mode
// allows.

import ByteStreams
import CLinux
import StreamBroker

final class UnixListener: Listener {
  private let name: String
  private let context: ListenerContext
  private let path: ListenPath<UnixSocketFile>
  private var socketFile: UnixSocketFile?
  private var loop: AcceptLoop?

  // The most clients that wait for accept(2); net.core.somaxconn can lower it.
  private static let queue: Int32 = 4096

  init(_ listen: Config.Listen, _ context: ListenerContext) {
    let path = listen.url.path
    let ownership = NodeOwnership(listen.url)
    name = listen.target
    self.context = context
    let inherited = context.inherited
    self.path = ListenPath(context, listener: name, path: path) { _ in
      do throws(OpenFailure) {
        let given = inherited.matching(listen).first
        if let given, given.accepts { return .success(try .inherited(given)) }
        return .success(try UnixSocketFile.open(path, ownership, queue: Self.queue, replacingDead: given != nil))
      } catch {
        return .failure(error)
      }
    } leave: {
      $0.removeFile()
    } isThere: {
      $0.isThere
    }
    self.path.waits = { [unowned self] in hasLostItsFile() }
  }

  func start() {
    path.start { [weak self] socketFile throws(SystemError) in try self?.accept(at: socketFile) }
  }

  private func accept(at socketFile: UnixSocketFile) throws(SystemError) {
    let context = context
    let name = name
    loop = try AcceptLoop(
      socketFile.socket.take()!, on: context.poller,  // nothing else has used the parcel
      refusalLine: context.sendsNotices ? "baudway: out of descriptors" : nil,
      outOfDescriptors: { context.status.publish(.outOfDescriptors(route: context.route, listener: name, $0)) },
      lost: { [unowned self] in lost($0) },  // the loop stops before the listener is freed
      accepted: { descriptor, _ in
        let label = AcceptedConnection.Label(address: nil, process: PeerProcess(of: descriptor.raw), listener: name)
        context.arrived(AcceptedConnection(descriptor, kind: .socket, label: label))
      })
    self.socketFile = socketFile
    context.status.publish(.listening(route: context.route, listener: name, bound: name))
  }

  func checkSocketFile(then done: @escaping () -> Void) {
    guard let socketFile else { return done() }
    path.look(at: socketFile, takeAnew: { [weak self] in self?.start() }, then: done)
  }

  /// Stops listening. Clients that have already connected are accepted first.
  private func hasLostItsFile() {
    guard let loop else { return }  // it was not listening
    loop.stop()
    self.loop = nil
    socketFile = nil
    context.status.publish(.listenerClosed(route: context.route, listener: name, bound: name))
  }

  private func lost(_ error: SystemError) {
    guard let socketFile else { return }
    hasLostItsFile()
    path.lost(socketFile, error) { [weak self] in self?.start() }
  }

  func stop(then done: @escaping () -> Void) {
    loop?.stop(isSocketShared: socketFile?.isInherited ?? false)
    let wasBound = loop != nil
    loop = nil
    path.stop(socketFile, then: done)
    socketFile = nil
    context.status.publish(.listenerClosed(route: context.route, listener: name, bound: wasBound ? name : nil))
  }
}

extension UnixListener {
  static let grammar = SchemeGrammar(
    "unix", example: "unix:///run/baudway/gps.sock?mode=0660", authority: .none, path: .file,
    parameters: ListenerSchemes.ownership + [ListenerSchemes.role],
    rules: [
      SchemeGrammar.Rule(nil) {
        $0.path.utf8.count > UnixAddress.mostBytes
          ? "the path of a socket has \(UnixAddress.mostBytes) bytes at most" : nil
      }
    ])
}

/// The process that connected to a unix socket, as the kernel recorded it at that time (SO_PEERCRED of unix(7)).
package struct PeerProcess: Hashable, Sendable, CustomStringConvertible {
  package let user: UInt32
  /// 0 for a process of another PID namespace.
  package let process: Int32

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
  package var description: String { process > 0 ? "uid \(user), pid \(process)" : "uid \(user)" }
}
