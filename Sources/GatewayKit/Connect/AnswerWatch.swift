// Whether an endpoint has answered what was sent to it. A modem returns a command before it answers: an echo of exactly
// what was sent is no answer. Each line of text that was sent may have an answer of its own. `StreamBridge` asks it how
// long a silence may be before nothing more is expected.

import ByteStreams

struct AnswerWatch {
  /// Something has come back since the first byte was sent.
  var hasHeard: Bool { isAnswered || echoed > 0 }
  /// Something has come back that is no echo.
  private(set) var isAnswered = false
  /// All that was sent has come back, and nothing else.
  var isEchoed: Bool { !isAnswered && echoed > 0 && echoed == sent.count }
  /// More lines of text were sent than have come back as answers.
  var lacksLines: Bool { isText && lines.sent > 1 && lines.answered < lines.sent }
  /// With several lines, the next answer may take as long as the slowest one so far, and twice that.
  var nextTakes: Duration { isText && lines.sent > 1 ? .nanoseconds(Int64(clamping: 2 * longestPause)) : .zero }

  /// What may still come back as an echo. Bounded: no echo of more than this is known as one.
  private var sent: [UInt8] = []
  private var echoed = 0
  private var isText = true
  /// Lines that are not empty.
  private var lines = (sent: 0, answered: 0)
  private var isInLine = (sent: false, answered: false)
  private var lastAt: UInt64?
  private var longestPause: UInt64 = 0
  private static let most = 4096

  /// Further bytes change nothing before more lines of text are sent.
  private var knowsEnough: Bool { isAnswered && !(isText && lines.answered < lines.sent) }

  mutating func sent(_ run: UnsafeRawBufferPointer, at now: UInt64) {
    lastAt = now
    sent += run.prefix(Self.most - sent.count)
    guard isText else { return }
    for byte in run {
      isText = isText && Self.isText(byte)
      if !Self.endsLine(byte) {
        isInLine.sent = true
      } else if isInLine.sent {
        (isInLine.sent, lines.sent) = (false, lines.sent + 1)
      }
    }
  }

  mutating func received(_ run: UnsafeRawBufferPointer, at now: UInt64) {
    guard let lastAt else { return }  // a greeting: nothing was asked
    longestPause = max(longestPause, now - lastAt)
    self.lastAt = now
    var rest = run[...]
    while !knowsEnough, let byte = rest.popFirst() {
      if echoed < sent.count, byte == sent[echoed] {
        echoed += 1
        continue
      }
      isAnswered = true
      if !Self.endsLine(byte) {
        isInLine.answered = true
      } else if isInLine.answered {
        (isInLine.answered, lines.answered) = (false, lines.answered + 1)
      }
    }
  }

  private static func endsLine(_ byte: UInt8) -> Bool { byte == 0x0D || byte == 0x0A }

  /// Also what modems take: tab, Ctrl-Z, escape.
  private static func isText(_ byte: UInt8) -> Bool {
    endsLine(byte) || 0x20...0x7E ~= byte || byte == 0x09 || byte == 0x1A || byte == 0x1B
  }
}

/// The sink of a pump, which shows what it takes.
final class WatchedSink: SinkStream {
  private let stream: any ByteStream
  var below: (any ByteStream)? { stream }
  private let taken: (UnsafeRawBufferPointer) -> Void

  init(_ stream: any ByteStream, _ taken: @escaping (UnsafeRawBufferPointer) -> Void) {
    self.stream = stream
    self.taken = taken
  }

  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    let transfer = try stream.write(run)
    if case .moved(let count) = try transfer.checked(of: run.count, at: "connect.write") {
      taken(UnsafeRawBufferPointer(rebasing: run[..<count]))
    }
    return transfer
  }
}
