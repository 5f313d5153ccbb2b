// Requests and answers in turns over a connected socket, with time limits. Look-ups of channels and of attributes share
// it.

import ByteStreams
import StreamBrokerCore

/// How an exchange can fail, whatever is looked up.
protocol LookUpFailure: Error {
  static func broke(_ error: SystemError) -> Self
  /// An answer took too long.
  static var silent: Self { get }
  /// There were answers, but the whole exchange took too long.
  static var endless: Self { get }
}

/// Lives on the lane; the poller keeps it until it is over.
final class LookUpExchange<Answer, Failure: LookUpFailure> {
  let socket: MessageSocket
  private let poller: Poller
  private let timeout: Duration
  private let totalTimeout: Duration
  private var wholeDeadline: Timers.Token?
  private var done: ((Result<Answer, Failure>) -> Void)?
  /// Called at the end, also when it is cancelled.
  var over: () -> Void = {}

  /// Takes the connected socket out of its parcel. `timeout` is for each answer, `totalTimeout` for the whole exchange.
  /// `done` is called once, unless the exchange is cancelled before.
  init(
    _ socket: DescriptorParcel, longestMessage: Int, timeout: Duration, totalTimeout: Duration, on poller: Poller,
    _ done: @escaping (Result<Answer, Failure>) -> Void
  ) {
    self.socket = MessageSocket(socket, longest: longestMessage, on: poller)
    self.poller = poller
    self.timeout = timeout
    self.totalTimeout = totalTimeout
    self.done = done
  }

  /// `handle` is called with each message.
  func start(_ handle: @escaping ([UInt8]) -> Void) {
    socket.start { [self] news in
      switch news {
      case .success(let message): handle(message)
      case .failure(.broke(let error)): finish(.failure(.broke(error)))
      case .failure(.silent): finish(.failure(.silent))
      }
    }
    setWholeDeadline()
  }

  func send(_ message: [UInt8]) { socket.send(message, timeout: timeout) }

  /// Starts the time limit for the whole exchange.
  func setWholeDeadline() {
    guard done != nil else { return }
    wholeDeadline = poller.timers.after(totalTimeout) { [self] in finish(.failure(.endless)) }
  }

  func cancelWholeDeadline() { poller.timers.cancel(wholeDeadline) }

  func finish(_ result: Result<Answer, Failure>) {
    guard let done else { return }
    cancel()
    done(result)
  }

  func cancel() {
    done = nil
    let over = over
    self.over = {}
    over()
    poller.timers.cancel(wholeDeadline)
    socket.take()
  }
}
