// `baudway scan`: lists Bluetooth devices nearby, as URLs to paste. A terminal shows a table that is drawn again during
// the scan and stays after it. Elsewhere it prints a line for each device when it is found, or one object of JSON at
// the end.

import CommandArguments
import ByteStreams
import GatewayKit
import Glibc
import StreamBroker

struct Scan: Command {
  static let help = CommandHelp(
    "scan", "Lists Bluetooth devices nearby, as URLs to paste.",
    discussion: """
      Needs CAP_NET_ADMIN (root has it), and switches on an adapter that is off. A URL in yellow is a guess: the device does \
      not advertise a serial service. Without a terminal, each device is a line of address, kind, signal strength (dBm), name, \
      services and URL, separated by tabs. The line is written when the device is found, and again when more is known about it.

      Exit codes: 69 when there is no adapter, or the scan ended before there was one, 77 when permissions are missing.
      """)

  @Flag(help: "One object of JSON, in one line, at the end.")
  var json
  @Option(help: "How long to scan, once an adapter is on; Ctrl-C ends the scan earlier.")
  var seconds = 12
  @Option(
    help: "The adapter to scan with, by name (hci0) or address.", completion: .found { _ in DeviceList.foundAdapters() }
  )
  var adapter: String?
  @Flag(help: "Low Energy only.")
  var le
  @Flag(help: "Classic (BR/EDR) only.")
  var classic
  @Option(help: "Only devices that advertise this service.", value: "uuid")
  var service: String?

  func validate() throws {
    guard (1...86_400).contains(seconds) else { throw UsageError("--seconds: expected 1 to 86400") }
    guard !(le && classic) else {
      throw UsageError("--le and --classic exclude each other; without both, the scan finds both kinds")
    }
    guard adapter.map(BluetoothNames.isAdapter) ?? true else {
      throw UsageError("--adapter: \(BluetoothNames.adapterExpected)")
    }
    guard wish != nil else {
      throw UsageError("--service: '\(service ?? "")' is not a UUID of 16, 32 or 128 bits, such as 1101 or FFE0")
    }
  }

  private var wish: NearbyScan.Wish? {
    NearbyScan.Wish(le ? .lowEnergy : classic ? .classic : .all, adapter: adapter, service: service)
  }

  func run() throws {
    guard let wish else { throw ExitCode(EX_USAGE) }
    try require(.oneLane)
    let signals = WatchedSignals()
    signal(SIGPIPE, SIG_IGN)  // first the scan in the kernel must be ended
    let screen = !json && isatty(STDOUT_FILENO) == 1 ? LiveScreen() : nil
    let scan: NearbyScan
    do {
      scan = try NearbyScan(wish, keepsLines: !json && screen == nil)
    } catch {
      say("baudway: \(error)")
      throw ExitCode(EX_OSERR)
    }
    scan.begin()
    var show = ScanShow(scan, seconds: seconds, on: screen, asJSON: json)
    show.follow(signals)
    scan.stop()
    while scan.end == nil { _ = signals.wait(until: monotonicNanoseconds() + 20_000_000) }
    if case .failed(let failure)? = scan.end { try explain(failure, received: scan.count) }
    guard scan.listensSince != nil else {
      say("baudway: the scan ended before an adapter was found")
      throw ExitCode(EX_UNAVAILABLE)
    }
    show.finish(signals, table: screen == nil ? nil : scan.table(hasColours: hasColours()))
    if let failure = show.failure { throw unwritten(failure) }
    if let lack = scan.lack { say(lack) }
  }

  /// Prints the failure. Throws only if no device was found before it.
  private func explain(_ failure: OpenFailure, received: Int) throws {
    say("baudway: \(failure)")
    guard received == 0 else { return }
    let isForbidden = failure.cause?.errno == EPERM || failure.cause?.errno == EACCES
    throw ExitCode(isForbidden ? EX_NOPERM : EX_UNAVAILABLE)
  }
}

/// The output during and after a scan.
private struct ScanShow {
  private let scan: NearbyScan
  private let screen: LiveScreen?
  private let asJSON: Bool
  private let length: UInt64
  private var output = NonBlockingOutput()
  private var isEnded = false
  /// Why output failed.
  private(set) var failure: SystemError?
  private static let period: UInt64 = 250_000_000
  /// The time for unread output when a signal ends the scan.
  private static let timeout: UInt64 = 1_000_000_000

  init(_ scan: NearbyScan, seconds: Int, on screen: LiveScreen?, asJSON: Bool) {
    self.scan = scan
    self.screen = screen
    self.asJSON = asJSON
    length = UInt64(seconds) * 1_000_000_000
  }

  /// Runs until the time is over, a signal ends it, or output fails.
  mutating func follow(_ signals: WatchedSignals) {
    screen?.enter()
    defer { screen?.leave() }
    while scan.end == nil {
      draw()
      let now = monotonicNanoseconds()
      let end = (scan.listensSince ?? now) + length
      guard now < end else { return }
      switch signals.wait(until: min(end, now + Self.period)) {
      case nil, SIGWINCH: break
      case SIGTSTP:
        screen?.leave()
        signals.suspend()
        screen?.enter()
      default:
        isEnded = true
        return
      }
      guard screen != nil || asJSON || putLines() else { return }
    }
  }

  /// Prints as many lines as the output takes now; false when no more can be printed.
  private mutating func putLines() -> Bool {
    // A reader that is gone must be noticed even if there is nothing to print.
    var reader = pollfd(fd: STDOUT_FILENO, events: 0, revents: 0)
    if poll(&reader, 1, 0) == 1, reader.revents & Int16(POLLERR) != 0 { failure = SystemError("write", EPIPE) }
    if output.isIdle { output.add(scan.takeLines().map { $0 + "\n" }.joined()) }
    return flush()
  }

  private mutating func flush() -> Bool {
    guard failure == nil else { return false }
    do throws(SystemError) {
      try output.flush()
    } catch {
      failure = error
    }
    return failure == nil
  }

  /// Prints the result, `table` on a terminal. A signal ends that, too. Lines after an earlier signal have `timeout`
  /// only.
  mutating func finish(_ signals: WatchedSignals, table: [String]?) {
    output.add(
      table.map { $0.joined(separator: "\n") + "\n" }
        ?? (asJSON ? scan.json + "\n" : scan.takeLines().map { $0 + "\n" }.joined()))
    let end = isEnded && !asJSON && table == nil ? monotonicNanoseconds() + Self.timeout : .max
    while flush(), !output.isIdle, monotonicNanoseconds() < end {
      switch signals.wait(until: monotonicNanoseconds() + 20_000_000) {
      case nil, SIGWINCH: break
      case SIGTSTP: signals.suspend()
      default: return
      }
    }
  }

  private func draw() {
    guard let screen else { return }
    let now = monotonicNanoseconds()
    let end = (scan.listensSince ?? now) + length
    let left = end > now ? (end - now + 999_999_999) / 1_000_000_000 : 0
    let source = scan.adapter.map { "Listening on \($0)" } ?? "Looking for an adapter"
    let count = scan.count == 1 ? "1 device" : "\(scan.count) devices"
    screen.draw(["\(source), \(left) s left (Ctrl-C ends it): \(count)", ""] + scan.table(hasColours: hasColours()))
  }
}
