// `baudway connect`: a terminal on any endpoint, or a pipe where there is no terminal.

import ArgumentParser
import ByteStreams
import Dispatch
import GatewayKit
import Glibc
import StreamBroker
import Synchronization

struct Connect: ParsableCommand {
  static let configuration = CommandConfiguration(
    abstract: "Joins this terminal, or a pipe, with an endpoint.",
    discussion: """
      On a terminal every key goes to the endpoint, and Ctrl-] leaves. Elsewhere standard input goes there and what it says to \
      standard output, and nothing is added to either. At the end of its input it tells the endpoint, as far as that can be \
      told, and waits for its end, or until it has been silent for --silence; a serial port can't be told, and is left after 500ms of \
      silence unless --silence says otherwise.

      Exit codes: 64 for a URL with a mistake, 69 when it can't be opened, 77 when that is for want of rights, 74 when it broke.
      """)

  @Argument(
    help: """
      The endpoint's URL: tty:///dev/ttyUSB0?baud=115200, tcp://host:port, rfcomm://00:0A:3A:22:68:73, \
      ble://FFE0/00:0A:3A:22:68:73, exec:/usr/bin/prog, …
      """)
  var url: String
  @Option(help: "How long opening may take; of a Bluetooth device connecting to it.")
  var timeout = "10s"
  @Option(
    help:
      "After the end of input: how long the endpoint may be silent before it is left. Else it ends the connection itself."
  )
  var silence: String?

  func validate() throws {
    guard Units.duration(timeout) != nil else {
      throw ValidationError("--timeout: '\(timeout)' is no duration such as 10s")
    }
    if let silence, Units.duration(silence) == nil {
      throw ValidationError("--silence: '\(silence)' is no duration such as 500ms")
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
      silence: silence.flatMap { Units.duration($0) })
    let signals = Signals(visit)
    visit.begin()
    withExtendedLifetime(signals) { dispatchMain() }
  }

  /// With the URL as it may be shown.
  private func connector(of broker: Broker) throws -> (shown: String, any Connector) {
    let parsed = EndpointURL.parse(url, built: broker.schemes)
    do throws(URLProblem) {
      guard let url = parsed.url else { throw parsed.problems[0] }
      let connector = Gateway.keepingBonds(of: try broker.connector(url), at: Gateway.bondsPath(environment())) {
        say("baudway: \($0)")
      }
      return (hasSecret ? url.description : self.url, connector)
    } catch {
      for problem in parsed.problems.isEmpty ? [error] : parsed.problems { explain(problem) }
      throw ExitCode(EX_USAGE)
    }
  }

  private var hasSecret: Bool { url.contains("password=") || url.contains("token=") || url.contains("@") }

  /// The mistake under the place where it is; where the URL may hold a secret, that is not repeated.
  private func explain(_ problem: URLProblem) {
    say("baudway: \(problem)")
    guard !hasSecret else { return }
    let shown = url.unicodeScalars.map { Suggestion.isControl($0) ? $0.escaped(asASCII: true) : String($0) }
    let before = shown.prefix(problem.offset).joined().unicodeScalars.count
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
  /// Nil when nothing was said of it.
  private let silence: Duration?
  private let attempt: Resident<Attempt>
  private let isEnding = Atomic<Bool>(false)
  private static let mark: UInt8 = 0x1D  // Ctrl-]
  private static let closingTakes = Duration.seconds(5)
  // What was given up while it was being opened.
  private static let givingUpTakes = Duration.seconds(1)

  /// What is being opened, on its lane.
  private final class Attempt {
    var opening: (any Opening)?
  }

  init(
    _ url: String, _ connector: any Connector, _ broker: Broker, isTerminal: Bool, timeout: Duration, silence: Duration?
  ) throws {
    self.url = url
    self.connector = connector
    self.broker = broker
    self.isTerminal = isTerminal
    self.timeout = timeout
    self.silence = silence
    do { attempt = Resident(on: try Lane("connect")) { _ in Attempt() } } catch {
      say("baudway: \(error)")
      throw ExitCode(EX_OSERR)
    }
  }

  func begin() { attempt.post { [self] lane, attempt in open(attempt, on: lane.poller) } }

  private func open(_ attempt: Attempt, on poller: Poller) {
    attempt.opening = broker.open(connector, named: url, on: poller, timeout: timeout) { [self] result in
      opened(result, on: poller)
    }
  }

  private func opened(_ result: Result<any ByteStream, OpenFailure>, on poller: Poller) {
    switch result {
    case .success(let stream): talk(with: stream, on: poller)
    case .failure(let failure):
      say("baudway: \(failure)")
      let isForbidden = failure.cause?.errno == EACCES || failure.cause?.errno == EPERM
      Closings.settle([poller.closings], within: Self.givingUpTakes, on: poller) { [self] in
        leave(with: isForbidden ? EX_NOPERM : EX_UNAVAILABLE)
      }
    }
  }

  private func talk(with stream: any ByteStream, on poller: Poller) {
    if isTerminal {
      say("Connected to \(url). Ctrl-] leaves.")
      RawTerminal.enter()
    }
    let here = BlockingStream(
      reading: STDIN_FILENO, writing: STDOUT_FILENO, endingAt: isTerminal ? Self.mark : nil, on: poller)
    let parting = EndpointTalk.Parting.whenSilent(silence ?? .milliseconds(500), always: silence != nil)
    let talk = EndpointTalk(here, with: stream, parting: isTerminal ? .atOnce : parting, on: poller) { [self] in
      settle($0, on: poller)
    }
    talk.start()
  }

  /// What the endpoint still does behind its close, such as sending what it has, is waited for.
  private func settle(_ end: EndpointTalk.End, on poller: Poller) {
    Closings.settle([poller.closings, poller.programs], within: Self.closingTakes, on: poller) { [self] in finish(end) }
  }

  private func finish(_ end: EndpointTalk.End) {
    RawTerminal.leave()
    switch end {
    case .weLeft: leave(with: 0)
    case .endpointLeft:
      if isTerminal { say("\nThe endpoint has ended the connection.") }
      leave(with: 0)
    case .endpointFailed(let error):
      say("baudway: \(url): \(error)")
      leave(with: EX_IOERR)
    // Who reads our output has enough: nothing to complain about.
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

  /// At a signal: the terminal is given back before anything else. What is being opened is given up in order; a second signal ends
  /// at once.
  func end(by number: Int32) {
    RawTerminal.leave()
    guard !isEnding.exchange(true, ordering: .relaxed) else { return fall(by: number) }
    attempt.post { [self] lane, attempt in giveUp(attempt, on: lane.poller, by: number) }
  }

  private func giveUp(_ attempt: Attempt, on poller: Poller, by number: Int32) {
    attempt.opening?.cancel()
    Closings.settle([poller.closings], within: Self.givingUpTakes, on: poller) { [self] in fall(by: number) }
  }

  private func fall(by number: Int32) {
    RawTerminal.leave()  // it may have been opened just then
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

/// Ends in order at what ends a program, and takes the terminal again when it was stopped in between.
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
