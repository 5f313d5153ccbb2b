// `connect` without a terminal: which bytes are delivered before it ends, when either side ends or fails, and how it
// closes.

import StreamTestKit
import StreamWebSocket
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A bridge to an endpoint", .timeLimit(.minutes(5)))
struct StreamBridgeTests {
  private let clock = ManualClock()
  private let poller: Poller
  private let broken = SystemError("write", 32)

  init() throws { poller = try Poller(clock: clock.clock) { _ in } }

  /// How it ended.
  private final class Result {
    var words: [String] = []
  }

  private func talk(
    _ here: ScriptedStream, _ there: any ByteStream, _ parting: StreamBridge.Parting = .whenSilent(.milliseconds(500))
  ) -> Result {
    let result = Result()
    StreamBridge(here, with: there, parting: parting, on: poller) { end in
      switch end {
      case .endpointLeft: result.words.append("endpoint left")
      case .unanswered: result.words.append("unanswered")
      case .echoed: result.words.append("echoed")
      case .weLeft: result.words.append("we left")
      case .endpointFailed(let error): result.words.append("endpoint failed: \(error)")
      case .weFailed(let error): result.words.append("we failed: \(error)")
      }
    }.start()
    return result
  }

  private func report(_ stream: any ByteStream, _ event: ByteStreamEvent) {
    stream.delegate?.stream(stream, handle: event)
  }

  private func pass(_ time: Duration) {
    clock.advance(by: time)
    poller.timers.fireDue()
    poller.runAgain()
  }

  @Test("delivers the endpoint's output from before a failed write to it", arguments: [true, false])
  func brokenWrite(outputWaits: Bool) throws {
    let here = ScriptedStream(
      reads: [.blocked(until: .readable), .moved(5)],
      writes: outputWaits ? [.blocked(until: .writable)] : [], takesAll: !outputWaits)
    let there = ScriptedStream(reads: [.blocked(until: .readable)], writes: [.failed(broken)])
    let result = talk(here, there)
    there.willRead(.bytes([1, 2, 3]))
    report(here, .hasBytesAvailable)
    if outputWaits {
      #expect(result.words.isEmpty)
      here.willWrite(.moved(10))
      report(here, .hasSpaceAvailable)
    }
    #expect(here.written == [1, 2, 3] && here.isClosed && there.isClosed)
    #expect(result.words == ["endpoint failed: \(broken)"])
  }

  @Test("delivers the endpoint's output from before its failure", arguments: [true, false])
  func brokenRead(isTold: Bool) {
    let here = ScriptedStream(writes: [.blocked(until: .writable)])
    let there = ScriptedStream(reads: [.bytes([1, 2, 3]), isTold ? .blocked(until: .readable) : .failed(broken)])
    there.hasBufferedInput = !isTold
    let result = talk(here, there)
    if isTold { report(there, .errorOccurred(broken)) }
    #expect(result.words.isEmpty && !here.isClosed)
    here.willWrite(.moved(2), .moved(2))
    report(here, .hasSpaceAvailable)
    #expect(here.written == [1, 2, 3] && result.words == ["endpoint failed: \(broken)"])
  }

  @Test("sends its close frame to a WebSocket after a silence, and waits for the other side's close frame")
  func closingHandshake() throws {
    let here = ScriptedStream(reads: [.bytes([65]), .ended], takesAll: true)
    let wire = ScriptedStream(takesAll: true)
    let there = WebSocketStream(over: wire, as: .client, .init(pingInterval: nil), on: poller)
    let result = talk(here, there)
    report(here, .hasBytesAvailable)
    let asked = wire.written.count
    pass(.milliseconds(499))
    #expect(wire.written.count == asked)
    wire.willRead(.bytes([0x82, 1, 66]))
    report(wire, .hasBytesAvailable)
    #expect(here.written == [66])
    pass(.milliseconds(499))
    #expect(wire.written.count == asked)
    pass(.milliseconds(2))
    #expect(wire.written.count == asked + 8 && wire.written[asked] == 0x88 && !wire.isClosed && result.words.isEmpty)
    wire.willRead(.bytes([0x82, 1, 67, 0x88, 2, 3, 0xE8]))
    report(wire, .hasBytesAvailable)
    pass(.milliseconds(1))
    #expect(here.written == [66, 67] && wire.isClosed && result.words == ["we left"])
  }

