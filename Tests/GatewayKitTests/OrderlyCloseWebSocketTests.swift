// A WebSocket after its session: all bytes that it has taken are sent, and then the close frame, whatever the other
// side sends meanwhile.

import StreamTestKit
import StreamWebSocket
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("An orderly close of a WebSocket", .timeLimit(.minutes(5)))
struct OrderlyCloseWebSocketTests {
  private let clock = ManualClock()
  private let poller: Poller
  private let closing: ClosingStreams
  private static let payload = [UInt8](repeating: 7, count: 100)
  private static let frame: [UInt8] = [0x82, 100] + payload
  private static let ourClose: [UInt8] = [0x88, 2, 0x03, 0xE8]
  // As clients send them: masked, here with zeros.
  private static let theirClose: [UInt8] = [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xE8]
  private static let theirText: [UInt8] = [0x81, 0x82, 0, 0, 0, 0, 0x7B, 0x7D]

  init() throws {
    poller = try Poller(clock: clock.clock) { _ in }
    closing = ClosingStreams(on: poller)
  }

  private func stream(
    over below: ScriptedStream, _ subprotocol: WebSocketSubprotocol? = nil, early: [UInt8] = []
  ) -> WebSocketStream {
    var settings = WebSocketStream.Settings(terms: WebSocketTerms(subprotocol: subprotocol))
    settings.mostControlTexts = 1
    return WebSocketStream(over: below, as: .server, settings, early: early, on: poller)
  }

  /// Runs the lane's turns; every event that the stream waits for happens.
  private func run(_ below: ScriptedStream, _ event: ByteStreamEvent? = nil) {
    if let event { below.delegate?.stream(below, handle: event) }
    for _ in 0..<10 {
      clock.advance(by: .milliseconds(1))
      poller.timers.fireDue()
      poller.runAgain()
    }
  }

  @Test("sends the rest of a held frame after the other side's close frame has arrived")
  func heldFrame() throws {
    let below = ScriptedStream(writes: [.moved(5)])
    let stream = stream(over: below)
    #expect(try Self.payload.withUnsafeBytes { try stream.write($0) } == .moved(100))
    closing.close(stream, otherSideFinished: false)
    below.willRead(.bytes(Self.theirClose))
    run(below, .hasBytesAvailable)
    #expect(stream.receivedClose != nil && !below.isClosed)
    below.willWrite(.moved(50), .blocked(until: .writable), .moved(1000), .moved(1000))
    run(below, .hasSpaceAvailable)
    #expect(!below.isClosed)
    run(below, .hasSpaceAvailable)
    #expect(below.written == Self.frame + Self.ourClose && below.isClosed)
  }

  @Test("drops a held frame that the peer does not take for 30 s")
  func heldForGood() throws {
    let below = ScriptedStream(writes: [.moved(5)])
    let stream = stream(over: below)
    _ = try Self.payload.withUnsafeBytes { try stream.write($0) }
    closing.close(stream, otherSideFinished: false)
    below.willRead(.bytes(Self.theirClose))
    run(below, .hasBytesAvailable)
    for _ in 0..<20 {
      clock.advance(by: .seconds(2))
      poller.timers.fireDue()
    }
    #expect(below.isClosed)
  }

  @Test("reads the other side's close frame after control texts that are not taken")
  func pendingText() throws {
    let below = ScriptedStream(reads: [.bytes(Self.theirText + Self.theirText + Self.theirClose)], takesAll: true)
    let stream = stream(over: below, .baudwayV1)
    #expect(try stream.readSome() == [])
    closing.close(stream, otherSideFinished: false)
    run(below)
    #expect(below.isClosed && stream.receivedClose?.code == 1000 && below.written == Self.ourClose)
  }

  @Test("reads on after a control text that arrived while a frame was held")
  func textBehindHeldFrame() throws {
    let below = ScriptedStream(writes: [.moved(5)])
    let stream = stream(over: below, .baudwayV1)
    _ = try Self.payload.withUnsafeBytes { try stream.write($0) }
    closing.close(stream, otherSideFinished: false)
    below.willRead(.bytes(Self.theirText + [0x82, 0x81, 0, 0, 0, 0, 7]))
    for _ in 0..<2 { run(below, .hasBytesAvailable) }
    #expect(below.readerWaits == [])
    below.willWrite(.moved(1000), .moved(1000))
    run(below, .hasSpaceAvailable)
    #expect(below.written == Self.frame + Self.ourClose && !below.isClosed && below.readerWaits == .readable)
    below.willRead(.bytes(Self.theirClose))
    run(below, .hasBytesAvailable)
    #expect(below.isClosed && stream.receivedClose?.code == 1000)
  }

  @Test("reads again from a stream that already holds the other side's close frame", arguments: [false, true])
  func closeIsInside(hasPendingOutput: Bool) throws {
    let below = hasPendingOutput ? ScriptedStream(writes: [.moved(5)]) : ScriptedStream(takesAll: true)
    let stream = stream(over: below, early: Self.theirClose)
    if hasPendingOutput { _ = try Self.payload.withUnsafeBytes { try stream.write($0) } }
    closing.close(stream, otherSideFinished: false)
    run(below)
    #expect(stream.receivedClose != nil && below.isClosed != hasPendingOutput)
    below.willWrite(.moved(1000), .moved(1000))
    if hasPendingOutput { run(below, .hasSpaceAvailable) }
    #expect(below.isClosed && below.written == (hasPendingOutput ? Self.frame : []) + Self.ourClose)
  }
}
