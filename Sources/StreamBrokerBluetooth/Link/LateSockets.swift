// Sockets of LE whose opening was given up while they connected. They are not closed at once: Linux calls for a device when it has
// heard it, and one that lets go just then leaves a link behind, and an adapter that calls nobody any more (6.1 withdraws a call that
// it has not made yet, and makes it all the same). So each stays until it is connected, a moment where the device is there, and
// ends as every other then; or until the next comes who opens the same: he goes on with it, or ends it where he can't.

import ByteStreams
import Glibc
import Synchronization

enum LateSockets {
  /// A device that was not heard by then is not there; calling for one takes part of a second.
  static let patience = Duration.seconds(5)
  /// How long the kernel calls for a device (40.7 s): who goes on with a call has all of his time within that.
  static let kernelPatience = Duration.seconds(40)
  private static let betweenLooks = Duration.milliseconds(50)

  private struct Entry {
    // Its lane keeps it.
    weak var socket: LateSocket?
  }
  private static let all = Mutex<[LETarget: Entry]>([:])

  /// Takes a socket over that has been connecting `since` then, on the clock of lanes.
  static func keep(_ parcel: DescriptorParcel, for target: LETarget, since: UInt64, on poller: Poller) {
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
  /// less than his `patience` left to it, and where it is to be secured: pairing that began meanwhile nobody has answered.
  static func take(_ target: LETarget, now: UInt64, patience: Duration) -> (socket: DescriptorParcel, since: UInt64)? {
    guard let late = all.withLock({ $0.removeValue(forKey: target)?.socket }) else { return nil }
    let age = Duration.nanoseconds(Int64(now) - Int64(late.since))
    guard !target.isToBeSecured, age + patience < kernelPatience else {
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
