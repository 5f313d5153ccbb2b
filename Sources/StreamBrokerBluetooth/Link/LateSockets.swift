// Sockets of LE whose opening was given up while they connected. They are not closed at once: Linux calls for a device when it has
// heard it, and one that lets go just then leaves a link behind, and an adapter that calls nobody any more (6.1 withdraws a call that
// it has not made yet, and makes it all the same). So each stays until it is connected, a moment where the device is there, and
// ends as every other then.

import ByteStreams
import Glibc
import Synchronization

enum LateSockets {
  /// A device that was not heard by then is not there; calling for one takes part of a second.
  static let patience = Duration.seconds(5)
  /// The kernel gives up after 40 s: who takes one over has time left.
  static let oldest = Duration.seconds(20)
  private static let betweenLooks = Duration.milliseconds(50)

  private struct Entry {
    // Its lane keeps it.
    weak var socket: LateSocket?
  }
  private static let all = Mutex<[LETarget: Entry]>([:])

  /// Takes a socket over that has been connecting `since` then, on the clock of lanes; one that is too old it leaves alone.
  static func keep(_ parcel: DescriptorParcel, for target: LETarget, since: UInt64, on poller: Poller) {
    let now = poller.timers.now
    guard now &- since < oldest.nanoseconds else { return }
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

  /// For the next who opens the same, from any lane: a second socket would be refused (EBUSY). Pairing that began meanwhile nobody
  /// has answered, so none that asked for it is handed on.
  static func take(_ target: LETarget) -> (socket: DescriptorParcel, since: UInt64)? {
    guard !target.isToBeSecured else { return nil }
    guard let late = all.withLock({ $0.removeValue(forKey: target)?.socket }) else { return nil }
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
