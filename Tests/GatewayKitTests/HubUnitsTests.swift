// Streams of units (TLS records, frames), buffered input and datagrams on both sides of a hub.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A hub with streams of units", .timeLimit(.minutes(5)))
struct HubUnitsTests {
  /// A unit of the framing stream on the wire.
  private func unit(_ bytes: [UInt8]) -> [UInt8] { [UInt8(bytes.count >> 8), UInt8(bytes.count & 255)] + bytes }

  @Test("forwards the end only after the client's last unit is sent, and does not spin meanwhile")
  func heldByClient() throws {
    let rig = try HubRig(isShared: false)
    rig.keepsEndedEndpoint = true
    let wire = ScriptedStream(writes: [.moved(1), .blocked(until: .writable)], takesAll: true)
    let session = rig.join(FramingStream(over: wire))
    let endpoint = ScriptedStream(reads: [.bytes([1, 2, 3]), .ended])
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    rig.wakeReader(endpoint)
    #expect(session.down.bytes == 3 && !wire.finishedWriting)
    rig.wakeWriter(wire)
    #expect(wire.written == unit([1, 2, 3]) && wire.finishedWriting)
    #expect(wire.writerWaits == [], "nothing is left to write, so nothing is waited for")
  }

  @Test("reads bytes that an endpoint sent with its handshake, which no event reports")
  func early() throws {
    let rig = try HubRig()
    let client = ScriptedStream(takesAll: true)
    rig.join(client)
    let endpoint = ScriptedStream(reads: [.bytes([1, 2, 3])])
    endpoint.hasBufferedInput = true
    rig.hub.attach(endpoint)
    endpoint.hasBufferedInput = false
    rig.poller.runAgain()
    #expect(client.written == [1, 2, 3])
  }

  @Test("waits for nothing when a blocked client's last unit is sent and the ring is given back")
  func noSpin() throws {
    let rig = try HubRig()
    let wire = ScriptedStream(writes: [.moved(1), .blocked(until: .writable)])
    rig.join(FramingStream(over: wire))
    let endpoint = ScriptedStream(reads: [.bytes([1, 2, 3]), .bytes([4, 5])])
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)  // the first unit is taken and held …
    wire.willWrite(.blocked(until: .writable))
    rig.wakeReader(endpoint)  // … so the next is blocked, and the ring keeps it
    wire.willWrite(.moved(4), .moved(1), .blocked(until: .writable))
    rig.wakeWriter(wire)  // now it is taken and held as well: the ring goes back
    wire.willWrite(.moved(100))
    rig.wakeWriter(wire)
    #expect(wire.written == unit([1, 2, 3]) + unit([4, 5]))
    #expect(wire.writerWaits == [])
  }

  @Test("ends a session only after its client's last unit is sent, within a time limit")
  func leaving() throws {
    for isStuck in [false, true] {
      let rig = try HubRig(drain: .seconds(5))
      let wire = ScriptedStream(writes: [.moved(1), .blocked(until: .writable)])
      let session = rig.join(FramingStream(over: wire))
      let endpoint = ScriptedStream(reads: [.bytes([1, 2, 3])])
      rig.hub.attach(endpoint)
      rig.wakeReader(endpoint)
      rig.hub.leaveAll(Ending(.shutdown))
      #expect(rig.ending(of: session) == nil)
      if isStuck {
        rig.advance(by: .seconds(6), step: .seconds(1))
      } else {
        wire.willWrite(.moved(100))
        rig.wakeWriter(wire)
        rig.advance(by: .milliseconds(20))
        #expect(wire.written == unit([1, 2, 3]))
      }
      #expect(rig.ending(of: session) == .shutdown)
    }
  }

  @Test("forwards a client's end only after the endpoint's last unit is sent")
  func heldByEndpoint() throws {
    let rig = try HubRig(isShared: false)
    rig.keepsEndedEndpoint = true
    let client = ScriptedStream(reads: [.bytes([1, 2]), .ended], takesAll: true)
    client.hasBufferedInput = true
    rig.join(client)
    let wire = ScriptedStream(writes: [.moved(1), .blocked(until: .writable)], takesAll: true)
    rig.hub.attach(FramingStream(over: wire))
    rig.wakeReader(client)
    #expect(!wire.finishedWriting)
    rig.wakeWriter(wire)
    #expect(wire.written == unit([1, 2]) && wire.finishedWriting && wire.writerWaits == [])
  }

  @Test("moves buffered input of a client or an endpoint though epoll reports nothing")
  func hiddenBytes() throws {
    let rig = try HubRig()
    // Everything arrives in one read from below; epoll would report it once.
    let units = (0..<40).map { unit([UInt8($0)]) }
    let clientWire = ScriptedStream(reads: [.bytes(Array(units.joined()))], takesAll: true)
    let deviceWire = ScriptedStream(reads: [.bytes(Array(units.joined()))], takesAll: true)
    let session = rig.join(FramingStream(over: clientWire))
    rig.hub.attach(FramingStream(over: deviceWire))
    rig.wakeReader(clientWire)
    rig.wakeReader(deviceWire)
    for _ in 0..<100 where rig.poller.hasAgain { rig.poller.runAgain() }
    #expect(session.up.bytes == 40 && session.down.bytes == 40 && !rig.poller.hasAgain)
  }

  @Test("reads a datagram only with room for a whole one, however slow the client is")
  func datagrams() throws {
    var random = SeededRandom()
    let rig = try HubRig(buffer: 20)
    let datagrams = (0..<300).map { _ in random.bytes(Int.random(in: 1...10, using: &random)) }
    let all = Array(datagrams.joined())
    let endpoint = DatagramStream(datagrams, largestUnit: 10)
    let client = ScriptedStream()
    rig.join(client)
    rig.hub.attach(endpoint)
    for _ in 0..<100_000 where client.written.count < all.count {
      rig.wakeReader(endpoint)
      client.willWrite(.moved(Int.random(in: 1...7, using: &random)), .blocked(until: .writable))
      rig.wakeWriter(client)
    }
    #expect(endpoint.lost == 0 && client.written == all, "\(random)")
  }
}
