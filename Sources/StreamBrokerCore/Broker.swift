// Turns a URL into an open stream: finds the connector of the scheme and opens within a timeout. Code that runs on a
// lane starts here; other code uses `connect` (Handle/). The gateway uses the callback form.

import ByteStreams
import Glibc

/// Opens URLs of the schemes that it is made with.
/// ```swift
/// let broker = Broker(Schemes.standard + BluetoothSchemes.all)
/// ```
/// A value without state: it can be copied, and used on any thread.
public struct Broker: Sendable {
  private let connectors: [String: any Connector.Type]
  /// The forms of URLs that it recognises: those of its connectors, and of Baudway's other schemes.
  private let grammars: [SchemeGrammar]

  /// If two connectors have the same scheme, the later one is used, with its own grammar.
  public init(_ schemes: [any Connector.Type]) {
    connectors = Dictionary(schemes.map { ($0.scheme, $0) }, uniquingKeysWith: { $1 })
    let own = Dictionary(connectors.values.map { ($0.scheme, $0.grammar) }, uniquingKeysWith: { $1 })
    let known = EndpointSchemes.all.map(\.scheme)
    let others = schemes.map { $0.scheme }.filter { !known.contains($0) }
    var seen: Set<String> = []
    grammars =
      EndpointSchemes.all.map { own[$0.scheme] ?? $0 }
      + others.filter { seen.insert($0).inserted }.compactMap { own[$0] }
  }

  /// The schemes it can open: "tty", "tcp".
  public var schemes: Set<String> { Set(connectors.keys) }

  private static let place = "this program's list of schemes"

  /// The connector type of a scheme, for questions that need no URL. Nil if the scheme is not in the list.
  public func kind(of scheme: String) -> (any Connector.Type)? { connectors[scheme] }

  /// Parses and checks the text of a URL of one of its schemes. Throws the first problem.
  public func url(_ text: String) throws(URLProblem) -> EndpointURL {
    let parsed = EndpointURL.parse(text, schemes: grammars, built: schemes, in: Self.place)
    guard let url = parsed.url else { throw parsed.problems[0] }
    return url
  }

  /// The connector for a URL. Throws the problem of the URL.
  public func connector(_ url: EndpointURL) throws(URLProblem) -> any Connector {
    guard let connector = connectors[url.scheme] else {
      throw URLProblem("scheme '\(url.scheme)' is not in \(Self.place)")
    }
    return try connector.init(url)
  }

  /// The connector for the text of a URL.
  public func connector(_ text: String) throws(URLProblem) -> any Connector { try connector(url(text)) }

  // MARK: - Opening

  /// Opens on the lane of `poller`. `done` is called there once, before `open` returns or later. It is not called if
  /// the opening is cancelled first. After `timeout` the opening is cancelled, and fails with ETIMEDOUT; without
  /// `timeout` only the connector's own time limits apply. `name` is the URL as the user knows it, for the error.
  @discardableResult
  public func open(
    _ connector: any Connector, named name: String, _ request: OpenRequest = OpenRequest(), on poller: Poller,
    timeout: Duration?, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    let opening = TimedOpening(name, on: poller, done)
    opening.start(connector, request, timeout: timeout)
    return opening
  }

  /// Opens `url` and waits until it is open. The stream lives on `lane`: call it only there, and `close()` it.
  /// `timeout` limits the whole opening. Throws `URLProblem`, `OpenFailure`, and `CancellationError` soon after the task
  /// is cancelled; what a blocking call still opens is closed when that call returns. Call it from code that is
  /// isolated to `lane`: anywhere else the stream could be used on two threads, so it throws `OffLaneError`.
  public func open(
    _ url: String, _ request: OpenRequest = OpenRequest(), on lane: isolated Lane, timeout: Duration = .seconds(10),
    caller: (any Actor)? = #isolation
  ) async throws -> any ByteStream {
    guard caller === lane else { throw OffLaneError(lane: lane.label) }
    let connector = try connector(url)
    try Task.checkCancellation()
    let wait = OpeningWait()
    let cancel = LaneRef(wait, on: lane)
    await withTaskCancellationHandler {
      await withCheckedContinuation { continuation in
        wait.continuation = continuation
        var request = request
        request.connectTimeout = timeout
        wait.opening = open(connector, named: url, request, on: lane.poller, timeout: timeout) { wait.finish($0) }
      }
    } onCancel: {
      cancel.post { _, wait in wait.cancel() }
    }
    guard let result = wait.result else { throw CancellationError() }
    return try result.get()
  }
}

/// `open(_:on:)` was called by code that does not run on the lane.
public struct OffLaneError: Error, Hashable, CustomStringConvertible {
  /// The label of the lane.
  public let lane: String

  public var description: String {
    "open(_:on:) was called outside of lane '\(lane)', where its stream lives: call it in a function with a parameter "
      + "'on lane: isolated Lane', or use connect(_:), whose streams work anywhere"
  }
}

/// A task that waits for an opening. Lives on the lane.
private final class OpeningWait {
  var continuation: CheckedContinuation<Void, Never>?
  var opening: (any Opening)?
  private(set) var result: Result<any ByteStream, OpenFailure>?

  func finish(_ result: Result<any ByteStream, OpenFailure>) {
    self.result = result
    resume()
  }

  func cancel() {
    guard result == nil else { return }
    opening?.cancel()
    resume()
  }

  private func resume() {
    opening = nil
    continuation.take()?.resume()
  }
}

/// An opening with a deadline.
private final class TimedOpening: Opening {
  private let name: String
  private let poller: Poller
  private var done: ((Result<any ByteStream, OpenFailure>) -> Void)?
  private var attempt: (any Opening)?
  private var deadline: Timers.Token?
  private var step: OpeningStep?

  init(_ name: String, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void) {
    self.name = name
    self.poller = poller
    self.done = done
  }

  func start(_ connector: any Connector, _ request: OpenRequest, timeout: Duration?) {
    var request = request
    let report = request.report
    request.report = { [weak self] step in
      self?.step = step
      report?(step)
    }
    let attempt = connector.open(request, on: poller) { [self] in finish($0) }
    guard done != nil else { return }  // `done` was called before `open` returned
    self.attempt = attempt
    guard let timeout else { return }
    deadline = poller.timers.after(timeout) { [self] in
      self.attempt?.cancel()
      let step = step.map { " (\($0))" } ?? ""
      let advice = "no answer within \(timeout)\(step)"
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
