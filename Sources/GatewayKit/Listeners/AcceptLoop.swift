// Takes clients from one bound socket, one per event, and survives the descriptor limit. Every listener kind on sockets
// uses it; what a client is made into is its owner's.

import ByteStreams
import CLinux
import Glibc

final class AcceptLoop: PollHandler {
  private let raw: Int32
  private var socket: Descriptor?
  private let poller: Poller
  private let accepted: (consuming Descriptor, SocketAddress?) -> Void
  /// Told once until it has been well for some seconds: at the limit each client who leaves makes room for one more.
  private let outOfDescriptors: (SystemError) -> Void
  /// Called once; no client comes by this socket any more.
  private let lost: (SystemError) -> Void
  private let farewell: () -> String?
  private var lastShortage: UInt64?
  private static let wellAgainAfter: UInt64 = 5_000_000_000
  private var pause: Timers.Token?
  private var isStopped = false

  // Held against the limit: given up for a moment, it lets us accept a client and turn him away with a reason,
  // instead of leaving him in the kernel's queue.
  private var spare: Descriptor?
  private static let pauseLength = Duration.milliseconds(100)
  private static let mostTurnedAway = 64  // per pause
  private static let mostAtStop = 8192  // the kernel's queue twice over: others may connect meanwhile

  /// Takes over a listening socket. `farewell` is what clients beyond the descriptor limit are told. `lost` is called when the socket
  /// accepts no more, as when another process that has it too has shut it down: its owner binds anew.
  init(
    _ socket: consuming Descriptor, on poller: Poller, farewell: @autoclosure @escaping () -> String?,
    outOfDescriptors: @escaping (SystemError) -> Void, lost: @escaping (SystemError) -> Void,
    accepted: @escaping (consuming Descriptor, SocketAddress?) -> Void
  ) throws(SystemError) {
    raw = socket.raw
    self.socket = consume socket
    self.poller = poller
    self.farewell = farewell
    self.outOfDescriptors = outOfDescriptors
    self.lost = lost
    self.accepted = accepted
    spare = Self.makeSpare()
    try poller.add(raw, handler: self, for: .readable)
  }

  /// Closing the socket resets whoever still waits in it for accept(2), so they are handed over first; unless it is open
  /// elsewhere too, where they can wait for somebody else.
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

  /// Lends out the socket, to change what clients inherit from it.
  func withSocket(_ body: (Int32) -> Void) { body(raw) }

  /// One client per event: a second accept(2) would mostly find nobody, and epoll comes back at once if it would not.
  func ready(_ events: PollEvents) {
    // A unix socket that was shut down says EAGAIN, and its events go on for ever.
    if !acceptOne(), !isStopped, pause == nil, Self.isShutDown(raw) { lose(SystemError("accept", EINVAL)) }
  }

  static func isShutDown(_ socket: Int32) -> Bool {
    var look = pollfd(fd: socket, events: shutDown, revents: 0)
    return poll(&look, 1, 0) > 0
  }

  private static let shutDown: Int16 = 0x2000  // POLLRDHUP of poll(2), which Swift's Glibc lacks

  /// Whether it is worth to try again.
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
        rest(error)
        return false
      case EINVAL, EBADF, ENOTSOCK:
        lose(error)
        return false
      default: return true  // accept(2): errors of the network below are the client's; the next one may be well
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

  /// Asking again would be answered the same for ever, and epoll says at once that there is something to ask for.
  private func lose(_ error: SystemError) {
    guard !isStopped else { return }
    isStopped = true
    leave()
    // The number is no socket of ours any more: closing it would close what somebody else has by now.
    if error.errno != EINVAL { socket.take()?.disown() }
    lost(error)
  }

  private func rest(_ error: SystemError) {
    let now = poller.timers.now
    if lastShortage.map({ now &- $0 > Self.wellAgainAfter }) ?? true { outOfDescriptors(error) }
    lastShortage = now
    turnAway()
    poller.change(raw, to: [])
    pause = poller.timers.after(Self.pauseLength) { [weak self] in
      guard let self, !isStopped else { return }
      self.pause = nil
      poller.change(raw, to: .readable)
    }
  }

  private func turnAway() {
    for _ in 0..<Self.mostTurnedAway {
      spare = nil
      var address: SocketAddress?
      guard let descriptor = try? accept(&address) else { break }
      if let farewell = farewell() { Self.say(farewell, to: descriptor.raw) }
    }
    if spare == nil { spare = Self.makeSpare() }
  }

  /// The last line to one of many, who is not waited for.
  static func say(_ line: String, to client: Int32) {
    _ = (line + "\r\n").withCString { send(client, $0, strlen($0), Int32(MSG_NOSIGNAL)) }
  }

  private static func makeSpare() -> Descriptor? {
    let raw = open("/dev/null", O_RDONLY | O_CLOEXEC)
    return raw < 0 ? nil : Descriptor(owning: raw)
  }
}
