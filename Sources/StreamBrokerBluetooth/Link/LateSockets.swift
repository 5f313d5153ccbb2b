// Sockets whose opening was given up while they connected. They are not closed at once: Linux 6.1 leaves a link behind where one
// lets go in the wrong moment. LE: between a device's advertisement and the call, which is withdrawn before it was made, and made all
// the same; no other device is called then. Classic: while L2CAP settles a channel, for the device's answer to that makes it connected
// again, behind our request to end it. So each stays until it is connected, a moment where the device is there, and ends as every
// other then; or until the next comes who opens the same: he goes on with it, or ends it where he can't.

import ByteStreams
import Glibc
import Synchronization

/// What a socket is on its way to.
enum LateTarget: Hashable, Sendable {
  case le(LETarget)
  case classic(BluetoothTarget)

  var isToBeSecured: Bool {
    switch self {
    case .le(let target): target.isToBeSecured
    case .classic(let target): target.isToBeSecured
    }
  }
  /// How long the kernel tries: it calls for an LE device 40.7 s, and RFCOMM gives up by itself.
  var kernelPatience: Duration {
    switch self {
    case .le: .seconds(40)
    case .classic: .seconds(30)
    }
  }
}

enum LateSockets {
  /// An LE device that was not heard by then is not there, and a Classic one does not answer (5.12 s, the page time-out); calling for
  /// one takes part of a second.
  static let patience = Duration.seconds(5)
  private static let betweenLooks = Duration.milliseconds(50)
  /// Who goes on with a call has so long within the kernel's patience, or all of his own. Not all of it in any case: the patience of
  /// some is longer than the kernel's, and to close leaves the link behind.
  static let leastTime = Duration.seconds(10)

  private struct Entry {
    // Its lane keeps it.
    weak var socket: LateSocket?
  }
  private static let all = Mutex<[LateTarget: Entry]>([:])

  /// Takes a socket over that has been connecting `since` then, on the clock of lanes.
  static func keep(_ parcel: DescriptorParcel, for target: LateTarget, since: UInt64, on poller: Poller) {
    let now = poller.timers.now
    let socket = LateSocket(parcel, since: since)
    all.withLock { $0[target] = Entry(socket: socket) }
    let closing = poller.closings.begin { socket.close() }
    watch(socket, until: now &+ patience.nanoseconds, on: poller) {
      poller.closings.end(closing)
      all.withLock { if $0[target]?.socket === socket { $0[target] = nil } }
    }
  }

  private static func watch(
    _ socket: LateSocket, until end: UInt64, on poller: Poller, then isOver: @escaping () -> Void
  ) {
    poller.timers.after(betweenLooks) {
      if socket.isConnecting, poller.timers.now < end { return watch(socket, until: end, on: poller, then: isOver) }
      socket.close()
      isOver()
    }
  }

  /// For the next who opens the same, from any lane: a second socket beside it would be refused (EBUSY). It is closed where there is
  /// less time left to it than he needs, and where it is to be secured: pairing that began meanwhile nobody has answered.
  static func take(
    _ target: LateTarget, now: UInt64, patience: Duration
  ) -> (socket: DescriptorParcel, since: UInt64)? {
    guard let late = all.withLock({ $0.removeValue(forKey: target)?.socket }) else { return nil }
    let age = Duration.nanoseconds(Int64(now) - Int64(late.since))
    guard !target.isToBeSecured, age + min(patience, leastTime) < target.kernelPatience else {
      late.close()
      return nil
    }
    return late.take().map { ($0, late.since) }
  }
}

final class LateSocket: Sendable {
  let since: UInt64
  private let content: Mutex<Descriptor?>

  init(_ parcel: DescriptorParcel, since: UInt64) {
    self.since = since
    content = Mutex(parcel.take())
  }

  /// Neither connected nor broken nor taken.
  var isConnecting: Bool {
    content.withLock { content in
      guard let raw = content?.raw else { return false }
      return Self.events(of: raw) == 0
    }
  }

  /// Nil when it broke, or somebody was faster.
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
