// `connect` without a terminal: what is delivered before it ends, whichever side ends or breaks, and how it parts.

import StreamTestKit
import StreamWebSocket
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A talk with an endpoint", .timeLimit(.minutes(1)))
struct EndpointTalkTests {
  private let clock = ManualClock()
  private let poller: Poller
  private let broken = SystemError("write", 32)

  init() throws { poller = try Poller(clock: clock.clock) { _ in } }

  /// How it ended.
  private final class Result {
    var words: [String] = []
  }

  private func talk(
    _ here: ScriptedStream, _ there: any ByteStream, _ parting: EndpointTalk.Parting = .whenSilent(.milliseconds(500))
  ) -> Result {
    let result = Result()
    EndpointTalk(here, with: there, parting: parting, on: poller) { end in
      switch end {
      case .endpointLeft: result.words.append("endpoint left")
      case .weLeft: result.words.append("we left")
      case .endpointFailed(let error): result.words.append("endpoint failed: \(error)")
      case .weFailed(let error): result.words.append("we failed: \(error)")
      }
    }.start()
    return result
  }

  private func tell(_ stream: any ByteStream, _ event: ByteStreamEvent) {
    stream.delegate?.stream(stream, handle: event)
  }

  private func pass(_ time: Duration) {
    clock.advance(by: time)
    poller.timers.fireDue()
    poller.runAgain()
  }

  @Test("delivers what the endpoint said before a write to it failed", arguments: [true, false])
  func brokenWrite(outputWaits: Bool) throws {
    let here = ScriptedStream(
      reads: [.blocked(until: .readable), .moved(5)],
      writes: outputWaits ? [.blocked(until: .writable)] : [], takesAll: !outputWaits)
    let there = ScriptedStream(reads: [.blocked(until: .readable)], writes: [.failed(broken)])
    let result = talk(here, there)
    there.willRead(.bytes([1, 2, 3]))
    tell(here, .hasBytesAvailable)
    if outputWaits {
      #expect(result.words.isEmpty)
      here.willWrite(.moved(10))
      tell(here, .hasSpaceAvailable)
    }
    #expect(here.written == [1, 2, 3] && here.isClosed && there.isClosed)
    #expect(result.words == ["endpoint failed: \(broken)"])
  }

  @Test("delivers what the endpoint said before it broke", arguments: [true, false])
  func brokenRead(isTold: Bool) {
    let here = ScriptedStream(writes: [.blocked(until: .writable)])
    let there = ScriptedStream(reads: [.bytes([1, 2, 3]), isTold ? .blocked(until: .readable) : .failed(broken)])
    there.holdsBytes = !isTold
    let result = talk(here, there)
    if isTold { tell(there, .errorOccurred(broken)) }
    #expect(result.words.isEmpty && !here.isClosed)
    here.willWrite(.moved(2), .moved(2))
    tell(here, .hasSpaceAvailable)
    #expect(here.written == [1, 2, 3] && result.words == ["endpoint failed: \(broken)"])
  }

  @Test("says its close to a WebSocket once that has been silent, and waits for the same word")
  func closingHandshake() throws {
    let here = ScriptedStream(reads: [.bytes([65]), .ended], takesAll: true)
    let wire = ScriptedStream(takesAll: true)
    let there = WebSocketStream(over: wire, as: .client, .init(pingInterval: nil), on: poller)
    let result = talk(here, there)
    tell(here, .hasBytesAvailable)
    let asked = wire.written.count
    pass(.milliseconds(499))
    #expect(wire.written.count == asked)
    wire.willRead(.bytes([0x82, 1, 66]))
    tell(wire, .hasBytesAvailable)
    #expect(here.written == [66])
    pass(.milliseconds(499))
    #expect(wire.written.count == asked)
    pass(.milliseconds(2))
    #expect(wire.written.count == asked + 8 && wire.written[asked] == 0x88 && !wire.isClosed && result.words.isEmpty)
    wire.willRead(.bytes([0x82, 1, 67, 0x88, 2, 3, 0xE8]))
    tell(wire, .hasBytesAvailable)
    pass(.milliseconds(1))
    #expect(here.written == [66, 67] && wire.isClosed && result.words == ["we left"])
  }

  @Test("waits three seconds for the other side's close, also behind the key that leaves", arguments: [true, false])
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

  @Test("leaves a write that waits for something to read its wait", arguments: [true, false])
  func writeThatReads(isTerminal: Bool) {
    let here = ScriptedStream(reads: [.bytes([1]), .ended], takesAll: true)
    let there = ScriptedStream(writes: [.blocked(until: .readable)])
    let result = talk(here, there, isTerminal ? .atOnce : .whenSilent(.zero))
    tell(here, .hasBytesAvailable)
    #expect(there.writerWaits == .readable && there.written.isEmpty && result.words.isEmpty)
    there.willWrite(.blocked(until: .writable), .moved(1))
    tell(there, .hasSpaceAvailable)
    #expect(there.writerWaits == .writable)
    tell(there, .hasSpaceAvailable)
    #expect(there.written == [1])
  }

  @Test("leaves an endpoint that can't be told when it has been silent, and one that can when it has ended")
  func partings() {
    let there = ScriptedStream(takesAll: true)
    there.canHalfClose = false
    let result = talk(ScriptedStream(reads: [.ended], takesAll: true), there)
    pass(.milliseconds(499))
    #expect(result.words.isEmpty)
    pass(.milliseconds(2))
    #expect(result.words == ["we left"] && !there.finishedWriting)

    let told = ScriptedStream(takesAll: true)
    let other = talk(ScriptedStream(reads: [.ended], takesAll: true), told)
    pass(.seconds(60))
    #expect(told.finishedWriting && other.words.isEmpty)
    told.willRead(.ended)
    tell(told, .hasBytesAvailable)
    #expect(other.words == ["endpoint left"])
  }

  @Test("leaves an endpoint that it has told when it has been silent since its last byte, where that is always wanted")
  func alwaysBySilence() {
    let told = ScriptedStream(takesAll: true)
    let here = ScriptedStream(reads: [.bytes([1]), .ended], takesAll: true)
    let result = talk(here, told, .whenSilent(.milliseconds(500), always: true))
    tell(here, .hasBytesAvailable)
    #expect(told.finishedWriting && told.written == [1])
    pass(.milliseconds(499))
    told.willRead(.bytes([2]))
    tell(told, .hasBytesAvailable)
    pass(.milliseconds(499))
    #expect(result.words.isEmpty && !told.isClosed)
    pass(.milliseconds(2))
    #expect(result.words == ["we left"] && told.isClosed)

    // One that ends before is not waited for.
    let ended = ScriptedStream(takesAll: true)
    let other = talk(
      ScriptedStream(reads: [.ended], takesAll: true), ended, .whenSilent(.milliseconds(500), always: true))
    ended.willRead(.ended)
    tell(ended, .hasBytesAvailable)
    #expect(other.words == ["endpoint left"])
  }
}
