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
    queue.append(ScriptedStream(takesAll: true), label, waitingFor: .turn)
    queue.append(ScriptedStream(takesAll: true), label, waitingFor: .turn)
    queue.append(slow, label, waitingFor: .turn)
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

  @Test("takes a client seriously at its first byte or after a second, and lets a port check go without a word")
  func firstByte() throws {
    let clock = ManualClock()
    let poller = try Poller(clock: clock.clock) { _ in }
    var (left, claims) = (0, 0)
    let queue = ClientQueue(
      on: poller, notice: { _, _ in nil },
      hasLeft: { client, _ in
        client.stream.close()
        left += 1
      }, hasClaimed: { claims += 1 })
    let label = AcceptedConnection.Label(address: nil, listener: "x")
    func connect() throws -> FarEnd {
      let (near, far) = try FarEnd.pair()
      queue.append(DescriptorStream(try near.take(), kind: .socket, on: poller), label, waitingFor: .firstByte)
      return far
    }
    func turn() { for _ in 0..<3 { _ = poller.turn(waiting: 0) } }
    let probe = try connect()
    #expect(queue.count == 1 && queue.wanting == 0)
    probe.close()
    turn()
    #expect(queue.isEmpty && left == 1 && claims == 0)
    let silent = try connect()
    let sender = try connect()
    clock.advance(by: .milliseconds(999))
    poller.timers.fireDue()
    turn()
    #expect(queue.wanting == 0)
    try sender.send([1])
    sender.finishWriting()
    turn()
    #expect(queue.wanting == 1 && claims == 1 && left == 1, "it has sent something, and stays though it has finished")
    let first = try #require(queue.takeFirst())
    #expect(queue.wanting == 0)
    clock.advance(by: .milliseconds(1))
    poller.timers.fireDue()
    #expect(queue.wanting == 1 && claims == 2)
    first.stream.close()
    queue.takeFirst()?.stream.close()
    silent.close()
    sender.close()
  }

  @Test("gives a client with a layer a moment to be no port check")
  func layer() throws {
    let clock = ManualClock()
    let poller = try Poller(clock: clock.clock) { _ in }
    var claims = 0
    let queue = ClientQueue(
      on: poller, notice: { _, _ in nil }, hasLeft: { _, _ in }, hasClaimed: { claims += 1 })
    let label = AcceptedConnection.Label(address: nil, listener: "x")
    let (check, client) = (ScriptedStream(), ScriptedStream())
    for stream in [check, client] {
      queue.append(stream, label, waitingFor: .firstByte)
      stream.delegate?.stream(stream, handle: .hasBytesAvailable)
      #expect(stream.readerWaits == [])
    }
    check.delegate?.stream(check, handle: .inputEnded)
    clock.advance(by: .milliseconds(100))
    poller.timers.fireDue()
    #expect(queue.count == 1 && queue.wanting == 1 && claims == 1)
  }

  @Test("sends a client with a control channel its position in an event")
  func controlChannel() throws {
    let clock = ManualClock()
    let poller = try Poller(clock: clock.clock) { _ in }
    let queue = ClientQueue(on: poller, notice: { _, _ in nil }, hasLeft: { _, _ in })
    let label = AcceptedConnection.Label(address: nil, listener: "x")
    queue.append(ScriptedStream(takesAll: true), label, waitingFor: .turn)
    let client = ScriptedControlStream()
    queue.append(client, label, waitingFor: .turn)
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
      queue.append(stream, AcceptedConnection.Label(address: nil, listener: "x"), waitingFor: .turn)
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
