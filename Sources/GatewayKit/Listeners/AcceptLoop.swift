// Takes clients from one bound socket, one per event, and survives the descriptor limit. Every listener kind on sockets
// uses it; what a client is made into is its owner's.

import ByteStreams
import CLinux
import Glibc

final class AcceptLoop: PollHandler {
  private let socket: Descriptor
  private let poller: Poller
  private let accepted: (consuming Descriptor, SocketAddress?) -> Void
  /// Told once until a client is accepted again.
  private let outOfDescriptors: (SystemError) -> Void
  private let farewell: String?
  private var isOutOfDescriptors = false
  private var pause: Timers.Token?
  private var isStopped = false

  // Held against the limit: given up for a moment, it lets us accept a client and turn him away with a reason,
  // instead of leaving him in the kernel's queue.
  private var spare: Descriptor?
  private static let pauseLength = Duration.milliseconds(100)
  private static let mostTurnedAway = 64  // per pause

  /// Takes over a listening socket. `farewell` is what clients beyond the descriptor limit are told.
  init(
    _ socket: consuming Descriptor, on poller: Poller, farewell: String?,
    outOfDescriptors: @escaping (SystemError) -> Void,
    accepted: @escaping (consuming Descriptor, SocketAddress?) -> Void
  ) throws(SystemError) {
    let raw = socket.raw
    self.socket = socket
    self.poller = poller
    self.farewell = farewell
    self.outOfDescriptors = outOfDescriptors
    self.accepted = accepted
    spare = Self.makeSpare()
    try poller.add(raw, handler: self, for: .readable)
  }

  func stop() {
    guard !isStopped else { return }
    isStopped = true
    poller.timers.cancel(pause)
    poller.remove(socket.raw)
  }

  /// One client per event: a second accept(2) would mostly find nobody, and epoll comes back at once if it would not.
  func ready(_ events: PollEvents) {
    do {
      var address: SocketAddress?
      let descriptor = try accept(&address)
      isOutOfDescriptors = false
      accepted(descriptor, address)
    } catch {
      switch error.errno {
      case EAGAIN, EINTR, ECONNABORTED: break
      case EMFILE, ENFILE, ENOBUFS, ENOMEM: rest(error)
      default: break  // accept(2): errors of the network below are the client's; the next one may be well
      }
    }
  }

  private func accept(_ address: inout SocketAddress?) throws(SystemError) -> Descriptor {
    var storage = sockaddr_storage()
    var length = socklen_t(MemoryLayout<sockaddr_storage>.size)
    let raw = withUnsafeMutablePointer(to: &storage) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { linux_accept(socket.raw, $0, &length) }
    }
    guard raw >= 0 else { throw SystemError("accept") }
    address = withUnsafePointer(to: &storage) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { SocketAddress($0, length: length)?.unmapped }
    }
    return Descriptor(owning: raw)
  }

  private func rest(_ error: SystemError) {
    if !isOutOfDescriptors { outOfDescriptors(error) }
    isOutOfDescriptors = true
    turnAway()
    poller.change(socket.raw, to: [])
    pause = poller.timers.after(Self.pauseLength) { [weak self] in
      guard let self, !isStopped else { return }
      poller.change(socket.raw, to: .readable)
    }
  }

  private func turnAway() {
    for _ in 0..<Self.mostTurnedAway {
      spare = nil
      var address: SocketAddress?
      guard let descriptor = try? accept(&address) else { break }
      if let farewell {
        _ = (farewell + "\r\n").withCString { send(descriptor.raw, $0, strlen($0), Int32(MSG_NOSIGNAL)) }
      }
    }
    if spare == nil { spare = Self.makeSpare() }
  }

  private static func makeSpare() -> Descriptor? {
    let raw = open("/dev/null", O_RDONLY | O_CLOEXEC)
    return raw < 0 ? nil : Descriptor(owning: raw)
  }
}
