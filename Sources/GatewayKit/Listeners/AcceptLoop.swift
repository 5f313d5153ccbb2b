// Accepts clients from one bound socket, one per event, and keeps working at the descriptor limit. Every kind of
// listener on sockets uses it. The owner makes a client of the descriptor.

import ByteStreams
import CLinux
import Glibc

final class AcceptLoop: PollHandler {
  private let raw: Int32
  private var socket: Descriptor?
  private let poller: Poller
  private let accepted: (consuming Descriptor, SocketAddress?) -> Void
  /// Called at the descriptor limit, and again only after 5 s without one: at the limit each client that disconnects
  /// makes room for the next.
  private let outOfDescriptors: (SystemError) -> Void
  /// Called once, when this socket accepts no more clients.
  private let lost: (SystemError) -> Void
  private let refusalLine: () -> String?
  private var lastShortage: UInt64?
  private static let wellAgainAfter: UInt64 = 5_000_000_000
  private var pause: Timers.Token?
  private var isStopped = false

  // A spare descriptor for the limit: closing it for a moment lets us accept a client and refuse it with a reason,
  // instead of leaving it in the kernel's queue.
  private var spare: Descriptor?
  private static let pauseLength = Duration.milliseconds(100)
  private static let mostTurnedAway = 64  // per pause
  private static let mostAtStop = 8192  // twice the kernel's queue: others may connect meanwhile

  /// Takes over a listening socket. `refusalLine` is a line for clients refused at the descriptor limit. `lost` is
  /// called when the socket accepts no more, for example because another process that shares it has shut it down: bind
  /// again then.
  init(
    _ socket: consuming Descriptor, on poller: Poller, refusalLine: @autoclosure @escaping () -> String?,
    outOfDescriptors: @escaping (SystemError) -> Void, lost: @escaping (SystemError) -> Void,
    accepted: @escaping (consuming Descriptor, SocketAddress?) -> Void
  ) throws(SystemError) {
    raw = socket.raw
    self.socket = consume socket
    self.poller = poller
    self.refusalLine = refusalLine
    self.outOfDescriptors = outOfDescriptors
    self.lost = lost
    self.accepted = accepted
    spare = Self.makeSpare()
    try poller.add(raw, handler: self, for: .readable)
  }

  /// Closing the socket resets connections that still wait for accept(2), so they are accepted and handed over first.
  /// If the socket is also open elsewhere, they stay in its queue.
  func stop(isSocketShared: Bool = false) {
    guard !isStopped else { return }
    isStopped = true
    if !isSocketShared { handOverAll() }
    leave()
  }

  private func leave() {
    poller.timers.cancel(pause)
    poller.remove(raw)
  }

  private func handOverAll() {
    for _ in 0..<Self.mostAtStop where !acceptOne() { break }
  }

  /// Lends the socket, to change options that clients inherit.
  func withSocket(_ body: (Int32) -> Void) { body(raw) }

  /// One client per event: a second accept(2) would mostly fail with EAGAIN, and epoll reports further clients at once.
  func ready(_ events: PollEvents) {
    // On a unix socket that was shut down accept(2) fails with EAGAIN, and its events never end.
    if !acceptOne(), !isStopped, pause == nil, Self.isShutDown(raw) { lose(SystemError("accept", EINVAL)) }
  }

  static func isShutDown(_ socket: Int32) -> Bool {
    var look = pollfd(fd: socket, events: shutDown, revents: 0)
    return poll(&look, 1, 0) > 0
  }

  private static let shutDown: Int16 = 0x2000  // POLLRDHUP of poll(2), which Swift's Glibc lacks

  /// Whether another accept(2) makes sense.
  private func acceptOne() -> Bool {
    do {
      var address: SocketAddress?
      let descriptor = try accept(&address)
      accepted(descriptor, address)
      return true
    } catch {
      switch error.errno {
      case EAGAIN: return false
      case EMFILE, ENFILE, ENOBUFS, ENOMEM:
        pause(error)
        return false
      case EINVAL, EBADF, ENOTSOCK:
        lose(error)
        return false
      default: return true  // accept(2): network errors concern this client alone; the next accept can succeed
      }
    }
  }

  private func accept(_ address: inout SocketAddress?) throws(SystemError) -> Descriptor {
    var storage = sockaddr_storage()
    var length = socklen_t(MemoryLayout<sockaddr_storage>.size)
    let client = withUnsafeMutablePointer(to: &storage) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { linux_accept(raw, $0, &length) }
    }
    guard client >= 0 else { throw SystemError("accept") }
    address = withUnsafePointer(to: &storage) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { SocketAddress($0, length: length)?.unmapped }
    }
    return Descriptor(owning: client)
  }

  /// Stops for good: every further accept(2) would fail the same way, while epoll keeps reporting the socket as ready.
  private func lose(_ error: SystemError) {
    guard !isStopped else { return }
    isStopped = true
    leave()
    // EBADF, ENOTSOCK: the number is no longer our socket; closing it could close another owner's descriptor.
    if error.errno != EINVAL { socket.take()?.disown() }
    lost(error)
  }

  private func pause(_ error: SystemError) {
    let now = poller.timers.now
    if lastShortage.map({ now &- $0 > Self.wellAgainAfter }) ?? true { outOfDescriptors(error) }
    lastShortage = now
    refuse()
    poller.change(raw, to: [])
    pause = poller.timers.after(Self.pauseLength) { [weak self] in
      guard let self, !isStopped else { return }
      self.pause = nil
      poller.change(raw, to: .readable)
    }
  }

  private func refuse() {
    for _ in 0..<Self.mostTurnedAway {
      spare = nil
      var address: SocketAddress?
      guard let descriptor = try? accept(&address) else { break }
      if let refusalLine = refusalLine() { Self.sendLine(refusalLine, to: descriptor.raw) }
    }
    if spare == nil { spare = Self.makeSpare() }
  }

  /// Sends a last line, without waiting; it is lost if the socket does not take it.
  static func sendLine(_ line: String, to client: Int32) {
    Array("\(line)\r\n".utf8).withUnsafeBytes { send($0, to: client) }
  }

  /// The same for bytes.
  static func send(_ bytes: UnsafeRawBufferPointer, to client: Int32) {
    _ = Glibc.send(client, bytes.baseAddress, bytes.count, Int32(MSG_NOSIGNAL))
  }

  private static func makeSpare() -> Descriptor? {
    let raw = open("/dev/null", O_RDONLY | O_CLOEXEC)
    return raw < 0 ? nil : Descriptor(owning: raw)
  }
}
