// A connected Bluetooth socket in a lane's epoll set: it joins when a reader or writer first waits. The error that
// broke it is kept for the next read or write. What differs between the streams over such sockets is in the streams.

import ByteStreams
import Glibc

/// Lives on the lane of its stream, which owns it.
final class PolledSocket {
  let raw: Int32
  let poller: Poller
  private var descriptor: Descriptor?
  fileprivate(set) var isInPoller = false
  /// The socket hung up; bytes may still be queued.
  private(set) var isHungUp = false
  private(set) var fault: SystemError?
  /// Called once, when the socket is closed.
  var whenClosed: (() -> Void)?
  /// The end was read.
  var readEnded = false

  init(_ descriptor: consuming Descriptor, on poller: Poller) {
    raw = descriptor.raw
    self.poller = poller
    self.descriptor = consume descriptor
  }

  var isOpen: Bool { descriptor != nil }

  /// A read has found less than it had room for.
  func noteDry() { poller.note(raw, spent: .readable) }
  /// A write has found less room than it needed.
  func noteFull() { poller.note(raw, spent: .writable) }

  /// The first error counts: it is what broke the socket.
  func hangUp(_ error: SystemError?) {
    isHungUp = true
    fault = fault ?? error
  }

  /// Call it when a write has failed, perhaps before the hang-up was reported. The error of the socket is more exact
  /// than ENOTCONN, which is all that later writes get.
  func breakOff() -> SystemError {
    let error = SystemError("write")
    if !isHungUp { hangUp(SocketOptions.takeError(of: raw, "write") ?? error) }
    return fault ?? error
  }

  fileprivate func close() {
    if isInPoller { poller.remove(raw, isClosing: true) }
    descriptor = nil
    let reported = whenClosed
    whenClosed = nil
    reported?()
  }
}

/// A stream over such a socket. Its `readerWaits` and `writerWaits` call `waitsChanged()`.
protocol PolledStream: TransportStream, PollHandler {
  var socket: PolledSocket { get }
  /// What to wait for on the socket.
  var waits: Readiness { get }
}

extension PolledStream {
  func waitsChanged() {
    guard socket.isOpen else { return }
    if socket.isInPoller {
      socket.poller.change(socket.raw, to: waits)
    } else if !waits.isEmpty {
      join()
    }
  }

  private func join() {
    do {
      try socket.poller.add(socket.raw, handler: self, for: waits, notesSpent: true)
      socket.isInPoller = true
    } catch {
      // In a turn of its own, as every event is.
      socket.poller.timers.after(.zero) { [self] in report(.errorOccurred(error)) }
    }
  }

  /// EOF can arrive before we registered with epoll; register now, or the later hang-up is missed.
  func sawEnd() -> Transfer {
    socket.readEnded = true
    if !socket.isInPoller { join() }
    return .ended
  }

  func report(_ event: ByteStreamEvent) {
    guard socket.isOpen else { return }
    delegate?.stream(self, handle: event)
  }

  /// The last call of every `close()`.
  func leave() {
    guard socket.isOpen else { return }
    socket.close()
    dismissDelegate()
  }
}
