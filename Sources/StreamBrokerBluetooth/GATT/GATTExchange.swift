// Carries out a look-up over a connected ATT socket: sends requests, reads answers, and encrypts the link where needed.

internal import CBluetooth
import ByteStreams
import Glibc
import StreamBrokerCore

/// Lives on the lane; the poller keeps it until it is over.
final class GATTExchange {
  enum Failure: LookUpFailure, Hashable, Sendable {
    case found(GATTLookUp.Fault)
    case broke(SystemError)
    case silent
    case endless
    case notEncrypted
  }
  typealias Found = (socket: DescriptorParcel, plan: GATTPlan)

  private let exchange: LookUpExchange<Found, Failure>
  private let poller: Poller
  private var lookUp: GATTLookUp
  private var encryption: EncryptionWatch?

  /// The time limit for each answer. ATT allows a device 30 s (section 3.3.3), but no device needs so long.
  static let timeout = Duration.seconds(10)
  /// The time limit for the whole look-up, without pairing.
  static let totalTimeout = Duration.seconds(30)

  init(
    _ socket: DescriptorParcel, _ lookUp: GATTLookUp, on poller: Poller,
    _ done: @escaping (Result<Found, Failure>) -> Void
  ) {
    exchange = LookUpExchange(
      socket, longestMessage: ATTMessage.mostMTU, timeout: Self.timeout, totalTimeout: Self.totalTimeout,
      on: poller, done)
    self.lookUp = lookUp
    self.poller = poller
  }

  /// `security` is what was set before connect(2), if anything. The first request then waits until the link is
  /// encrypted, because connect(2) does not wait for that.
  func start(awaiting security: BluetoothTarget.Security?) {
    exchange.over = { [self] in encryption?.cancel() }
    exchange.start { [self] in handle(lookUp.handle($0)) }
    guard let security, security != .low else { return exchange.send(lookUp.firstRequest) }
    awaitEncryption(security) { [self] in exchange.send(lookUp.firstRequest) }
  }

  private func handle(_ step: GATTLookUp.Step) {
    switch step {
    case .send(let message): exchange.send(message)
    case .secure:
      guard let raw = exchange.socket.raw else { return }
      let level = BluetoothTarget.Security.medium.rawValue
      // Check first: the kernel refuses to set the level that the link has already (EINVAL). The request is then sent
      // once more, and the device may refuse it again.
      guard bluetooth_security(raw) >= Int32(level) || bluetooth_set_security(raw, level) == 0 else {
        return exchange.finish(.failure(.broke(SystemError("setsockopt"))))
      }
      awaitEncryption(.medium) { [self] in handle(lookUp.handleSecured()) }
    case .ready(let plan):
      guard let socket = exchange.socket.take() else { return }
      exchange.finish(.success((socket, plan)))
    case .giveUp(let fault): exchange.finish(.failure(.found(fault)))
    case .wait: break
    }
  }

  // Nothing is read or sent meanwhile: unencrypted messages can't be trusted, and a socket that is securing its link
  // accepts no writes.
  private func awaitEncryption(_ security: BluetoothTarget.Security, _ then: @escaping () -> Void) {
    let socket = exchange.socket
    guard let raw = socket.raw else { return }
    socket.setDeadline(SecureFlow.timeout) { [self] in exchange.finish(.failure(.notEncrypted)) }
    socket.isPaused = true
    // This may take as long as pairing does, so the time for the whole look-up starts anew. The device is asked to pair
    // at most once, so this happens at most once.
    exchange.cancelWholeDeadline()
    encryption = EncryptionWatch(of: raw, security, on: poller) { [self] in
      socket.isPaused = false
      exchange.setWholeDeadline()
      then()
    }
  }

  func cancel() { exchange.cancel() }
}

extension GATTExchange.Failure {
  func failure(_ wish: GATTWish, at target: LETarget) -> OpenFailure {
    let attempt = "look up service \(wish.service) of \(target)"
    switch self {
    case .silent:
      return OpenFailure(
        attempt, SystemError("read", ETIMEDOUT),
        advice: "the device did not answer within \(GATTExchange.timeout)")
    case .endless:
      return OpenFailure(
        attempt, SystemError("read", ETIMEDOUT),
        advice: "the device answers, but the look-up did not finish within \(GATTExchange.totalTimeout)")
    case .broke(let error):
      let isUnable = error == SystemError("setsockopt", EINVAL)  // the kernel can't pair over Low Energy
      return OpenFailure(attempt, error, advice: isUnable ? SecureFlow.cannotPair : target.failure(error).advice)
    // The opening reports SecureFlow's reason instead.
    case .notEncrypted: return OpenFailure(attempt, SystemError("pair", ETIMEDOUT))
    case .found(let fault): return OpenFailure(attempt, nil, advice: fault.advice)
    }
  }
}
