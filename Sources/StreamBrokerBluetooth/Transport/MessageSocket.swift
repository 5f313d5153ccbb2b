// Exchanges messages over a connected socket that keeps them apart, one per call, with a time limit for answers.

import ByteStreams
import Glibc

/// Lives on the lane; the poller keeps it until `take()` or a failure.
final class MessageSocket: PollHandler {
  enum Failure: Error, Hashable, Sendable {
    case broke(SystemError)
    case silent
  }

  private let poller: Poller
  private var descriptor: Descriptor?
  private var handle: ((Result<[UInt8], Failure>) -> Void)?
  private var deadline: Timers.Token?
  private var isInPoller = false
  private var buffer: [UInt8]
  /// Why the link broke. The kernel says so once; messages from before may still be queued.
  private var brokenBy: SystemError?
  /// Nothing is read meanwhile; a hang-up is still reported.
  var isPaused = false {
    didSet { if isPaused != oldValue, isInPoller, let raw { poller.change(raw, to: isPaused ? [] : .readable) } }
  }

  /// Takes the connected, non-blocking socket out of its parcel. `longest` is the size of the longest message, in
  /// bytes; longer ones are truncated.
  init(_ socket: DescriptorParcel, longest: Int, on poller: Poller) {
    descriptor = socket.take()
    buffer = [UInt8](repeating: 0, count: longest)
    self.poller = poller
  }

  /// Nil after it was closed or taken.
  var raw: Int32? { descriptor?.raw }

  /// `handle` is called with each message, and once, perhaps at once, with a failure. The socket is closed before that.
  func start(_ handle: @escaping (Result<[UInt8], Failure>) -> Void) {
    self.handle = handle
    guard let raw else { return fail(.broke(SystemError("send", EBADF))) }
    do throws(SystemError) {
      try poller.add(raw, handler: self, for: .readable)
      isInPoller = true
    } catch {
      fail(.broke(error))
    }
  }

  /// Requests are short and there is one at a time, so the socket has room. Without an answer within `timeout` the
  /// exchange fails.
  func send(_ message: [UInt8], timeout: Duration) {
    guard let raw else { return }
    guard Glibc.send(raw, message, message.count, Int32(MSG_NOSIGNAL)) == message.count else {
      let error = SystemError("send")
      return fail(.broke(brokenBy ?? SocketOptions.takeError(of: raw, "send") ?? error))
    }
    setDeadline(timeout) { [self] in fail(.silent) }
  }

  /// Replaces the previous deadline.
  func setDeadline(_ time: Duration, _ over: @escaping () -> Void) {
    poller.timers.cancel(deadline)
    deadline = poller.timers.after(time, over)
  }

  func ready(_ events: PollEvents) {
    let hungUp = !events.isDisjoint(with: .hangUp)
    if hungUp, brokenBy == nil, let raw { brokenBy = SocketOptions.takeError(of: raw, "read") }
    if isPaused {
      if hungUp { fail(.broke(brokenBy ?? SystemError("read", ECONNRESET))) }
      return
    }
    // Until the receiver wants no more messages, or pauses.
    while !isPaused, let raw, let handle {
      let count = Glibc.read(raw, &buffer, buffer.count)
      if count > 0 {
        handle(.success(Array(buffer[..<count])))
      } else if count < 0, errno == EINTR {
        continue
      } else if count < 0, errno == EAGAIN, !hungUp {
        return
      } else if count < 0, errno != EAGAIN, brokenBy == nil {
        brokenBy = SystemError("read")
      } else {
        return fail(.broke(brokenBy ?? SystemError("read", ECONNRESET)))
      }
    }
  }

  private func fail(_ failure: Failure) {
    guard let handle else { return }
    _ = take()
    handle(.failure(failure))
  }

  /// Returns the socket, still open; `handle` is not called any more. Nil if it was taken or closed before.
  @discardableResult
  func take() -> DescriptorParcel? {
    handle = nil
    poller.timers.cancel(deadline)
    guard let socket = descriptor.take() else { return nil }
    if isInPoller { poller.remove(socket.raw) }
    isInPoller = false
    return DescriptorParcel(socket)
  }
}
