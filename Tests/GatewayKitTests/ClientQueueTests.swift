// A line of clients by itself, on a clock turned by hand: what each is told, and when.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A line of clients", .timeLimit(.minutes(1)))
struct ClientQueueTests {
  @Test("finishes each line that it has begun, before the next and before all that comes when it is his turn")
  func wholeLines() throws {
    let clock = ManualClock()
    let poller = try Poller(clock: clock.clock) { _ in }
    let queue = ClientQueue(on: poller, notice: { place, _ in "number \(place)" }, hasLeft: { _, _ in })
    let label = Arrival.Label(address: nil, listener: "x")
    let slow = ScriptedStream(writes: [.moved(3), .blocked(until: .writable)])
    queue.append(ScriptedStream(takesAll: true), label, mayLeave: true)
    queue.append(ScriptedStream(takesAll: true), label, mayLeave: true)
    queue.append(slow, label, mayLeave: true)
    #expect(slow.written == Array("num".utf8) && slow.writerWaits == .writable)
    for _ in 0..<2 {  // he moves up twice meanwhile
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

  @Test("tells one with a desk his place in an event")
  func desk() throws {
    let clock = ManualClock()
    let poller = try Poller(clock: clock.clock) { _ in }
    let queue = ClientQueue(on: poller, notice: { _, _ in nil }, hasLeft: { _, _ in })
    let label = Arrival.Label(address: nil, listener: "x")
    queue.append(ScriptedStream(takesAll: true), label, mayLeave: true)
    let client = DeskStream()
    queue.append(client, label, mayLeave: true)
    _ = queue.takeFirst()
    poller.timers.fireDue()
    #expect(client.news() == [#"{"event":"queue","place":2}"#, #"{"event":"queue","place":1}"#])
    #expect(client.written == [])
  }

  @Test("tells all who moved up together, at once the first time and then not more often than once a second")
  func seldom() throws {
    let clock = ManualClock()
    let poller = try Poller(clock: clock.clock) { _ in }
    let queue = ClientQueue(on: poller, notice: { place, _ in "\(place)" }, hasLeft: { _, _ in })
    let last = ScriptedStream(takesAll: true)
    for number in 1...10 {
      let stream = number == 10 ? last : ScriptedStream(takesAll: true)
      queue.append(stream, Arrival.Label(address: nil, listener: "x"), mayLeave: true)
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
