// What is discarded when the last client leaves.

import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A link that is flushed after its last client", .timeLimit(.minutes(5)))
struct LinkFlushTests {
  /// Always open, so that there is still a link when all clients have left. The device takes two bytes and then no
  /// more.
  private func rig(
    _ flush: Config.Device.Flush = .disconnect, unsent: [Int] = []
  ) throws -> (rig: LinkRig, endpoint: ScriptedStream, line: ScriptedLine) {
    let rig = try LinkRig { device in
      device.open = .always
      device.flush = flush
    }
    rig.link.start()
    let line = ScriptedLine(unsent: unsent)
    let endpoint = ScriptedStream(writes: [.moved(2), .blocked(until: .writable)], takesAll: true)
    endpoint.serialLine = line
    rig.openings[0].succeed(endpoint)
    return (rig, endpoint, line)
  }

  private func join(_ rig: LinkRig, _ steps: ScriptedStream.Step...) -> (stream: ScriptedStream, session: Session) {
    let stream = ScriptedStream(reads: steps, takesAll: true)
    stream.hasBufferedInput = true
    let session = rig.join(stream)
    rig.wakeReader(stream)
    return (stream, session)
  }

  @Test("discards what the device has not taken, in the ring and in the port, and counts both")
  func flushes() throws {
    let (rig, endpoint, line) = try rig(unsent: [40])
    let (_, session) = join(rig, .moved(10), .failed(SystemError("read", ECONNRESET)))
    #expect(rig.ending(of: session) == .clientLost && session.up.bytes == 2 && session.dropped == 8)
    #expect(line.purges == [.output, .both])
    for _ in 0..<4 { line.answer() }
    #expect(rig.dropped == 40 && rig.link.status == .open)
    rig.wakeWriter(endpoint)
    #expect(endpoint.written.count == 2)
  }

  @Test("holds back a new client's input until the port's queue is empty, since the flush would discard it")
  func newcomer() throws {
    let (rig, endpoint, line) = try rig()
    _ = join(rig, .moved(10), .failed(SystemError("read", ECONNRESET)))
    let (stream, session) = join(rig, .bytes([1, 2, 3]))
    #expect(endpoint.written.count == 2)
    for _ in 0..<4 {
      #expect(session.up.bytes == 0)
      line.answer()
    }
    #expect(endpoint.written.suffix(3) == [1, 2, 3] && session.up.bytes == 3)
    stream.willRead(.bytes([4]))
    rig.wakeReader(stream)
    #expect(session.up.bytes == 4 && line.asked == 0)
  }

  @Test("counts a client that has sent FIN as gone")
  func halfClosed() throws {
    let (rig, endpoint, line) = try rig()
    let (stream, session) = join(rig, .moved(10), .ended)
    #expect(session.isHalfClosed && session.dropped == 8 && line.purges == [.output])
    endpoint.willRead(.moved(5))
    rig.wakeReader(endpoint)
    #expect(stream.written.count == 5, "he may be there still, and hears")
    rig.pass(.seconds(31))
    rig.pass(.seconds(31))
    #expect(rig.ending(of: session) == .clientLeft && session.dropped == 8 && line.purges == [.output, .both])
  }

  @Test("flushes when the last client closes while its ring is full, without waiting for room")
  func behindAFullRing() throws {
    let (rig, _, line) = try rig()
    let (stream, session) = join(rig, .moved(1000), .ended)
    #expect(stream.readerWaits == [] && session.dropped == 0)
    rig.report(stream, .inputEnded)
    #expect(line.purges == [.output])
    for _ in 0..<20 { rig.wakeReader(stream) }
    #expect(session.isHalfClosed && session.up.bytes == 2 && session.dropped == 998)
  }

