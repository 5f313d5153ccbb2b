// The hub's two directions: output goes to all clients, and the input of many clients is written in turns.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A hub", .timeLimit(.minutes(5)))
struct HubTests {
  // MARK: - Down

  @Test("gives every client all of the endpoint's output, in the turn that read it")
  func fanOut() throws {
    let rig = try HubRig()
    let clients = (0..<5).map { _ in ScriptedStream(takesAll: true) }
    for client in clients { rig.join(client) }
    let endpoint = ScriptedStream(reads: [.moved(40)])
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    for client in clients { #expect(client.written == pattern(0..<40)) }
    #expect(rig.hub.sessions.allSatisfy { $0.down.bytes == 40 && $0.dropped == 0 })
  }

  @Test("keeps output for a blocked client that the others already have, and resumes where that client stopped")
  func cursors() throws {
    let rig = try HubRig()
    let slow = ScriptedStream(writes: [.moved(3), .blocked(until: .writable)], takesAll: true)
    let quick = ScriptedStream(takesAll: true)
    let session = rig.join(slow)
    rig.join(quick)
    let endpoint = ScriptedStream(reads: [.moved(10), .blocked(until: .readable), .moved(10)])
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    rig.wakeReader(endpoint)
    rig.wakeReader(endpoint)
    #expect(quick.written == pattern(0..<20) && slow.written == pattern(0..<3))
    rig.wakeWriter(slow)
    #expect(slow.written == pattern(0..<20) && slow.writerWaits == [])
    #expect(session.down.bytes == 20)
  }

  @Test("owns no ring while every client has all output")
  func ringGivenBack() throws {
    let rig = try HubRig()
    let client = ScriptedStream(writes: [.blocked(until: .writable)], takesAll: true)
    rig.join(client)
    let endpoint = ScriptedStream(reads: [.moved(10)])
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    // The pool has at most one ring per hub, so one that can be borrowed again was given back.
    let while1 = try rig.poller.rings.borrow(capacity: 64)
    rig.wakeWriter(client)
    let after = try rig.poller.rings.borrow(capacity: 64)
    #expect(while1 !== after)
    rig.poller.rings.giveBack(after)
    #expect(try rig.poller.rings.borrow(capacity: 64) === after)
    #expect(rig.hub.head == 10 && client.written == pattern(0..<10))
  }

  @Test("gives new clients the backlog first, and the backlog never delays the endpoint")
  func backlog() throws {
    let rig = try HubRig(buffer: 8, backlog: 16)
    rig.join(ScriptedStream(takesAll: true))
    let endpoint = ScriptedStream(reads: [.moved(100)])
    rig.hub.attach(endpoint)
    for _ in 0..<20 { rig.wakeReader(endpoint) }
    #expect(rig.hub.head == 100 && endpoint.readerWaits == .readable)
    let newcomer = ScriptedStream(takesAll: true)
    rig.join(newcomer)
    #expect(newcomer.written == pattern(84..<100))
    endpoint.willRead(.moved(4))
    rig.wakeReader(endpoint)
    #expect(newcomer.written == pattern(84..<104))
  }

  @Test("sends a backlog that is not full from its first byte")
  func shortBacklog() throws {
    let rig = try HubRig(buffer: 8, backlog: 16)
    let endpoint = ScriptedStream(reads: [.moved(5)])
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    let newcomer = ScriptedStream(takesAll: true)
    rig.join(newcomer)
    #expect(newcomer.written == pattern(0..<5))
  }

  @Test(
    "lets a lone client delay the endpoint without limit",
    arguments: [Config.Clients.Slow.automatic, .block])
  func alone(slow: Config.Clients.Slow) throws {
    let rig = try HubRig(slow: slow)
    let client = ScriptedStream()
    let session = rig.join(client)
    let endpoint = ScriptedStream(reads: [.moved(1000)])
    rig.hub.attach(endpoint)
    for _ in 0..<10 { rig.wakeReader(endpoint) }
    #expect(endpoint.readerWaits == [] && rig.hub.head <= 64)
    rig.advance(by: .seconds(120), step: .seconds(1))
    #expect(rig.ending(of: session) == nil)
    client.willWrite(.moved(64))
    rig.wakeWriter(client)
    #expect(endpoint.readerWaits == .readable || rig.hub.head > 64)
  }

  @Test(
    "drops a line's output while no client is connected, or keeps it for the first client", arguments: [true, false])
  func withoutClients(drops: Bool) throws {
    let rig = try HubRig(dropsWithoutClients: drops)
    let endpoint = ScriptedStream(reads: [.moved(100)])
    rig.hub.attach(endpoint)
    for _ in 0..<10 { rig.wakeReader(endpoint) }
    #expect(endpoint.readerWaits == (drops ? .readable : []))
    let client = ScriptedStream(takesAll: true)
    rig.join(client)
    rig.wakeReader(endpoint)
    #expect(client.written == (drops ? [] : pattern(0..<100)))
  }

  @Test("drops the unread output of a link that closed because no client needed it")
  func unheardOfClosedLink() throws {
    let rig = try HubRig(dropsWithoutClients: false)
    let endpoint = ScriptedStream(reads: [.moved(30)])
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    rig.hub.detach()?.close()
    rig.hub.downstream.dropWithoutClients()
    let client = ScriptedStream(takesAll: true)
    rig.join(client)
    #expect(client.written.isEmpty)
  }

  @Test("continues with the next endpoint where a blocked client stopped receiving from the last one")
  func nextEndpoint() throws {
    let rig = try HubRig()
    let client = ScriptedStream(writes: [.moved(2), .blocked(until: .writable)], takesAll: true)
    rig.join(client)
    let first = ScriptedStream(reads: [.moved(10), .ended])
    rig.hub.attach(first)
    rig.wakeReader(first)
    rig.wakeReader(first)
    #expect(rig.losses == [nil] && first.isClosed)
    let second = ScriptedStream(reads: [.bytes([1, 2, 3])])
    rig.hub.attach(second)
    rig.wakeReader(second)
    rig.wakeWriter(client)
    #expect(client.written == pattern(0..<10) + [1, 2, 3])
  }

  @Test("reads the endpoint's last output before it reports a failed write")
  func outputBeforeFailedWrite() throws {
    let rig = try HubRig()
    let client = ScriptedStream(reads: [.bytes([9])], takesAll: true)
    rig.join(client)
    let endpoint = ScriptedStream(
      reads: [.moved(12), .ended], writes: [.failed(SystemError("write", 32))])
    rig.hub.attach(endpoint)
    rig.wakeReader(client)
    rig.wakeReader(endpoint)
    #expect(client.written == pattern(0..<12))
    #expect(rig.losses.map(\.?.name) == ["EPIPE"])
  }

  // MARK: - Up

  @Test("lets a client write directly only while no input of others is kept")
  func straightThrough() throws {
    let rig = try HubRig()
    let first = ScriptedStream(reads: [.bytes([1, 1])])
    let second = ScriptedStream(reads: [.bytes([2, 2])])
    rig.join(first)
    rig.join(second)
    let endpoint = ScriptedStream(writes: [.blocked(until: .writable)], takesAll: true)
    rig.hub.attach(endpoint)
    rig.wakeReader(first)
    rig.wakeReader(second)
    #expect(endpoint.written.isEmpty && endpoint.writeCalls == 1)
    rig.wakeWriter(endpoint)
    #expect(endpoint.written == [1, 1, 2, 2] && endpoint.writerWaits == [])
  }

  @Test("serves writers in the order they were blocked, 4 KiB per turn")
  func turns() throws {
    let rig = try HubRig(buffer: 65536)
    let clients = (0..<3).map { number in
      ScriptedStream(reads: [
        .bytes(.init(repeating: UInt8(number), count: 10_000)), .bytes(.init(repeating: UInt8(number), count: 10_000)),
      ])
    }
    for client in clients { rig.join(client) }
    let endpoint = ScriptedStream(writes: [.blocked(until: .writable)], takesAll: true)
    rig.hub.attach(endpoint)
    for client in clients { rig.wakeReader(client) }
    rig.wakeWriter(endpoint)
    let runs = runLengths(endpoint.written)
    #expect(runs.prefix(6).map(\.byte) == [0, 1, 2, 0, 1, 2])
    #expect(runs.prefix(6).allSatisfy { $0.length == 4096 })
  }

  @Test("keeps a writer's turn when the endpoint is full at that moment")
  func keptTurn() throws {
    let rig = try HubRig(buffer: 16384)
    let clients = (0..<2).map { ScriptedStream(reads: [.bytes(.init(repeating: UInt8($0), count: 16384))]) }
    for client in clients { rig.join(client) }
    let endpoint = ScriptedStream()
    rig.hub.attach(endpoint)
    for client in clients { rig.wakeReader(client) }
    for _ in 0..<4 {
      endpoint.willWrite(.moved(4096))  // as ttys do: some bytes, then nothing
      rig.wakeWriter(endpoint)
    }
    #expect(runLengths(endpoint.written).map(\.byte) == [0, 1, 0, 1])
  }

  @Test("gives a writer no second turn when its small ring is empty and it has more")
  func secondHelping() throws {
    let rig = try HubRig(buffer: 4096)
    let clients = (0..<2).map { number in
      ScriptedStream(reads: (0..<8).map { _ in .bytes(.init(repeating: UInt8(number), count: 4096)) })
    }
    for client in clients { rig.join(client) }
    let endpoint = ScriptedStream(writes: [.blocked(until: .writable)], takesAll: true)
    rig.hub.attach(endpoint)
    for client in clients { rig.wakeReader(client) }
    rig.wakeWriter(endpoint)
    #expect(runLengths(endpoint.written).prefix(8).allSatisfy { $0.length == 4096 })
  }

  @Test("keeps input while there is no endpoint, up to the buffer, and delivers it to the next")
  func absentEndpoint() throws {
    let rig = try HubRig(buffer: 8)
    let client = ScriptedStream(reads: [.moved(20)])
    let session = rig.join(client)
    rig.wakeReader(client)
    #expect(client.readerWaits == [] && session.pump.count == 8)
    let endpoint = ScriptedStream(takesAll: true)
    rig.hub.attach(endpoint)
    #expect(endpoint.written == pattern(0..<20) && session.up.bytes == 20)
  }

  @Test("delivers what a client sent before its stream failed, though the endpoint was blocked")
  func inputBeforeReset() throws {
    let rig = try HubRig()
    let client = ScriptedStream(reads: [.moved(5), .failed(SystemError("read", 104))])
    client.hasBufferedInput = true  // so that one turn reads both
    let session = rig.join(client)
    let endpoint = ScriptedStream(writes: [.blocked(until: .writable)], takesAll: true)
    rig.hub.attach(endpoint)
    rig.wakeReader(client)
    #expect(rig.ending(of: session) == nil)
    rig.wakeWriter(endpoint)
    #expect(endpoint.written == pattern(0..<5))
    #expect(rig.ending(of: session) == .clientLost && session.up.bytes == 5 && session.dropped == 0)
  }

  private func runLengths(_ bytes: [UInt8]) -> [(byte: UInt8, length: Int)] {
    var runs: [(byte: UInt8, length: Int)] = []
    for byte in bytes {
      if runs.last?.byte == byte { runs[runs.count - 1].length += 1 } else { runs.append((byte, 1)) }
    }
    return runs
  }
}
