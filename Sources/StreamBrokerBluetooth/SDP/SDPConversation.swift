// Carries a look-up over its socket: one message per call, and an end to the waiting.

import ByteStreams
import Glibc
import StreamBroker

/// Lives on the lane; kept by the poller until it is over.
final class SDPConversation: PollHandler {
  enum Failure: Error, Hashable, Sendable {
    case found(ChannelLookUp.Fault)
    case broke(SystemError)
    case silent
  }

  private let poller: Poller
  private var descriptor: Descriptor?
  private var lookUp: ChannelLookUp
  private var done: ((Result<UInt8, Failure>) -> Void)?
  private var deadline: Timers.Token?
  private var isInPoller = false
  private var buffer = [UInt8](repeating: 0, count: SDPConversation.longestMessage)

  // L2CAP's default, which is what our socket offers; no message is longer.
  private static let longestMessage = 672
  /// For each answer.
  static let patience = Duration.seconds(5)

  /// Takes the connected socket out of its parcel. `done` is called once, unless it is cancelled before.
  init(
    _ socket: DescriptorParcel, _ lookUp: ChannelLookUp, on poller: Poller,
    _ done: @escaping (Result<UInt8, Failure>) -> Void
  ) {
    descriptor = socket.take()
    self.lookUp = lookUp
    self.poller = poller
    self.done = done
  }

  func start() {
    guard let raw = descriptor?.raw else { return finish(.failure(.broke(SystemError("send", EBADF)))) }
    do throws(SystemError) {
      try poller.add(raw, handler: self, for: .readable)
      isInPoller = true
    } catch {
      return finish(.failure(.broke(error)))
    }
    send(lookUp.firstRequest, raw)
  }

  // Requests are short and there is one at a time: the socket has room.
  private func send(_ message: [UInt8], _ raw: Int32) {
    guard Glibc.send(raw, message, message.count, Int32(MSG_NOSIGNAL)) == message.count else {
      return finish(.failure(.broke(SocketOptions.takeError(of: raw, "send") ?? SystemError("send"))))
    }
    poller.timers.cancel(deadline)
    deadline = poller.timers.after(Self.patience) { [self] in finish(.failure(.silent)) }
  }

  func ready(_ events: PollEvents) {
    let hungUp = !events.isDisjoint(with: .hangUp)
    var error: SystemError?
    if hungUp, let raw = descriptor?.raw { error = SocketOptions.takeError(of: raw, "read") }
    while let raw = descriptor?.raw {
      let count = Glibc.read(raw, &buffer, buffer.count)
      if count > 0 {
        handle(lookUp.handle(Array(buffer[..<count])), raw)
      } else if count < 0, errno == EINTR {
        continue
      } else if count < 0, errno == EAGAIN, !hungUp {
        return
      } else if count < 0, errno != EAGAIN, error == nil {
        error = SystemError("read")  // and what was sent before it is still there
      } else {
        return finish(.failure(.broke(error ?? SystemError("read", ECONNRESET))))
      }
    }
  }

  private func handle(_ step: ChannelLookUp.Step, _ raw: Int32) {
    switch step {
    case .send(let message): send(message, raw)
    case .found(let channel): finish(.success(channel))
    case .giveUp(let fault): finish(.failure(.found(fault)))
    case .wait: break
    }
  }

  private func finish(_ result: Result<UInt8, Failure>) {
    guard let done else { return }
    cancel()
    done(result)
  }

  func cancel() {
    done = nil
    poller.timers.cancel(deadline)
    deadline = nil
    if isInPoller, let raw = descriptor?.raw { poller.remove(raw) }
    isInPoller = false
    descriptor = nil
  }
}

extension SDPConversation.Failure {
  func failure(_ uuid: BluetoothUUID, at device: BluetoothAddress) -> OpenFailure {
    let attempt = "look up service \(uuid) of \(device)"
    switch self {
    case .silent:
      return OpenFailure(
        attempt, SystemError("read", ETIMEDOUT),
        advice: "no answer to the question within \(SDPConversation.patience); a URL with a channel asks none")
    case .broke(let error): return OpenFailure(attempt, error, advice: "the device hung up before it answered")
    case .found(let fault): return OpenFailure(attempt, nil, advice: fault.advice)
    }
  }
}

extension ChannelLookUp.Fault {
  var advice: String {
    switch self {
    case .noSuchService: "the device offers no such service; name another by 'uuid', or give the channel"
    case .notOverRFCOMM: "the device offers that service, but not over RFCOMM"
    case .refused(let code): "the device refused the question (SDP error \(code)); give the channel instead"
    case .malformed(let what): "the device's answer makes no sense: \(what); give the channel instead"
    case .endless: "the device's answer does not end; give the channel instead"
    }
  }
}
