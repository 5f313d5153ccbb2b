// Carries out a look-up over its socket: sends requests and reads answers, until there is a channel.

import ByteStreams
import Glibc
import StreamBrokerCore

/// Lives on the lane; the poller keeps it until it is over.
final class SDPExchange {
  enum Failure: LookUpFailure, Hashable, Sendable {
    case found(ChannelLookUp.Fault)
    case broke(SystemError)
    case silent
    case endless
  }

  private let exchange: LookUpExchange<UInt8, Failure>
  private var lookUp: ChannelLookUp

  // L2CAP's default MTU, which our socket offers; no message is longer.
  private static let longestMessage = 672
  /// For each answer.
  static let timeout = Duration.seconds(5)
  /// For the whole look-up.
  static let totalTimeout = Duration.seconds(30)

  /// Takes the connected socket out of its parcel. `done` is called once, unless the exchange is cancelled before.
  init(
    _ socket: DescriptorParcel, _ lookUp: ChannelLookUp, on poller: Poller,
    _ done: @escaping (Result<UInt8, Failure>) -> Void
  ) {
    exchange = LookUpExchange(
      socket, longestMessage: Self.longestMessage, timeout: Self.timeout, totalTimeout: Self.totalTimeout,
      on: poller, done)
    self.lookUp = lookUp
  }

  func start() {
    exchange.start { [self] in handle(lookUp.handle($0)) }
    exchange.send(lookUp.firstRequest)
  }

  private func handle(_ step: ChannelLookUp.Step) {
    switch step {
    case .send(let message): exchange.send(message)
    case .found(let channel): exchange.finish(.success(channel))
    case .giveUp(let fault): exchange.finish(.failure(.found(fault)))
    case .wait: break
    }
  }

  func cancel() { exchange.cancel() }
}

extension SDPExchange.Failure {
  func failure(_ uuid: BluetoothUUID, at device: BluetoothAddress) -> OpenFailure {
    let attempt = "look up service \(uuid) of \(device)"
    switch self {
    case .silent:
      return OpenFailure(
        attempt, SystemError("read", ETIMEDOUT),
        advice: "no answer within \(SDPExchange.timeout); a URL with a channel needs no look-up")
    case .endless:
      return OpenFailure(
        attempt, SystemError("read", ETIMEDOUT),
        advice:
          "the device answers, but the look-up did not finish within \(SDPExchange.totalTimeout); a URL with a channel needs none"
      )
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
    case .refused(let code): "the device refused the look-up (SDP error \(code)); give the channel instead"
    case .malformed(let what): "the device's answer makes no sense: \(what); give the channel instead"
    case .endless: "the device's answer does not end; give the channel instead"
    }
  }
}
