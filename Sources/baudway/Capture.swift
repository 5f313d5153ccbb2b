// `baudway capture`: records a route of the running gateway live, to standard output.

import ByteStreams
import CommandArguments
import GatewayKit
import Glibc

struct Capture: Command {
  static let help = CommandHelp(
    "capture", "Records a route of the running gateway, and writes it to standard output while it happens.",
    discussion: """
      It needs no 'capture' in the configuration: `baudway capture board-3 | wireshark -k -i -`. It ends with the route, with the gateway, or when \
      nobody reads its output any more. The route never waits for it: what is not read in time is missing, and standard error says how \
      much. Only a shared link can be recorded. Exit code 64 when there is no such route.

      \(GatewayOptions.explanation)
      """)

  @Argument(help: "The route.", completion: .found(RunningGateway.routes))
  var route: String
  @Option(
    help: "pcapng for Wireshark, text, hex or raw. Default: text on a terminal, else pcapng.", value: "format",
    completion: .words(Config.Capture.Format.allCases.map(\.rawValue)))
  var format: Config.Capture.Format?
  let choice = GatewayOptions()

  func run() throws {
    signal(SIGPIPE, SIG_IGN)
    let standard: Config.Capture.Format = isatty(STDOUT_FILENO) == 1 ? .text : .pcapng
    let gateway = try choice.gateway()
    var output = LiveOutput(route)
    try gateway.follow(.capture(route: route, format ?? standard)) { try output.take($0) }
  }
}

extension Config.Capture.Format: ParameterValue {}

/// What comes from the gateway, and how it ends.
private struct LiveOutput {
  private let route: String
  private var reader = LiveCaptureReader()
  private var isOver = false
  /// Bytes and events that are missing, and not reported yet.
  private var bytes: UInt64 = 0
  private var events: UInt64 = 0
  private var saidAt: UInt64 = 0
  private static let pause: UInt64 = 1_000_000_000

  init(_ route: String) { self.route = route }

  /// Nil: the connection has ended, or standard output has. Returns whether it goes on.
  mutating func take(_ input: [UInt8]?) throws -> Bool {
    guard let input else {
      sayLoss()
      if isOver { return false }
      say("baudway: the connection to the gateway was lost")
      throw ExitCode(EX_UNAVAILABLE)
    }
    for event in reader.take(input) {
      switch event {
      case .begun: break
      case .bytes(let bytes): if try !write(bytes) { return false }
      case .dropped(let bytes, let events):
        (self.bytes, self.events) = (self.bytes &+ bytes, self.events &+ events)
        if monotonicNanoseconds() &- saidAt >= Self.pause { sayLoss() }
      case .end:
        isOver = true
        say("baudway: the recording of \(route) has ended: the route was removed, or the gateway stops")
      case .failed(let reason):
        say("baudway: \(reason)")
        throw ExitCode(EX_USAGE)
      }
    }
    return true
  }

  private mutating func write(_ bytes: [UInt8]) throws -> Bool {
    do throws(SystemError) {
      try writeAll(bytes, to: STDOUT_FILENO)
      return true
    } catch {
      sayLoss()
      guard error.errno == EPIPE else { throw unwritten(error) }
      return false
    }
  }

  mutating func sayLoss() {
    guard bytes > 0 || events > 0 else { return }
    say("baudway: \(bytes) bytes and \(events) events are missing: the output is read too slowly")
    (bytes, events, saidAt) = (0, 0, monotonicNanoseconds())
  }
}