  @Test(
    "waits three seconds for the other side's close frame, also after the key that quits", arguments: [true, false])
  func deafServer(isTerminal: Bool) throws {
    let here = ScriptedStream(reads: [.ended], takesAll: true)
    let wire = ScriptedStream(takesAll: true)
    let there = WebSocketStream(over: wire, as: .client, .init(pingInterval: nil), on: poller)
    let result = talk(here, there, isTerminal ? .atOnce : .whenSilent(.zero))
    pass(.milliseconds(1))
    #expect(wire.written.count == 8 && result.words.isEmpty)
    pass(.milliseconds(2990))
    #expect(result.words.isEmpty)
    pass(.milliseconds(20))
    #expect(wire.isClosed && result.words == ["we left"])
  }

  @Test("lets a write wait for readability if the write asks for that", arguments: [true, false])
  func writeThatReads(isTerminal: Bool) {
    let here = ScriptedStream(reads: [.bytes([1]), .ended], takesAll: true)
    let there = ScriptedStream(writes: [.blocked(until: .readable)])
    let result = talk(here, there, isTerminal ? .atOnce : .whenSilent(.zero))
    report(here, .hasBytesAvailable)
    #expect(there.writerWaits == .readable && there.written.isEmpty && result.words.isEmpty)
    there.willWrite(.blocked(until: .writable), .moved(1))
    report(there, .hasSpaceAvailable)
    #expect(there.writerWaits == .writable)
    report(there, .hasSpaceAvailable)
    #expect(there.written == [1])
  }

  @Test("closes an endpoint that can't be half-closed after a silence, and others at their end")
  func partings() {
    let there = ScriptedStream(takesAll: true)
    there.closeBehavior.canHalfClose = false
    let result = talk(ScriptedStream(reads: [.ended], takesAll: true), there)
    pass(.milliseconds(499))
    #expect(result.words.isEmpty)
    pass(.milliseconds(2))
    #expect(result.words == ["we left"] && !there.finishedWriting)

    let reported = ScriptedStream(takesAll: true)
    let other = talk(ScriptedStream(reads: [.ended], takesAll: true), reported)
    pass(.seconds(60))
    #expect(reported.finishedWriting && other.words.isEmpty)
    reported.willRead(.ended)
    report(reported, .hasBytesAvailable)
    #expect(other.words == ["endpoint left"])
  }

  @Test("with `always` closes a half-closed endpoint after a silence since its last byte")
  func alwaysBySilence() {
    let reported = ScriptedStream(takesAll: true)
    let here = ScriptedStream(reads: [.bytes([1]), .ended], takesAll: true)
    let result = talk(here, reported, .whenSilent(.milliseconds(500), always: true))
    report(here, .hasBytesAvailable)
    #expect(reported.finishedWriting && reported.written == [1])
    pass(.milliseconds(499))
    reported.willRead(.bytes([2]))
    report(reported, .hasBytesAvailable)
    pass(.milliseconds(499))
    #expect(result.words.isEmpty && !reported.isClosed)
    pass(.milliseconds(2))
    #expect(result.words == ["we left"] && reported.isClosed)

    // An endpoint that ends earlier ends the bridge at once.
    let ended = ScriptedStream(takesAll: true)
    let other = talk(
      ScriptedStream(reads: [.ended], takesAll: true), ended, .whenSilent(.milliseconds(500), always: true))
    ended.willRead(.ended)
    report(ended, .hasBytesAvailable)
    #expect(other.words == ["endpoint left"])
  }

  private let patient = StreamBridge.Parting.whenSilent(.milliseconds(500), answerWithin: .seconds(5))

  private func port() -> ScriptedStream {
    let there = ScriptedStream(takesAll: true)
    there.closeBehavior.canHalfClose = false
    return there
  }

  @Test("waits for the first byte of an answer, then for the silence after the last one")
  func lateAnswer() {
    let (here, there) = (ScriptedStream(reads: [.bytes([65]), .ended], takesAll: true), port())
    let result = talk(here, there, patient)
    report(here, .hasBytesAvailable)
    pass(.milliseconds(4999))
    #expect(result.words.isEmpty)
    there.willRead(.bytes([66]))
    report(there, .hasBytesAvailable)
    pass(.milliseconds(499))
    #expect(result.words.isEmpty)
    pass(.milliseconds(2))
    #expect(here.written == [66] && result.words == ["we left"])
  }

