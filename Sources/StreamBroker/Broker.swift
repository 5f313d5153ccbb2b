// From a URL to an open stream: finds the scheme's connector and opens within a time. Programs that import the library
// begin here; the gateway uses the callback form. No shared instance: whoever needs one makes it.

import ByteStreams
import Glibc

/// ```
/// let broker = Broker(Schemes.standard)
/// let stream = try await broker.open("tcp://127.0.0.1:4001", on: lane)
/// ```
public struct Broker: Sendable {
  private let connectors: [String: any Connector.Type]

  /// Of two connectors for one scheme the later one counts.
  public init(_ schemes: [any Connector.Type]) {
    connectors = Dictionary(schemes.map { ($0.scheme, $0) }, uniquingKeysWith: { $1 })
  }

  /// What it can open: "tty", "tcp".
  public var schemes: Set<String> { Set(connectors.keys) }

  /// The scheme's connector, before one with settings is made of a URL. Nil for a scheme it does not have.
  public func kind(of scheme: String) -> (any Connector.Type)? { connectors[scheme] }

  /// The connector for a URL. Throws what is wrong with it.
  public func connector(_ url: EndpointURL) throws(URLProblem) -> any Connector {
    guard let connector = connectors[url.scheme] else {
      throw URLProblem(message: "\(url.scheme): is not in \(Version.name)", offset: 0, suggestion: nil, beside: nil)
    }
    return try connector.init(url)
  }

  /// The connector for the text of a URL.
  public func connector(_ text: String) throws(URLProblem) -> any Connector {
    let parsed = EndpointURL.parse(text, built: schemes)
    guard let url = parsed.url else { throw parsed.problems[0] }
    return try connector(url)
  }

  // MARK: - Opening

  /// Opens on the lane of `poller`. `done` is called there once, at once or later but never after `timeout`, unless the
  /// opening is cancelled before; a `SteppedConnector` has `timeout` for connecting, and times of its own for the steps around it.
  /// `name` stands in the error: the URL as the user knows it.
  @discardableResult
  public func open(
    _ connector: any Connector, named name: String, on poller: Poller, discardingInput: Bool = false,
    timeout: Duration, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    let opening = TimedOpening(on: poller, done)
    opening.start(connector, named: name, discardingInput: discardingInput, timeout: timeout)
    return opening
  }

  /// Opens `url` and waits for it. The stream lives on `lane`: call it from there only, and `close()` it. Throws
  /// `URLProblem` or `OpenFailure`. Cancelling the task does not end it before the timeout does.
  public func open(
    _ url: String, on lane: isolated Lane, timeout: Duration = .seconds(10)
  ) async throws -> any ByteStream {
    let connector = try connector(url)
    var result: Result<any ByteStream, OpenFailure>?
    await withCheckedContinuation { continuation in
      open(connector, named: url, on: lane.poller, timeout: timeout) {
        result = $0
        continuation.resume()
      }
    }
    return try result!.get()  // set before the continuation was resumed
  }
}

/// An opening with a deadline.
private final class TimedOpening: Opening {
  private let poller: Poller
  private var done: ((Result<any ByteStream, OpenFailure>) -> Void)?
  private var attempt: (any Opening)?
  private var deadline: Timers.Token?

  init(on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void) {
    self.poller = poller
    self.done = done
  }

  func start(_ connector: any Connector, named name: String, discardingInput: Bool, timeout: Duration) {
    var stepped = connector as? any SteppedConnector
    stepped?.connectPatience = timeout
    let attempt = (stepped ?? connector).open(on: poller, discardingInput: discardingInput) { [self] in finish($0) }
    guard done != nil else { return }  // it was done at once
    self.attempt = attempt
    guard stepped == nil else { return }
    deadline = poller.timers.after(timeout) { [self] in
      self.attempt?.cancel()
      let advice = "no answer within \(timeout)"
      finish(.failure(OpenFailure("open \(name)", SystemError("open", ETIMEDOUT), advice: advice)))
    }
  }

  private func finish(_ result: Result<any ByteStream, OpenFailure>) {
    guard let done else { return }
    forget()
    done(result)
  }

  func cancel() {
    attempt?.cancel()
    forget()
  }

  private func forget() {
    done = nil
    attempt = nil
    poller.timers.cancel(deadline)
  }
}
