// `baudway connect`: connects the terminal to any endpoint, or a pipe where there is no terminal.

import CommandArguments
import ByteStreams
import Dispatch
import GatewayKit
import Glibc
import StreamBroker
import Synchronization

struct Connect: Command {
  static let help = CommandHelp(
    "connect", "Connects this terminal, or a pipe, to an endpoint.",
    discussion: """
      On a terminal every key goes to the endpoint, and Ctrl-] quits. Otherwise standard input goes to the endpoint and its output to \
      standard output, unchanged. At the end of its input the command half-closes the connection, and waits until the endpoint \
      ends. A serial port has no half-close: the command waits for an answer, for --answer at most, and closes the port after \
      500ms of silence. An echo of what was sent is no answer. After several lines of text each may have an answer: \
      while fewer lines came back than were sent, the next one has the time of --answer. --silence sets the time of silence, for \
      every endpoint; --silence 0 closes at once.

      Exit codes: 64 for a mistake in the URL, 69 when it can't be opened, 77 when permissions are missing, 74 when the link \
      failed, 75 when no answer came.
      """)

  @Argument(
    help: """
      The endpoint's URL: tty:///dev/ttyUSB0?baud=115200, tcp://host:port, rfcomm://00:0A:3A:22:68:73, \
      ble://FFE0/00:0A:3A:22:68:73, exec:/usr/bin/prog, …
      """, completion: .found { _ in DeviceList.urls() })
  var url: String
  @Option(
    help: "How long opening may take; for a Bluetooth device, how long connecting may take.", value: "time")
  var timeout = "10s"
  @Option(
    help:
      "After the end of input: close once the endpoint has been silent this long. Default: wait for the endpoint to end.",
    value: "time")
  var silence: String?
  @Option(help: "After the end of input: how long to wait for an answer.", value: "time")
  var answer = "5s"

  func validate() throws {
    guard Units.duration(timeout) != nil else {
      throw UsageError("--timeout: '\(timeout)' is not a duration such as 10s")
    }
    guard Units.duration(answer) != nil else {
      throw UsageError("--answer: '\(answer)' is not a duration such as 5s")
    }
    if let silence, Units.duration(silence) == nil {
      throw UsageError("--silence: '\(silence)' is not a duration such as 500ms")
    }
  }

  func run() throws {
    signal(SIGPIPE, SIG_IGN)
    signal(SIGCHLD, SIG_DFL)
    let broker = Gateway.broker
    let (url, connector) = try connector(of: broker)
    try require(.oneLane)
    let terminal = isatty(STDIN_FILENO) == 1
    let visit = try Visit(
      url, connector, broker, isTerminal: terminal, timeout: Units.duration(timeout) ?? .seconds(10),
      parting: terminal ? .atOnce : parting)
    let signals = Signals(visit)
    visit.begin()
    withExtendedLifetime(signals) { dispatchMain() }
  }

  /// `--silence 0` leaves at once, whatever else is set.
  private var parting: StreamBridge.Parting {
    let silence = silence.flatMap { Units.duration($0) }
    let answer = silence == .zero ? nil : Units.duration(answer)
    return .whenSilent(silence ?? .milliseconds(500), always: silence != nil, answerWithin: answer)
  }

  /// Also returns the URL as it may be shown.
  private func connector(of broker: Broker) throws -> (shown: String, any Connector) {
    let parsed = EndpointURL.parse(url, built: broker.schemes)
    do throws(URLProblem) {
      guard let url = parsed.url else { throw parsed.problems[0] }
      let connector = Gateway.keepingBonds(of: try broker.connector(url), at: Gateway.bondsPath(environment())) {
        say("baudway: \($0)")
      }
      for warning in url.warnings { explain("warning: \(warning)", at: warning.offset) }
      return (hasSecret ? url.description : self.url, connector)
    } catch {
      for problem in parsed.problems.isEmpty ? [error] : parsed.problems {
        explain("\(problem)", at: problem.offset)
      }
      throw ExitCode(EX_USAGE)
    }
  }

  private var hasSecret: Bool { url.contains("password=") || url.contains("token=") || url.contains("@") }

  /// Prints the message, and the URL with a mark at the place unless the URL may hold a secret.
  private func explain(_ message: String, at offset: Int) {
    say("baudway: \(message)")
    guard !hasSecret else { return }
    let shown = url.unicodeScalars.map { Suggestion.isControl($0) ? $0.escaped(asASCII: true) : String($0) }
    let before = shown.prefix(offset).joined().unicodeScalars.count
    say("  \(shown.joined())\n  \(String(repeating: " ", count: before))^")
  }
}

/// One connection, from opening to exit code.
private final class Visit: Sendable {
  private let url: String
  private let connector: any Connector
  private let broker: Broker
  private let isTerminal: Bool
  private let timeout: Duration
  private let parting: StreamBridge.Parting
  private let attempt: LaneRef<Attempt>
  private let isEnding = Atomic<Bool>(false)
  private static let mark: UInt8 = 0x1D  // Ctrl-]
  private static let closingTakes = Duration.seconds(5)
  // The time for cleanup after an opening was cancelled or failed.
  private static let givingUpTakes = Duration.seconds(1)

  /// The opening in progress, on its lane.
  private final class Attempt {
    var opening: (any Opening)?
  }