  @Test("reports that no answer came; what the endpoint sent before our first byte is none", arguments: [true, false])
  func noAnswer(greets: Bool) {
    let (here, there) = (ScriptedStream(reads: [.blocked(until: .readable)], takesAll: true), port())
    if greets { there.willRead(.bytes([67])) }
    let result = talk(here, there, patient)
    here.willRead(.bytes([65]), .ended)
    for _ in 0..<2 { report(here, .hasBytesAvailable) }
    pass(.milliseconds(4999))
    #expect(result.words.isEmpty)
    pass(.milliseconds(2))
    #expect(there.written == [65] && there.isClosed)
    #expect(result.words == ["unanswered"])
  }

  /// Sends `text` to a port that answers with the pieces, each so long after the one before. Returns how long after the
  /// last piece the bridge ended, and how. All times are in milliseconds.
  private func end(
    after text: String, _ pieces: [(Int, String)], _ there: ScriptedStream? = nil
  ) -> (after: Int, words: [String]) {
    let (here, there) = (
      ScriptedStream(reads: [.bytes(Array(text.utf8)), .ended], takesAll: true), there ?? port()
    )
    let result = talk(here, there, patient)
    report(here, .hasBytesAvailable)
    for (delay, piece) in pieces {
      pass(.milliseconds(delay))
      there.willRead(.bytes(Array(piece.utf8)))
      report(there, .hasBytesAvailable)
    }
    #expect(String(decoding: here.written, as: UTF8.self) == pieces.map(\.1).joined())
    var after = 0
    while result.words.isEmpty, after < 20_000 {
      pass(.milliseconds(50))
      after += 50
    }
    return (after, result.words)
  }

  @Test("does not take an echo of what was sent for the answer, however it is cut")
  func echo() {
    for pieces in [[(0, "AT\r")], [(0, "A"), (10, "T"), (20, "\r")]] {
      let answered = end(after: "AT\r", pieces + [(800, "\r\nOK\r\n")])
      #expect(answered.after == 500 && answered.words == ["we left"], "\(pieces)")
      let mute = end(after: "AT\r", pieces)
      #expect(mute.after == 5000 && mute.words == ["echoed"], "\(pieces)")
    }
    // The echo may come with the answer, and part of an echo may be all of an answer.
    #expect(end(after: "AT\r", [(4900, "AT\r\r\nOK\r\n")]) == (500, ["we left"]))
    #expect(end(after: "12\r", [(0, "12")]) == (5000, ["we left"]))
    // A server that closes in its own way, such as a WebSocket's, returns what it wants.
    let server = port()
    server.closeBehavior.hasClosingHandshake = true
    #expect(end(after: "hello", [(100, "hello")], server) == (3500, ["we left"]), "3 s for the closing handshake")
  }

  @Test("waits for the answers to several lines of text: for missing lines, then twice the longest pause so far")
  func severalLines() {
    // Fewer lines than questions: the time of an answer.
    #expect(end(after: "AT\rATI\r", [(0, "AT\r"), (800, "\r\nOK\r\n")]) == (5000, ["we left"]))
    let both = [(0, "AT\r"), (800, "\r\nOK\r\n"), (0, "ATI\r"), (800, "\r\nModel 5\r\n\r\nOK\r\n")]
    #expect(end(after: "AT\rATI\r", both) == (1600, ["we left"]))
    // As many lines as questions, but they may all be of the first answer.
    #expect(end(after: "ATI\r\nAT\r\n", [(1000, "Model 5\r\nOK\r\n")]) == (2000, ["we left"]))
    #expect(end(after: "a\nb\n", [(4000, "1\n2\n")]) == (5000, ["we left"]), "never longer than an answer may take")
    #expect(end(after: "a\nb\n", [(10, "1\n2\n")]) == (500, ["we left"]))
    // One line, or a frame with such bytes by chance.
    #expect(end(after: "AT\r\n\r\n", [(2000, "OK\r\n")]) == (500, ["we left"]))
    #expect(end(after: "\u{1}\u{3}\r\u{2}\n", [(300, "\u{1}\u{3}?")]) == (500, ["we left"]))
  }

  @Test("does not wait for an answer when nothing was asked, or when it has come before the end of the input")
  func answered() {
    let silent = talk(ScriptedStream(reads: [.ended], takesAll: true), port(), patient)
    let (here, there) = (ScriptedStream(reads: [.bytes([65])], takesAll: true), port())
    let result = talk(here, there, patient)
    there.willRead(.bytes([66]))
    report(there, .hasBytesAvailable)
    here.willRead(.ended)
    report(here, .hasBytesAvailable)
    pass(.milliseconds(499))
    #expect(silent.words.isEmpty && result.words.isEmpty)
    pass(.milliseconds(2))
    #expect(silent.words == ["we left"] && result.words == ["we left"])
  }
}
