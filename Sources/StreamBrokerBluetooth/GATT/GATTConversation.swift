// Carries a look-up over a connected ATT socket: question and answer in turns, encryption where it is asked for.

internal import CBluetooth
import ByteStreams
import Glibc
import StreamBroker

/// Lives on the lane; kept by the poller until it is over.
final class GATTConversation {
  enum Failure: Error, Hashable, Sendable {
    case found(GATTLookUp.Fault)
    case broke(SystemError)
    case silent
    case endless
    case notEncrypted
  }
  typealias Found = (socket: DescriptorParcel, plan: GATTPlan)

  private let poller: Poller
  private let socket: MessageSocket
  private var lookUp: GATTLookUp
  private var done: ((Result<Found, Failure>) -> Void)?
  private var encryption: EncryptionWatch?
  private var wholeDeadline: Timers.Token?

  /// For each answer. ATT gives a device 30 s (section 3.3.3), but none takes them.
  static let patience = Duration.seconds(10)
  /// For all of it, but for pairing.
  static let wholePatience = Duration.seconds(30)

  init(
    _ socket: DescriptorParcel, _ lookUp: GATTLookUp, on poller: Poller,
    _ done: @escaping (Result<Found, Failure>) -> Void
  ) {
    self.socket = MessageSocket(socket, longest: ATTMessage.mostMTU, on: poller)
    self.lookUp = lookUp
    self.poller = poller
    self.done = done
  }

  /// With a `security` that was asked for at connect, the first word waits for it: connect(2) does not.
  func start(awaiting security: BluetoothTarget.Security?) {
    socket.start { [self] news in
      switch news {
      case .success(let message): handle(lookUp.handle(message))
      case .failure(.broke(let error)): finish(.failure(.broke(error)))
      case .failure(.silent): finish(.failure(.silent))
      }
    }
    setWholeDeadline()
    guard let security, security != .low else { return send(lookUp.firstRequest) }
    awaitEncryption(security) { [self] in send(lookUp.firstRequest) }
  }

  /// Whatever it says, and however often: it is asked to pair once, at most, so this is set anew once, at most.
  private func setWholeDeadline() {
    guard done != nil else { return }
    wholeDeadline = poller.timers.after(Self.wholePatience) { [self] in finish(.failure(.endless)) }
  }

  private func send(_ message: [UInt8]) { socket.send(message, patience: Self.patience) }

  private func handle(_ step: GATTLookUp.Step) {
    switch step {
    case .send(let message): send(message)
    case .secure:
      guard let raw = socket.raw else { return }
      let level = BluetoothTarget.Security.medium.rawValue
      // What the link has already is refused to be set (EINVAL), too. Then the device is asked once more, and may refuse that.
      guard bluetooth_security(raw) >= Int32(level) || bluetooth_set_security(raw, level) == 0 else {
        return finish(.failure(.broke(SystemError("setsockopt"))))
      }
      awaitEncryption(.medium) { [self] in handle(lookUp.handleSecured()) }
    case .ready(let plan):
      guard let socket = socket.take() else { return }
      finish(.success((socket, plan)))
    case .giveUp(let fault): finish(.failure(.found(fault)))
    case .wait: break
    }
  }

  // Nothing is read and nothing said meanwhile: what comes in clear is not to be believed, and a socket that is securing its
  // link takes nothing.
  private func awaitEncryption(_ security: BluetoothTarget.Security, _ then: @escaping () -> Void) {
    guard let raw = socket.raw else { return }
    socket.setDeadline(SecureFlow.patience) { [self] in finish(.failure(.notEncrypted)) }
    socket.isDeaf = true
    poller.timers.cancel(wholeDeadline)
    encryption = EncryptionWatch(of: raw, security, on: poller) { [self] in
      socket.isDeaf = false
      setWholeDeadline()
      then()
    }
  }

  private func finish(_ result: Result<Found, Failure>) {
    guard let done else { return }
    cancel()
    done(result)
  }

  func cancel() {
    done = nil
    encryption?.cancel()
    poller.timers.cancel(wholeDeadline)
    socket.take()
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
    case .endless:
      return OpenFailure(
        attempt, SystemError("read", ETIMEDOUT),
        advice: "the device answers, but it came to no end within \(GATTConversation.wholePatience)")
    case .broke(let error):
      let isUnable = error == SystemError("setsockopt", EINVAL)  // BT_SECURITY's word for it
      return OpenFailure(attempt, error, advice: isUnable ? SecureFlow.cannotPair : target.failure(error).advice)
    // Whoever opens knows better: SecureFlow.
    case .notEncrypted: return OpenFailure(attempt, SystemError("pair", ETIMEDOUT))
    case .found(let fault): return OpenFailure(attempt, nil, advice: fault.advice)
    }
  }
}
