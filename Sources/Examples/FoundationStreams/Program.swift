// Programs with Foundation's streams: each sends bytes to an endpoint that echoes, and checks what comes back.
//   foundation-streams delegate|polling|transfer URL BYTES [main|foreign]
// delegate: a class with an out-buffer, on a run loop (the main one, or that of another thread). polling: two threads
// with blocking calls, and a notification at the end. transfer: `Stream.send` and `Stream.receive` in the background.
// Prints "BYTES bytes, the same" and what is known about the device.

import Foundation
import StreamBrokerFoundation

@main
enum Program {
  /// The bytes to send: they differ from place to place, so that a lost, doubled or moved byte is seen.
  static let sample = {
    let count = CommandLine.arguments.count > 3 ? Int(CommandLine.arguments[3]) ?? 0 : 0
    return Data((0..<count).map { UInt8(truncatingIfNeeded: ($0 &* 2_654_435_761) >> 11) })
  }()

  static func main() {
    let words = CommandLine.arguments
    guard words.count > 3 else { fail("usage: foundation-streams delegate|polling|transfer URL BYTES [main|foreign]") }
    guard words.count > 4, words[4] == "foreign" else { return run(words[1], words[2]) }
    Thread.detachNewThread { run(words[1], words[2]) }
    while true { sleep(300) }
  }

  /// Runs this thread's run loop until the program ends.
  private static func run(_ kind: String, _ url: String) {
    switch kind {
    case "delegate": Echo.start(url)
    case "polling": Polling.start(url)
    default: Transfer.start(url)
    }
    let end = Date(timeIntervalSinceNow: 300)
    RunLoop.current.run(until: end)
    Thread.sleep(until: end)  // a run loop with nothing to wait for returns at once
    fail("not within 300 s")
  }

  static func succeed(_ received: Data, _ meta: StreamMeta?) -> Never {
    guard received == sample else { fail("\(received.count) bytes, not the same") }
    say("\(received.count) bytes, the same; \(meta?.name ?? "no name") at \(meta?.url ?? "no URL")")
    exit(0)
  }

  static func fail(_ text: String) -> Never {
    say(text)
    exit(1)
  }

  /// A line of output, at once.
  static func say(_ line: String) { FileHandle.standardOutput.write(Data("\(line)\n".utf8)) }
}
