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

      Exit codes: 69 when there is no adapter to listen with, 77 when that is for want of rights.
      """)

  @Flag(help: "One object of JSON, in one line, at the end.")
  var json = false
  @Option(help: "How long to listen; Ctrl-C ends it earlier.")
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
    guard wish != nil else {
      throw ValidationError("--service: '\(service ?? "")' is no UUID of 16, 32 or 128 bits, such as 1101 or FFE0")
    }
  }

  private var wish: NearbyScan.Wish? {
    NearbyScan.Wish(le ? .lowEnergy : classic ? .classic : .all, adapter: adapter, service: service)
  }

  func run() throws {
    guard let wish else { throw ExitCode(EX_USAGE) }
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
    ScanShow(scan, seconds: seconds, on: screen, asJSON: json).follow(signals)
    scan.stop()
    while scan.end == nil { _ = signals.wait(until: monotonicNanoseconds() + 20_000_000) }
    if case .failed(let failure)? = scan.end { try explain(failure, heard: scan.count) }
    if json {
      put((scan.json + "\n").utf8)
    } else if screen != nil {
      put((scan.table(hasColours: hasColours()).joined(separator: "\n") + "\n").utf8)
    } else {
      put(scan.takeLines().map { $0 + "\n" }.joined().utf8)
    }
    if scan.count == 0 {
      say("Nothing was heard. Some devices are silent while they are connected, or until a button is pressed.")
    }
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
  private let end: UInt64
  private static let period: UInt64 = 250_000_000

  init(_ scan: NearbyScan, seconds: Int, on screen: LiveScreen?, asJSON: Bool) {
    self.scan = scan
    self.screen = screen
    self.asJSON = asJSON
    end = monotonicNanoseconds() + UInt64(seconds) * 1_000_000_000
  }

  /// Until it is over, or a signal ends it, or nobody reads.
  func follow(_ signals: WatchedSignals) {
    screen?.enter()
    defer { screen?.leave() }
    while scan.end == nil {
      draw()
      let now = monotonicNanoseconds()
      guard now < end else { return }
      switch signals.wait(until: min(end, now + Self.period)) {
      case nil, SIGWINCH: break
      case SIGTSTP:
        screen?.leave()
        signals.suspend()
        screen?.enter()
      default: return
      }
      guard screen != nil || asJSON || put(scan.takeLines().map { $0 + "\n" }.joined().utf8) else { return }
    }
  }

  private func draw() {
    guard let screen else { return }
    let now = monotonicNanoseconds()
    let left = end > now ? (end - now + 999_999_999) / 1_000_000_000 : 0
    let place = scan.adapter.map { "Listening on \($0)" } ?? "Looking for an adapter"
    let count = scan.count == 1 ? "1 device" : "\(scan.count) devices"
    screen.draw(["\(place), \(left) s left (Ctrl-C ends it): \(count)", ""] + scan.table(hasColours: hasColours()))
  }
}
