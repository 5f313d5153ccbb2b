// One measurement of Foundation's streams as a client, with blocking calls on the main thread, or with a delegate on
// its run loop. Tests/Bench/library/run starts it and the far end.
//   foundation-bench blocking|delegate trip|up|down URL SECONDS     prints round trips or bytes per second
//   foundation-bench blocking idle URL SECONDS                      opens, and does nothing

import Foundation
import StreamBrokerFoundation

@main
final class FoundationBench: NSObject, StreamDelegate {
  private static let piece = [UInt8](repeating: 0x55, count: 16 << 10)
  private let input: InputStream
  private let output: OutputStream
  private let mode: String
  private var buffer = FoundationBench.piece
  private var count = 0

  static func main() {
    let words = CommandLine.arguments
    guard words.count == 5, let seconds = Double(words[4]) else { return print("see the first lines of the source") }
    var pair: (InputStream, OutputStream)?
    Stream.pair(for: words[3]) { pair = try? $0.get() }
    while pair == nil { _ = RunLoop.current.run(mode: .default, before: Date(timeIntervalSinceNow: 1)) }
    let bench = FoundationBench(pair!.0, pair!.1, words[2])
    let start = Date()
    let end = start.addingTimeInterval(seconds)
    if words[1] == "delegate" { bench.schedule() }
    bench.input.open()
    bench.output.open()
    if words[1] == "delegate" { bench.runLoop(until: end) } else { bench.block(until: end) }
    print(Double(bench.count) / Date().timeIntervalSince(start))
    exit(0)
  }

  private init(_ input: InputStream, _ output: OutputStream, _ mode: String) {
    (self.input, self.output, self.mode) = (input, output, mode)
  }

  // MARK: - Blocking

  private func block(until end: Date) {
    if mode == "idle" { Thread.sleep(until: end) }
    while Date() < end {
      switch mode {
      case "trip":
        _ = output.write(Self.piece, maxLength: 1)
        count += input.read(&buffer, maxLength: 1)
      case "up": count += output.write(Self.piece, maxLength: Self.piece.count)
      default: count += input.read(&buffer, maxLength: buffer.count)
      }
    }
  }

  // MARK: - With a delegate

  private func schedule() {
    for stream in [input, output] as [Stream] {
      stream.delegate = self
      stream.schedule(in: .current, forMode: .default)
    }
  }

  private func runLoop(until end: Date) {
    while Date() < end { _ = RunLoop.current.run(mode: .default, before: end) }
  }

  func stream(_ aStream: Stream, handle eventCode: Stream.Event) {
    switch (eventCode, mode) {
    case (.openCompleted, "trip") where aStream === output: _ = output.write(Self.piece, maxLength: 1)
    case (.hasBytesAvailable, "trip"):
      count += input.read(&buffer, maxLength: 1)
      _ = output.write(Self.piece, maxLength: 1)
    case (.hasBytesAvailable, _): count += input.read(&buffer, maxLength: buffer.count)
    case (.hasSpaceAvailable, "up"): count += output.write(Self.piece, maxLength: Self.piece.count)
    default: break
    }
  }
}
