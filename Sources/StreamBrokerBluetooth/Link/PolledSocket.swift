// A connected socket of Bluetooth in a lane's epoll set: it joins when somebody waits for it first, and what broke it is kept for
// whoever reads or writes next. What differs between the streams over such sockets stands in them.

import ByteStreams
import Glibc

/// Lives on the lane of its stream, which owns it.
final class PolledSocket {
  let raw: Int32
  let poller: Poller
  private var descriptor: Descriptor?
  fileprivate(set) var isInPoller = false
  /// It hung up; bytes may be queued still.
  private(set) var isHungUp = false
  private(set) var fault: SystemError?
  /// Called once, when it is closed.
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
  /// A write has found less room than it would have taken.
  func noteFull() { poller.note(raw, spent: .writable) }

  /// What is told first is what broke it.
  func hangUp(_ error: SystemError?) {
    isHungUp = true
    fault = fault ?? error
  }

  /// A write has just failed, perhaps before the hang-up was told of. What broke the socket says more than ENOTCONN, which is all
  /// that later ones get.
  func breakOff() -> SystemError {
    let error = SystemError("write")
    if !isHungUp { hangUp(SocketOptions.takeError(of: raw, "write") ?? error) }
    return fault ?? error
  }

  fileprivate func close() {
    if isInPoller { poller.remove(raw, isClosing: true) }
    descriptor = nil
    let told = whenClosed
    whenClosed = nil
    told?()
  }
}

/// A stream over one. Its `readerWaits` and `writerWaits` call `waitsChanged()`.
protocol PolledStream: ByteStream, PollHandler {
  var socket: PolledSocket { get }
  /// What the socket is waited for.
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
      socket.poller.timers.after(.zero) { [self] in tell(.errorOccurred(error)) }
    }
  }

  /// Who ended before anybody had to wait isn't in the set yet, and his hang-up would go unseen.
  func sawEnd() -> Transfer {
    socket.readEnded = true
    if !socket.isInPoller { join() }
    return .ended
  }

  func tell(_ event: ByteStreamEvent) {
    guard socket.isOpen else { return }
    delegate?.stream(self, handle: event)
  }

  /// The end of every `close()`.
  func leave() {
    guard socket.isOpen else { return }
    socket.close()
    dismissDelegate()
  }
}
