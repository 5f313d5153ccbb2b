// The queue of clients by itself, on a manual clock: which notices each client gets, and when.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A queue of clients", .timeLimit(.minutes(5)))
struct ClientQueueTests {
  @Test("finishes each line that it has begun, before the next line and before the client's session starts")
  func wholeLines() throws {
    let clock = ManualClock()
    let poller = try Poller(clock: clock.clock) { _ in }
    let queue = ClientQueue(on: poller, notice: { place, _ in "number \(place)" }, hasLeft: { _, _ in })
    let label = AcceptedConnection.Label(address: nil, listener: "x")
    let slow = ScriptedStream(writes: [.moved(3), .blocked(until: .writable)])
    queue.append(ScriptedStream(takesAll: true), label, mayLeave: true)
    queue.append(ScriptedStream(takesAll: true), label, mayLeave: true)
    queue.append(slow, label, mayLeave: true)
    #expect(slow.written == Array("num".utf8) && slow.writerWaits == .writable)
    for _ in 0..<2 {  // it moves up twice meanwhile
      _ = queue.takeFirst()
      clock.advance(by: .seconds(2))
      poller.timers.fireDue()
    }
    #expect(slow.written.count == 3)
    slow.willWrite(.moved(100), .moved(4), .blocked(until: .writable))
    slow.delegate?.stream(slow, handle: .hasSpaceAvailable)
    #expect(slow.written == Array("number 3\r\nnumb".utf8))
    let client = try #require(queue.takeFirst())
    #expect(client.unsent == Array("er 1\r\n".utf8) && slow.writerWaits == [] && queue.isEmpty)
  }

  @Test("sends a client with a control channel its position in an event")
  func controlChannel() throws {
    let clock = ManualClock()
    let poller = try Poller(clock: clock.clock) { _ in }
    let queue = ClientQueue(on: poller, notice: { _, _ in nil }, hasLeft: { _, _ in })
    let label = AcceptedConnection.Label(address: nil, listener: "x")
    queue.append(ScriptedStream(takesAll: true), label, mayLeave: true)
    let client = ScriptedControlStream()
    queue.append(client, label, mayLeave: true)
    _ = queue.takeFirst()
    poller.timers.fireDue()
    #expect(client.news() == [#"{"event":"queue","place":2}"#, #"{"event":"queue","place":1}"#])
    #expect(client.written == [])
  }

  @Test("sends new positions to all clients that moved up, first at once, then at most once a second")
  func seldom() throws {
    let clock = ManualClock()
    let poller = try Poller(clock: clock.clock) { _ in }
    let queue = ClientQueue(on: poller, notice: { place, _ in "\(place)" }, hasLeft: { _, _ in })
    let last = ScriptedStream(takesAll: true)
    for number in 1...10 {
      let stream = number == 10 ? last : ScriptedStream(takesAll: true)
      queue.append(stream, AcceptedConnection.Label(address: nil, listener: "x"), mayLeave: true)
    }
    for _ in 0..<2 { _ = queue.takeFirst() }
    poller.timers.fireDue()
    for _ in 0..<3 { _ = queue.takeFirst() }
    poller.timers.fireDue()
    #expect(String(decoding: last.written, as: UTF8.self) == "10\r\n8\r\n")
    clock.advance(by: .seconds(1))
    poller.timers.fireDue()
    #expect(String(decoding: last.written, as: UTF8.self) == "10\r\n8\r\n5\r\n")
  }
}
