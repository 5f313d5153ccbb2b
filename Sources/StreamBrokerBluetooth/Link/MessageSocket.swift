// Carries a conversation: a message per call over a connected socket that keeps them apart, and an end to the waiting.

import ByteStreams
import Glibc

/// Lives on the lane; kept by the poller until it is taken back.
final class MessageSocket: PollHandler {
  enum Failure: Error, Hashable, Sendable {
    case broke(SystemError)
    case silent
  }

  private let poller: Poller
  private var descriptor: Descriptor?
  private var hear: ((Result<[UInt8], Failure>) -> Void)?
  private var deadline: Timers.Token?
  private var isInPoller = false
  private var buffer: [UInt8]
  /// Nothing is read meanwhile; that it hung up is told.
  var isDeaf = false {
    didSet { if isDeaf != oldValue, isInPoller, let raw { poller.change(raw, to: isDeaf ? [] : .readable) } }
  }

  /// Takes the connected, non-blocking socket out of its parcel. `longest` is that of a message, in bytes; longer ones come cut.
  init(_ socket: DescriptorParcel, longest: Int, on poller: Poller) {
    descriptor = socket.take()
    buffer = [UInt8](repeating: 0, count: longest)
    self.poller = poller
  }

  /// Nil once it was closed or taken.
  var raw: Int32? { descriptor?.raw }

  /// `hear` is told of each message, and once, perhaps at once, of a failure, before which the socket is closed.
  func start(_ hear: @escaping (Result<[UInt8], Failure>) -> Void) {
    self.hear = hear
    guard let raw else { return fail(.broke(SystemError("send", EBADF))) }
    do throws(SystemError) {
      try poller.add(raw, handler: self, for: .readable)
      isInPoller = true
    } catch {
      fail(.broke(error))
    }
  }

  /// Requests are short and there is one at a time: the socket has room. Without an answer within `patience` it is silent.
  func send(_ message: [UInt8], patience: Duration) {
    guard let raw else { return }
    guard Glibc.send(raw, message, message.count, Int32(MSG_NOSIGNAL)) == message.count else {
      let error = SystemError("send")
      return fail(.broke(SocketOptions.takeError(of: raw, "send") ?? error))
    }
    setDeadline(patience) { [self] in fail(.silent) }
  }

  /// Instead of the one before.
  func setDeadline(_ time: Duration, _ over: @escaping () -> Void) {
    poller.timers.cancel(deadline)
    deadline = poller.timers.after(time, over)
  }

  func ready(_ events: PollEvents) {
    let hungUp = !events.isDisjoint(with: .hangUp)
    var error: SystemError?
    if hungUp, let raw { error = SocketOptions.takeError(of: raw, "read") }
    if isDeaf {
      if hungUp { fail(.broke(error ?? SystemError("read", ECONNRESET))) }
      return
    }
    // Until somebody wants no more, or wants it later.
    while !isDeaf, let raw, let hear {
      let count = Glibc.read(raw, &buffer, buffer.count)
      if count > 0 {
        hear(.success(Array(buffer[..<count])))
      } else if count < 0, errno == EINTR {
        continue
      } else if count < 0, errno == EAGAIN, !hungUp {
        return
      } else if count < 0, errno != EAGAIN, error == nil {
        error = SystemError("read")  // and what was sent before it is still there
      } else {
        return fail(.broke(error ?? SystemError("read", ECONNRESET)))
      }
    }
  }

  private func fail(_ failure: Failure) {
    guard let hear else { return }
    _ = take()
    hear(.failure(failure))
  }

  /// The socket, open as it was; nothing is heard any more. Nil when it was taken, or closed, before.
  @discardableResult
  func take() -> DescriptorParcel? {
    hear = nil
    poller.timers.cancel(deadline)
    guard let socket = descriptor.take() else { return nil }
    if isInPoller { poller.remove(socket.raw) }
    isInPoller = false
    return DescriptorParcel(socket)
  }
}
