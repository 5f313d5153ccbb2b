// Carries a look-up over its socket: question and answer in turns, until there is a channel.

import ByteStreams
import Glibc
import StreamBroker

/// Lives on the lane; kept by the poller until it is over.
final class SDPConversation {
  enum Failure: Error, Hashable, Sendable {
    case found(ChannelLookUp.Fault)
    case broke(SystemError)
    case silent
    case endless
  }

  private let poller: Poller
  private let socket: MessageSocket
  private var lookUp: ChannelLookUp
  private var done: ((Result<UInt8, Failure>) -> Void)?
  private var wholeDeadline: Timers.Token?

  // L2CAP's default, which is what our socket offers; no message is longer.
  private static let longestMessage = 672
  /// For each answer.
  static let patience = Duration.seconds(5)
  /// For all of it.
  static let wholePatience = Duration.seconds(30)

  /// Takes the connected socket out of its parcel. `done` is called once, unless it is cancelled before.
  init(
    _ socket: DescriptorParcel, _ lookUp: ChannelLookUp, on poller: Poller,
    _ done: @escaping (Result<UInt8, Failure>) -> Void
  ) {
    self.socket = MessageSocket(socket, longest: Self.longestMessage, on: poller)
    self.lookUp = lookUp
    self.poller = poller
    self.done = done
  }

  func start() {
    socket.start { [self] news in
      switch news {
      case .success(let message): handle(lookUp.handle(message))
      case .failure(.broke(let error)): finish(.failure(.broke(error)))
      case .failure(.silent): finish(.failure(.silent))
      }
    }
    guard done != nil else { return }
    wholeDeadline = poller.timers.after(Self.wholePatience) { [self] in finish(.failure(.endless)) }
    send(lookUp.firstRequest)
  }

  private func send(_ message: [UInt8]) { socket.send(message, patience: Self.patience) }

  private func handle(_ step: ChannelLookUp.Step) {
    switch step {
    case .send(let message): send(message)
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
    poller.timers.cancel(wholeDeadline)
    socket.take()
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
    case .endless:
      return OpenFailure(
        attempt, SystemError("read", ETIMEDOUT),
        advice:
          "the device answers, but it came to no end within \(SDPConversation.wholePatience); a URL with a channel asks for none"
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
    case .refused(let code): "the device refused the question (SDP error \(code)); give the channel instead"
    case .malformed(let what): "the device's answer makes no sense: \(what); give the channel instead"
    case .endless: "the device's answer does not end; give the channel instead"
    }
  }
}