  init(
    _ url: String, _ connector: any Connector, _ broker: Broker, isTerminal: Bool, timeout: Duration,
    parting: StreamBridge.Parting
  ) throws {
    self.url = url
    self.connector = connector
    self.broker = broker
    self.isTerminal = isTerminal
    self.timeout = timeout
    self.parting = parting
    do { attempt = LaneRef(on: try Lane("connect")) { _ in Attempt() } } catch {
      say("baudway: \(error)")
      throw ExitCode(EX_OSERR)
    }
  }

  func begin() { attempt.post { [self] lane, attempt in open(attempt, on: lane.poller) } }

  private func open(_ attempt: Attempt, on poller: Poller) {
    var request = OpenRequest()
    request.connectTimeout = timeout
    // Several steps have timeouts of their own.
    let limit = connector.longestOpening(connectTimeout: timeout) == nil ? timeout : nil
    attempt.opening = broker.open(connector, named: url, request, on: poller, timeout: limit) { [self] result in
      opened(result, on: poller)
    }
  }

  private func opened(_ result: Result<any ByteStream, OpenFailure>, on poller: Poller) {
    switch result {
    case .success(let stream): talk(with: stream, on: poller)
    case .failure(let failure):
      say("baudway: \(failure)")
      let isForbidden = failure.cause?.errno == EACCES || failure.cause?.errno == EPERM
      cleanUp(on: poller) { [self] in leave(with: isForbidden ? EX_NOPERM : EX_UNAVAILABLE) }
    }
  }

  private func talk(with stream: any ByteStream, on poller: Poller) {
    if isTerminal {
      say("Connected to \(url). Ctrl-] quits.")
      RawTerminal.enter()
    }
    let here = BlockingStream(
      reading: STDIN_FILENO, writing: STDOUT_FILENO, endingAt: isTerminal ? Self.mark : nil, on: poller)
    let talk = StreamBridge(here, with: stream, parting: parting, on: poller) { [self] in
      evaluate($0, on: poller)
    }
    talk.start()
  }

  /// Waits for work of the endpoint after its close, such as sending its output.
  private func evaluate(_ end: StreamBridge.End, on poller: Poller) {
    PendingCleanups.settle([poller.closings, poller.programs], within: Self.closingTakes, on: poller) { [self] in
      finish(end)
    }
  }

  private func finish(_ end: StreamBridge.End) {
    RawTerminal.leave()
    switch end {
    case .weLeft: leave(with: 0)
    case .unanswered:
      say("baudway: \(url): no answer came; --answer 30s would wait longer, and --silence 0 waits for none")
      leave(with: EX_TEMPFAIL)
    case .echoed:
      say("baudway: \(url): only what was sent came back: an echo, or an answer that is the same")
      leave(with: 0)
    case .endpointLeft:
      if isTerminal { say("\nThe endpoint has ended the connection.") }
      leave(with: 0)
    case .endpointFailed(let error):
      say("baudway: \(url): \(error)")
      leave(with: EX_IOERR)
    // The reader of our output has closed it, which needs no message.
    case .weFailed(let error as SystemError) where error.errno == EPIPE: leave(with: EX_IOERR)
    case .weFailed(let error):
      say("baudway: \(error)")
      leave(with: EX_IOERR)
    }
  }

  private func leave(with code: Int32) {
    PortLocks.letGoOfAll()
    exit(code)
  }

  /// At a signal: restores the terminal first, then cancels an opening in order. A second signal ends at once.
  func end(by number: Int32) {
    RawTerminal.leave()
    guard !isEnding.exchange(true, ordering: .relaxed) else { return fall(by: number) }
    attempt.post { [self] lane, attempt in giveUp(attempt, on: lane.poller, by: number) }
  }

  private func giveUp(_ attempt: Attempt, on poller: Poller, by number: Int32) {
    attempt.opening?.cancel()
    cleanUp(on: poller) { [self] in fall(by: number) }
  }

  /// Waits for what an opening leaves behind that was cancelled or has failed.
  private func cleanUp(on poller: Poller, then done: @escaping () -> Void) {
    PendingCleanups.settle(
      [poller.closings, poller.abandonedConnects], within: Self.givingUpTakes, on: poller, then: done)
  }

  private func fall(by number: Int32) {
    RawTerminal.leave()  // an opening may have made it raw just then
    PortLocks.letGoOfAll()
    signal(number, SIG_DFL)
    var these = sigset_t()  // Dispatch's threads block them
    sigemptyset(&these)
    sigaddset(&these, number)
    pthread_sigmask(SIG_UNBLOCK, &these, nil)
    raise(number)
  }

  func cameBack() {
    if isTerminal { RawTerminal.comeBack() }
  }
}

/// Ends in order at signals that end a program, and sets raw mode again after the program was stopped.
private final class Signals {
  private var sources: [any DispatchSourceSignal] = []

  init(_ visit: Visit) {
    for number in [SIGTERM, SIGHUP, SIGINT, SIGQUIT] { on(number, ignoring: true) { visit.end(by: number) } }
    on(SIGCONT, ignoring: false) { visit.cameBack() }
  }

  private func on(_ number: Int32, ignoring: Bool, _ handler: @escaping @Sendable () -> Void) {
    if ignoring { signal(number, SIG_IGN) }
    let source = DispatchSource.makeSignalSource(signal: number, queue: .main)
    source.setEventHandler(handler: DispatchWorkItem(block: handler))
    source.activate()
    sources.append(source)
  }
}
