// Messages behind the handshake that come in pieces: a server's tickets. A write in the middle of one reads the rest of it first.

import ByteStreams
import StreamTestKit
import Testing

@testable import StreamTLS

@Suite("A TLS stream in the middle of a ticket", .timeLimit(.minutes(1)))
struct TLSPiecesTests {
  /// A client's stream that has read the first record of a ticket, and no more. What goes on is carried by the test, from
  /// `server`'s `far` to `near`.
  private struct Rig {
    let near: FarEnd
    let far: FarEnd
    let server: TLSFarEnd
    let stream: TLSStream
  }

  /// A server keeps its client's certificate in the ticket: with many `names` that is long.
  private static func rig(names: Int, on lane: isolated Lane) async throws -> Rig {
    let rig = try TLSRig()
    let (near, nearWire) = try FarEnd.pair()
    let (farWire, far) = try FarEnd.pair()
    var manner = TLSFarEnd.Manner()
    let issued = try rig.authority.issue(.init("gw.test", names: "DNS:gw.test"))
    (manner.isServer, manner.isFragmented, manner.authority) = (true, true, rig.authority.pem)
    (manner.certificate, manner.key) = (issued.certificate, issued.key)
    let server = try TLSFarEnd(try far.take(), manner)
    let names = (0..<names).map { "DNS:a-name-of-some-length-\($0).test" }.joined(separator: ",")
    let own = try rig.authority.write("client", .init("ada", names: names), to: rig.folder)
    var settings = TLSClientSettings()
    settings.ca = rig.folder / "ca.pem"
    settings.identity = TLSIdentity(certificate: own.certificate, key: own.key)
    let context = try TLSClientContext(settings)
    async let greeted: Void = onOwnThread { try server.handshake() }
    async let carried: Void = onOwnThread { try carryHandshake(nearWire, farWire) }
    let descriptor = try near.take()
    let session = try await shake(try TLSHandshake(context, to: "gw.test", over: descriptor.raw), descriptor.raw)
    let stream = TLSStream(session, over: descriptor, kind: .socket, on: lane.poller)
    try await carried
    try await greeted
    let read = try stream.read()
    #expect(read == .blocked(until: .readable))
    return Rig(near: nearWire, far: farWire, server: server, stream: stream)
  }

  /// Carries a handshake of TLS 1.3 between the two, up to the first record of the server's that follows it. Blocks.
  private static func carryHandshake(_ client: FarEnd, _ server: FarEnd) throws {
    try server.send(client.receive(upTo: 65_536))
    try carry(from: server, to: client, untilThereIsMoreOf: client)
    try carry(from: client, to: server, untilThereIsMoreOf: server)
    let head = try server.receive(exactly: 5)
    let record = try server.receive(exactly: Int(head[3]) << 8 | Int(head[4]))
    #expect(record.count > 500)
    try client.send(head + record)
  }

  private static func carry(from one: FarEnd, to other: FarEnd, untilThereIsMoreOf end: FarEnd) throws {
    repeat { try other.send(one.receive(upTo: 65_536)) } while try one.isFirst(before: end)
  }

  @Test("waits with its writes for the rest")
  func writesWait() async throws {
    try await onLane { lane in
      let rig = try await Self.rig(names: 40, on: lane)
      let (near, far, server, stream) = (rig.near, rig.far, rig.server, rig.stream)
      defer { stream.close() }
      let write = try stream.write([1, 2, 3])
      #expect(write == .blocked(until: .readable))
      let gate = Gate()
      let recorder = EventRecorder { _ in gate.open() }
      stream.delegate = recorder
      stream.writerWaits = .readable
      try await onOwnThread { try near.send(far.receive(upTo: 65_536)) }
      await gate.wait(on: lane)
      stream.writerWaits = []
      #expect(recorder.events.first == .hasSpaceAvailable)
      let again = try stream.write([1, 2, 3])
      #expect(again == .moved(3))
      try await onOwnThread {
        try far.send(near.receive(upTo: 65_536))
        #expect(try server.receive() == [1, 2, 3])
      }
    }
  }

  @Test("tells its reader of payload that a write has read along with the rest")
  func writeReadsPayload() async throws {
    try await onLane { lane in
      let rig = try await Self.rig(names: 40, on: lane)
      let (near, far, server, stream) = (rig.near, rig.far, rig.server, rig.stream)
      defer { stream.close() }
      let rest = try await onOwnThread {
        try server.send([9])
        return try far.receive(upTo: 65_536)
      }
      let gate = Gate()
      let recorder = EventRecorder { _ in gate.open() }
      stream.delegate = recorder
      stream.readerWaits = .readable
      try near.send(rest)  // and the write comes before the lane asks the kernel
      let write = try stream.write([1, 2, 3])
      #expect(write == .moved(3))
      try #require(stream.holdsBytes)
      await gate.wait(on: lane)
      #expect(recorder.events == [.hasBytesAvailable])
      #expect(try await stream.read(exactly: 1, on: lane) == [9])
    }
  }

  @Test("fails to write, and does not wait for good, when it has had enough of such messages")
  func flood() async throws {
    try await onLane { lane in
      let rig = try await Self.rig(names: 3, on: lane)
      let (near, far, server, stream) = (rig.near, rig.far, rig.server, rig.stream)
      defer { stream.close() }
      try await onOwnThread {
        var sent = try far.receive(upTo: 65_536)
        try server.send([9])
        for _ in 0..<18 { try server.sendTicket() }
        sent += try far.receive(upTo: 65_536)
        #expect(sent.count < 16_384)  // one read of ours, so that nothing is refused before the last of it
        try near.send(sent.prefix(Self.lastRecord(of: sent)))
      }
      // The failure is kept for the next read, which a reader whose ring is full may be long in asking for.
      let read = try stream.read()
      #expect(read == .moved(1) && stream.holdsBytes)
      for _ in 0..<2 { #expect(throws: TLSFailure.tooManyKeyUpdates(.server)) { _ = try stream.write([1]) } }
      #expect(throws: TLSFailure.tooManyKeyUpdates(.server)) { _ = try stream.read() }
    }
  }

  /// Where the last record begins.
  private static func lastRecord(of bytes: [UInt8]) -> Int {
    var (place, next) = (0, 0)
    while next + 5 <= bytes.count {
      place = next
      next += 5 + (Int(bytes[next + 3]) << 8 | Int(bytes[next + 4]))
    }
    return place
  }
}
