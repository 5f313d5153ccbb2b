// Carries a look-up over a connected ATT socket: one message per call, an end to the waiting, encryption where it is asked for.

internal import CBluetooth
import ByteStreams
import Glibc
import StreamBroker

/// Lives on the lane; kept by the poller until it is over.
final class GATTConversation: PollHandler {
  enum Failure: Error, Hashable, Sendable {
    case found(GATTLookUp.Fault)
    case broke(SystemError)
    case silent
    case notEncrypted
  }
  typealias Found = (socket: DescriptorParcel, plan: GATTPlan)

  private let poller: Poller
  private var descriptor: Descriptor?
  private var lookUp: GATTLookUp
  private var done: ((Result<Found, Failure>) -> Void)?
  private var deadline: Timers.Token?
  private var encryption: EncryptionWatch?
  // Nothing is read and nothing said meanwhile: what comes in clear is not to be believed, and a socket that is securing its
  // link takes nothing.
  private var isSecuring = false
  private var isInPoller = false
  private var buffer = [UInt8](repeating: 0, count: ATTMessage.mostMTU)

  /// For each answer. ATT gives a device 30 s (section 3.3.3), but none takes them.
  static let patience = Duration.seconds(10)
  /// For pairing, in which people may have a part.
  static let pairingPatience = Duration.seconds(30)

  init(
    _ socket: DescriptorParcel, _ lookUp: GATTLookUp, on poller: Poller,
    _ done: @escaping (Result<Found, Failure>) -> Void
  ) {
    descriptor = socket.take()
    self.lookUp = lookUp
    self.poller = poller
    self.done = done
  }

  /// With a `security` that was asked for at connect, the first word waits for it: connect(2) does not.
  func start(awaiting security: BluetoothTarget.Security?) {
    guard let raw = descriptor?.raw else { return finish(.failure(.broke(SystemError("send", EBADF)))) }
    do throws(SystemError) {
      try poller.add(raw, handler: self, for: .readable)
      isInPoller = true
    } catch {
      return finish(.failure(.broke(error)))
    }
    guard let security, security != .low else { return send(lookUp.firstRequest, raw) }
    awaitEncryption(security) { [self] in send(lookUp.firstRequest, raw) }
  }

  // Requests are short and there is one at a time: the socket has room.
  private func send(_ message: [UInt8], _ raw: Int32) {
    guard Glibc.send(raw, message, message.count, Int32(MSG_NOSIGNAL)) == message.count else {
      return finish(.failure(.broke(SocketOptions.takeError(of: raw, "send") ?? SystemError("send"))))
    }
    setDeadline(Self.patience, .silent)
  }

  private func setDeadline(_ time: Duration, _ failure: Failure) {
    poller.timers.cancel(deadline)
    deadline = poller.timers.after(time) { [self] in finish(.failure(failure)) }
  }

  func ready(_ events: PollEvents) {
    let hungUp = !events.isDisjoint(with: .hangUp)
    var error: SystemError?
    if hungUp, let raw = descriptor?.raw { error = SocketOptions.takeError(of: raw, "read") }
    if isSecuring {
      if hungUp { finish(.failure(.broke(error ?? SystemError("read", ECONNRESET)))) }
      return
    }
    while done != nil, let raw = descriptor?.raw {
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

  private func handle(_ step: GATTLookUp.Step, _ raw: Int32) {
    switch step {
    case .send(let message): send(message, raw)
    case .secure:
      guard bluetooth_set_security(raw, BluetoothTarget.Security.medium.rawValue) == 0 else {
        return finish(.failure(.broke(SystemError("setsockopt"))))
      }
      awaitEncryption(.medium) { [self] in handle(lookUp.handleSecured(), raw) }
    case .ready(let plan):
      guard let socket = take() else { return }
      end(.success((socket, plan)))
    case .giveUp(let fault): finish(.failure(.found(fault)))
    case .wait: break
    }
  }

  private func awaitEncryption(_ security: BluetoothTarget.Security, _ then: @escaping () -> Void) {
    guard let raw = descriptor?.raw else { return }
    setDeadline(Self.pairingPatience, .notEncrypted)
    isSecuring = true
    poller.change(raw, to: [])
    encryption = EncryptionWatch(of: raw, security, on: poller) { [self] in
      isSecuring = false
      poller.change(raw, to: .readable)
      then()
    }
  }

  private func finish(_ result: Result<Found, Failure>) {
    guard done != nil else { return }
    _ = take()
    end(result)
  }

  private func end(_ result: Result<Found, Failure>) {
    let done = done
    self.done = nil
    done?(result)
  }

  func cancel() {
    done = nil
    _ = take()
  }

  private func take() -> DescriptorParcel? {
    poller.timers.cancel(deadline)
    encryption?.cancel()
    guard let socket = descriptor.take() else { return nil }
    if isInPoller { poller.remove(socket.raw) }
    isInPoller = false
    return DescriptorParcel(socket)
  }
}

extension GATTConversation.Failure {
  func failure(_ wish: GATTWish, at target: LETarget) -> OpenFailure {
    let attempt = "look up service \(wish.service) of \(target)"
    switch self {
    case .silent:
      return OpenFailure(
        attempt, SystemError("read", ETIMEDOUT),
        advice: "the device did not answer within \(GATTConversation.patience)")
    case .broke(let error):
      return OpenFailure(attempt, error, advice: target.failure(error).advice)
    case .notEncrypted:
      return OpenFailure(
        attempt, SystemError("pair", ETIMEDOUT),
        advice: "the device wants to be paired, and nobody did; pair it once, as by 'bluetoothctl pair \(target)'")
    case .found(let fault): return OpenFailure(attempt, nil, advice: fault.advice)
    }
  }
}
