// `baudway status --watch`: asks each second and draws. A terminal shows this on its alternate screen, and its old
// content afterwards. Elsewhere it prints one table, or one line of JSON, after the other.

import CommandArguments
import ByteStreams
import GatewayKit
import Glibc

final class StatusWatch {
  private let gateway: RunningGateway
  private let asJSON: Bool
  private let screen: LiveScreen?
  private var last: Snapshot?
  /// The data in `lines`, for a new layout when the terminal's size changes.
  private var drawn: (snapshot: Snapshot, since: Snapshot?)?
  private var lines: [String] = []

  private static let period: UInt64 = 1_000_000_000

  init(_ gateway: RunningGateway, asJSON: Bool) {
    self.gateway = gateway
    self.asJSON = asJSON
    screen = !asJSON && isatty(STDOUT_FILENO) == 1 ? LiveScreen() : nil
  }

  /// Runs until a signal ends it. Throws when no gateway answers at first; later it may stop and come back.
  func run() throws {
    let signals = WatchedSignals()
    try show(gateway.ask(.status, within: .seconds(5)))
    screen?.enter()
    defer { screen?.leave() }
    var next = monotonicNanoseconds() + Self.period
    draw()
    while true {
      switch signals.wait(until: next) {
      case nil:
        next = max(next + Self.period, monotonicNanoseconds())
        try refresh()
      case SIGWINCH:
        if let (snapshot, last) = drawn {
          lines = StatusTable(snapshot, since: last, hasColours: hasColours(), within: screen?.size.columns).lines
        }
      case SIGTSTP:
        screen?.leave()
        signals.suspend()
        screen?.enter()
      default: return
      }
      draw()
    }
  }

  private func refresh() throws {
    let answer: [UInt8]
    do throws(RunningGateway.Refusal) {
      answer = try gateway.answer(.status, within: .seconds(2))
    } catch {
      last = nil
      drawn = nil
      lines = [gateway.refusal(error) + "; asking again"]
      if screen == nil { say(lines[0]) }
      return
    }
    try show(answer)
  }

  private func show(_ answer: [UInt8]) throws {
    if asJSON {
      try put(answer + [UInt8(ascii: "\n")])
      return
    }
    guard let snapshot = Snapshot.read(answer) else {
      lines = ["this version does not understand the gateway's answer; use the gateway's version of baudway"]
      return
    }
    lines = StatusTable(snapshot, since: last, hasColours: hasColours(), within: screen?.size.columns).lines
    drawn = (snapshot, last)
    last = snapshot
    if screen == nil { try put((lines.joined(separator: "\n") + "\n\n").utf8) }
  }

  private func draw() { screen?.draw(lines) }
}
