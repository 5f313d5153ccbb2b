// Messages after the handshake that arrive in pieces: a server's tickets. A write in the middle of one reads the rest
// of it first.

import ByteStreams
import StreamTestKit
import Testing

@testable import StreamTLS

@Suite("A TLS stream in the middle of a ticket", .timeLimit(.minutes(5)))
struct TLSPiecesTests {
  /// A client's stream that has read the first record of a ticket, and no more. The test carries further bytes from
  /// `server`'s `far` to `near`.
  private struct Rig {
    let near: FarEnd
    let far: FarEnd
    let server: TLSFarEnd
    let stream: TLSStream
  }

  /// The ticket contains the client's certificate, so many `names` make it long.
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

  /// Carries a TLS 1.3 handshake between the two, up to and including the first record that the server sends after it.
  /// Blocks.
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

  @Test("delays writes until the rest has arrived")
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

  @Test("reports payload that a write has read along with the rest")
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
      try near.send(rest)  // the write comes before the lane polls
      let write = try stream.write([1, 2, 3])
      #expect(write == .moved(3))
      try #require(stream.hasBufferedInput)
      await gate.wait(on: lane)
      #expect(recorder.events == [.hasBytesAvailable])
      #expect(try await stream.read(exactly: 1, on: lane) == [9])
    }
  }

  @Test("fails writes, instead of waiting forever, after too many such messages")
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
        #expect(sent.count < 16_384)  // fits into one read of ours, so nothing is refused before the last record
        try near.send(sent.prefix(Self.lastRecord(of: sent)))
      }
      // The failure is kept for the next read; a reader whose ring is full may read much later.
      let read = try stream.read()
      #expect(read == .moved(1) && stream.hasBufferedInput)
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
