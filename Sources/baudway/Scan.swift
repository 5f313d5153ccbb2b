// `baudway scan`: the Bluetooth devices nearby, as URLs to paste. On a terminal a table that is drawn again while it listens, and stays
// when it has ended; elsewhere a line for each device as it is heard, or one object of JSON at the end.

import ArgumentParser
import ByteStreams
import GatewayKit
import Glibc
import StreamBroker

struct Scan: ParsableCommand {
  static let configuration = CommandConfiguration(
    abstract: "Lists Bluetooth devices nearby, as URLs to paste.",
    discussion: """
      Needs CAP_NET_ADMIN, as root has it, and switches on an adapter that is off. A URL in yellow is a guess: the device does \
      not say that it is a serial one. Where there is no terminal each device is a line of address, kind, signal strength (dBm), name, \
      services and URL, with tabs between them, written when it is heard and again when it says more of itself.

      Exit codes: 69 when there is no adapter to listen with, or it was ended before there was, 77 when that is for want of rights.
      """)

  @Flag(help: "One object of JSON, in one line, at the end.")
  var json = false
  @Option(help: "How long to listen, once an adapter is on; Ctrl-C ends it earlier.")
  var seconds = 12
  @Option(help: ArgumentHelp("The adapter to listen with, by name (hci0) or address.", valueName: "adapter"))
  var adapter: String?
  @Flag(help: "Low Energy only.")
  var le = false
  @Flag(help: "Classic (BR/EDR) only.")
  var classic = false
  @Option(help: ArgumentHelp("Only devices that say they have this service.", valueName: "uuid"))
  var service: String?

  func validate() throws {
    guard (1...86_400).contains(seconds) else { throw ValidationError("--seconds: expected 1 to 86400") }
    guard !(le && classic) else {
      throw ValidationError("--le and --classic exclude each other; without both, both are heard")
    }
    guard adapter.map(BluetoothNames.isAdapter) ?? true else {
      throw ValidationError("--adapter: \(BluetoothNames.adapterExpected)")
    }
    guard wish != nil else {
      throw ValidationError("--service: '\(service ?? "")' is no UUID of 16, 32 or 128 bits, such as 1101 or FFE0")
    }
  }

  private var wish: NearbyScan.Wish? {
    NearbyScan.Wish(le ? .lowEnergy : classic ? .classic : .all, adapter: adapter, service: service)
  }

  func run() throws {
    guard let wish else { throw ExitCode(EX_USAGE) }
    try require(.oneLane)
    let signals = WatchedSignals()
    signal(SIGPIPE, SIG_IGN)  // the kernel is told to end its part first
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
    if case .failed(let failure)? = scan.end { try explain(failure, heard: scan.count) }
    guard scan.listensSince != nil else {
      say("baudway: ended before there was an adapter to listen with")
      throw ExitCode(EX_UNAVAILABLE)
    }
    show.finish(signals, table: screen == nil ? nil : scan.table(hasColours: hasColours()))
    if let failure = show.failure { throw unwritten(failure) }
    if let lack = scan.lack { say(lack) }
  }

  /// What was heard before counts all the same.
  private func explain(_ failure: OpenFailure, heard: Int) throws {
    say("baudway: \(failure)")
    guard heard == 0 else { return }
    let isForbidden = failure.cause?.errno == EPERM || failure.cause?.errno == EACCES
    throw ExitCode(isForbidden ? EX_NOPERM : EX_UNAVAILABLE)
  }
}

/// What is seen while it listens.
private struct ScanShow {
  private let scan: NearbyScan
  private let screen: LiveScreen?
  private let asJSON: Bool
  private let length: UInt64
  private var output = SteppedOutput()
  private var isEnded = false
  /// Why not everything could be printed.
  private(set) var failure: SystemError?
  private static let period: UInt64 = 250_000_000
  /// For what nobody has read yet when a signal ends it.
  private static let patience: UInt64 = 1_000_000_000

  init(_ scan: NearbyScan, seconds: Int, on screen: LiveScreen?, asJSON: Bool) {
    self.scan = scan
    self.screen = screen
    self.asJSON = asJSON
    length = UInt64(seconds) * 1_000_000_000
  }

  /// Until it is over, or a signal ends it, or nobody reads.
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

  /// As many as are taken now; false when no more can be printed.
  private mutating func putLines() -> Bool {
    // Nothing may ever be written to whoever went.
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

  /// What is told at the end, `table` on a terminal. A signal ends that, too; where one has come before, it must go quickly.
  mutating func finish(_ signals: WatchedSignals, table: [String]?) {
    output.add(
      table.map { $0.joined(separator: "\n") + "\n" }
        ?? (asJSON ? scan.json + "\n" : scan.takeLines().map { $0 + "\n" }.joined()))
    let end = isEnded && !asJSON && table == nil ? monotonicNanoseconds() + Self.patience : .max
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
    let place = scan.adapter.map { "Listening on \($0)" } ?? "Looking for an adapter"
    let count = scan.count == 1 ? "1 device" : "\(scan.count) devices"
    screen.draw(["\(place), \(left) s left (Ctrl-C ends it): \(count)", ""] + scan.table(hasColours: hasColours()))
  }
}