  @Test("flushes nothing while another client may still send")
  func notTheLast() throws {
    let (rig, endpoint, line) = try rig()
    let (other, _) = join(rig)
    let (_, session) = join(rig, .moved(10), .ended)
    #expect(session.dropped == 0 && line.purges.isEmpty)
    rig.wakeWriter(endpoint)
    #expect(endpoint.written == pattern(0..<10))
    other.willRead(.ended)
    rig.wakeReader(other)
    #expect(line.purges == [.output])
  }

  @Test("is not flushed where the policy does not ask for it", arguments: [Config.Device.Flush.connect, .none])
  func unasked(flush: Config.Device.Flush) throws {
    let (rig, endpoint, line) = try rig(flush)
    let (_, session) = join(rig, .moved(10), .failed(SystemError("read", ECONNRESET)))
    #expect(rig.ending(of: session) == nil)
    rig.wakeWriter(endpoint)
    #expect(rig.ending(of: session) == .clientLost && endpoint.written == pattern(0..<10) && line.purges.isEmpty)
  }

  @Test("forgets output that no client has received, which would otherwise be kept for the next client")
  func withoutClients() throws {
    for flush in [Config.Device.Flush.disconnect, .none] {
      let (rig, endpoint, line) = try rig(flush)
      let (stream, _) = join(rig, .ended)
      stream.willWrite(.blocked(until: .writable))
      endpoint.willRead(.moved(5))
      rig.wakeReader(endpoint)
      rig.pass(.seconds(31))  // the client took none of it
      while line.asked > 0 { line.answer() }
      #expect(join(rig).stream.written.count == (flush == .none ? 5 : 0), "\(flush)")
    }
  }

  @Test(
    "leaves no silence after bytes that the flush has discarded", arguments: [Config.Device.Flush.disconnect, .none])
  func silence(flush: Config.Device.Flush) throws {
    let rig = try LinkRig(packets: Config.Packets(idle: .milliseconds(20), max: nil, delimiter: nil)) { device in
      device.open = .always
      device.flush = flush
      device.onClose = [7]
    }
    rig.link.start()
    let line = ScriptedLine()
    line.settings = LineSettings(bitsPerSecond: 1000)  // 10 ms for each character
    let endpoint = ScriptedStream(takesAll: true)
    endpoint.closeBehavior.canHalfClose = false
    endpoint.serialLine = line
    rig.openings[0].succeed(endpoint)
    _ = join(rig, .moved(10), .failed(SystemError("read", ECONNRESET)))
    while line.asked > 0 { line.answer() }
    rig.link.stop(Ending(.shutdown))
    for _ in 0..<21 {
      while line.asked > 0 { line.answer() }
      rig.pass(.milliseconds(1))
    }
    let sent = pattern(0..<10)
    #expect(endpoint.written == (flush == .none ? sent : sent + [7]))
    for _ in 0..<101 {
      while line.asked > 0 { line.answer() }
      rig.pass(.milliseconds(1))
    }
    #expect(endpoint.written == sent + [7])
  }

  @Test("sends its 'on-close' bytes after the flush")
  func endpointDrain() throws {
    let rig = try LinkRig { device in
      device.flush = .disconnect
      device.onClose = [7]
    }
    let client = ScriptedStream(reads: [.moved(10), .failed(SystemError("read", ECONNRESET))])
    client.hasBufferedInput = true
    rig.join(client)
    let line = ScriptedLine()
    let endpoint = ScriptedStream(writes: [.moved(2), .blocked(until: .writable)], takesAll: true)
    endpoint.closeBehavior.canHalfClose = false
    endpoint.serialLine = line
    rig.openings[0].succeed(endpoint)
    rig.wakeReader(client)
    for _ in 0..<5 {  // the port's unsent count and its end, twice, and a final check
      #expect(endpoint.written.count == 2)
      line.answer()
    }
    #expect(endpoint.written.suffix(1) == [7] && !endpoint.isClosed)
    line.answer()
    #expect(line.purges == [.output, .both] && endpoint.isClosed && rig.link.status == .closed)
  }
}
