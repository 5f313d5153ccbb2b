// sim://console: a prompt, an echo and a few commands, like the serial console of a router or a board. No log-in.

import ByteStreams

struct SimConsole: SimDevice {
  private static let prompt = "sim> "
  private static let longestLine = 256  // characters; more are refused with a bell
  private static let mostKept = 4096  // bytes of output; then it takes no more input

  private var output: [UInt8] = Array("\r\nBaudway simulated console; try help\r\n\(prompt)".utf8)
  private var line: [UInt8] = []
  private var lastWasReturn = false
  private var isLeaving = false
  private let started = monotonicNanoseconds()

  var hasBytes: Bool { !output.isEmpty }
  // Room for the longest answer: a line of invalid UTF-8, where each byte becomes the three bytes of U+FFFD.
  var hasSpace: Bool { !isLeaving && output.count <= Self.mostKept - 4 * Self.longestLine }
  var hasEnded: Bool { isLeaving && output.isEmpty }

  mutating func give(_ run: UnsafeMutableRawBufferPointer) -> Int {
    let count = min(run.count, output.count)
    run.copyBytes(from: output[..<count])
    output.removeFirst(count)
    return count
  }

  mutating func take(_ run: UnsafeRawBufferPointer) -> Int {
    var count = 0
    while count < run.count && hasSpace {
      type(run[count])
      count += 1
    }
    return count
  }

  private mutating func type(_ key: UInt8) {
    defer { lastWasReturn = key == 0x0D }
    switch key {
    case 0x0A where lastWasReturn: break  // the second half of CR LF
    case 0x0D, 0x0A: enter()
    case 0x08, 0x7F:
      if line.popLast() != nil { say("\u{8} \u{8}") }
    case 0x03:  // Ctrl-C
      line = []
      say("^C\r\n\(Self.prompt)")
    case 0x20...0x7E, 0x80...0xFF:
      if line.count < Self.longestLine {
        line.append(key)
        output.append(key)
      } else {
        say("\u{7}")
      }
    default: break
    }
  }

  private mutating func enter() {
    say("\r\n")
    let words = String(decoding: line, as: UTF8.self).split(separator: " ", maxSplits: 1)
    line = []
    switch words.first {
    case nil: break
    case "help":
      say("help           this text\r\necho TEXT      prints TEXT\r\nuptime         time since the start\r\n")
      say("reboot         hangs up, like a device that is unplugged\r\n")
    case "echo": say("\(words.count > 1 ? String(words[1]) : "")\r\n")
    case "uptime": say("up \((monotonicNanoseconds() - started) / 1_000_000_000) seconds\r\n")
    case "reboot":
      say("going down\r\n")
      isLeaving = true
      return
    case let word?: say("\(word.prefix(32)): not found; try help\r\n")
    }
    say(Self.prompt)
  }

  private mutating func say(_ text: String) { output += text.utf8 }
}
