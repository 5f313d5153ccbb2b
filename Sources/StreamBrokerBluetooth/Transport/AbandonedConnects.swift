// Sockets whose opening was given up while they connected. Closing such a socket at the wrong moment makes Linux 6.1
// leave a link behind, so it is not closed at once. With LE, the wrong moment is between a device's advertisement and
// the kernel's connect command: the kernel cancels the command, sends it all the same, and then connects to no other
// device. With Classic, it is while L2CAP configures a channel: after our request to end the channel, the device's
// answer makes it connected again. So each socket stays until it is connected (a moment, if the device is there) or
// until `timeout` is over. Then it is closed as usual. If the same target is opened again before that, the opening
// continues with the socket, or closes it if it can't.

import ByteStreams
import Glibc
import Synchronization

/// What a socket connects to.
enum LateTarget: Hashable, Sendable {
  case le(LETarget)
  case classic(BluetoothTarget)

  var isToBeSecured: Bool {
    switch self {
    case .le(let target): target.isToBeSecured
    case .classic(let target): target.isToBeSecured
    }
  }
  /// How long the kernel tries: 40.7 s for an LE device, and RFCOMM gives up by itself.
  var kernelPatience: Duration {
    switch self {
    case .le: .seconds(40)
    case .classic: .seconds(30)
    }
  }
}

enum AbandonedConnects {
  /// An LE device that was not found within this time is not there, and a Classic one does not answer (page timeout,
  /// 5.12 s). Connecting takes part of a second.
  static let timeout = Duration.seconds(5)
  private static let betweenLooks = Duration.milliseconds(50)
  /// An opening continues with a socket only if the kernel still tries for at least this long, or for the opening's
  /// timeout if that is shorter. More is not required: some timeouts are longer than the kernel's, and closing leaves
  /// the link behind.
  static let leastTime = Duration.seconds(10)

  private struct Entry {
    // The lane keeps it.
    weak var socket: AbandonedConnect?
  }
  private static let all = Mutex<[LateTarget: Entry]>([:])

  /// Takes over a socket that has been connecting since `since`, on the clock of lanes.
  static func keep(_ parcel: DescriptorParcel, for target: LateTarget, since: UInt64, on poller: Poller) {
    let now = poller.timers.now
    let socket = AbandonedConnect(parcel, since: since)
    all.withLock { $0[target] = Entry(socket: socket) }
    let closing = poller.abandonedConnects.begin { socket.close() }
    watch(socket, until: now &+ timeout.nanoseconds, on: poller) {
      poller.abandonedConnects.end(closing)
      all.withLock { if $0[target]?.socket === socket { $0[target] = nil } }
    }
  }

  private static func watch(
    _ socket: AbandonedConnect, until end: UInt64, on poller: Poller, then isOver: @escaping () -> Void
  ) {
    poller.timers.after(betweenLooks) {
      if socket.isConnecting, poller.timers.now < end { return watch(socket, until: end, on: poller, then: isOver) }
      socket.close()
      isOver()
    }
  }

  /// For the next opening of the same target, on any lane: the kernel would refuse a second socket (EBUSY). The socket
  /// is closed if it has too little time left, or if it must be encrypted: nobody has answered a pairing that began
  /// meanwhile.
  static func take(
    _ target: LateTarget, now: UInt64, timeout: Duration
  ) -> (socket: DescriptorParcel, since: UInt64)? {
    guard let late = all.withLock({ $0.removeValue(forKey: target)?.socket }) else { return nil }
    let age = Duration.nanoseconds(Int64(now) - Int64(late.since))
    guard !target.isToBeSecured, age + min(timeout, leastTime) < target.kernelPatience else {
      late.close()
      return nil
    }
    return late.take().map { ($0, late.since) }
  }
}

final class AbandonedConnect: Sendable {
  let since: UInt64
  private let content: Mutex<Descriptor?>

  init(_ parcel: DescriptorParcel, since: UInt64) {
    self.since = since
    content = Mutex(parcel.take())
  }

  /// Neither connected nor failed nor taken over.
  var isConnecting: Bool {
    content.withLock { content in
      guard let raw = content?.raw else { return false }
      return Self.events(of: raw) == 0
    }
  }

  /// Nil if it failed, or another opening was faster.
  func take() -> DescriptorParcel? {
    guard let descriptor = content.withLock({ $0.take() }) else { return nil }
    guard Self.events(of: descriptor.raw) & Int16(POLLERR | POLLHUP) == 0 else { return nil }
    return DescriptorParcel(descriptor)
  }

  func close() { content.withLock { $0 = nil } }

  private static func events(of raw: Int32) -> Int16 {
    var one = pollfd(fd: raw, events: Int16(POLLOUT), revents: 0)
    return poll(&one, 1, 0) < 0 ? 0 : one.revents
  }
}
