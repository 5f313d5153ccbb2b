// Small records: of clients who ask for them, and messages that come in pieces.

import ByteStreams
import COpenSSL
import Glibc
import StreamTestKit
import Testing

@testable import StreamTLS

@Suite("A TLS stream of small records", .timeLimit(.minutes(1)))
struct TLSFragmentTests {
  /// A client who asks for fragments of 512 bytes; of TLS 1.2 with a cipher where each costs most.
  private static func rig(cipher: String?) throws -> TLSRig {
    var rig = try TLSRig()
    rig.far.isFragmented = true
    if let cipher {
      rig.far.version = TLS1_2_VERSION...TLS1_2_VERSION
      rig.far.ciphers = cipher
      rig.server.ciphers = [cipher]
    }
    return rig
  }
  static let ciphers = ["ECDHE-ECDSA-AES256-SHA384", "ECDHE-ECDSA-AES128-SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256", nil]

  @Test("loses nothing either way, and keeps their order", arguments: ciphers)
  func bothWays(cipher: String?) async throws {
    let rig = try Self.rig(cipher: cipher)
    try await onLane { lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      if let cipher { #expect(stream.facts.cipher == cipher) }
      async let played: Void = onOwnThread { try far.play(.answerAfterTheEnd) }
      var random = SeededRandom()
      let bytes = random.bytes(1_000_000)
      try await stream.writeAll(bytes, on: lane)
      stream.finishWriting()
      #expect(try await stream.readToEnd(on: lane) == bytes, "\(random)")
      try await played
    }
  }

  @Test("holds one write at most, and is read meanwhile", arguments: ciphers)
  func held(cipher: String?) async throws {
    let rig = try Self.rig(cipher: cipher)
    try await onLane { lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      let chunk = [UInt8](repeating: 0x55, count: TLSStream.mostPerWrite)
      var sent = 0
      while !stream.holdsUnit { if case .moved(let count) = try stream.write(chunk) { sent += count } }
      #expect(stream.unacknowledged > 0)
      // He says something while nothing of ours leaves: if that were not read, both would wait for good.
      let said = (0..<100_000).map { UInt8(truncatingIfNeeded: $0) }
      async let spoken: Void = onOwnThread { try far.send(said) }
      #expect(try await stream.read(exactly: said.count, on: lane) == said)
      try await spoken
      #expect(stream.holdsUnit)
      let total = sent
      #expect(try await onOwnThread { try far.receive(exactly: total) }.allSatisfy { $0 == 0x55 })
    }
  }

  @Test("waits with its writes for the rest of a ticket that comes in pieces")
  func ticketInPieces() async throws {
    let rig = try TLSRig()
    let (near, nearWire) = try FarEnd.pair()
    let (farWire, far) = try FarEnd.pair()
    var manner = TLSFarEnd.Manner()
    let issued = try rig.authority.issue(.init("gw.test", names: "DNS:gw.test"))
    (manner.isServer, manner.isFragmented, manner.authority) = (true, true, rig.authority.pem)
    (manner.certificate, manner.key) = (issued.certificate, issued.key)
    let server = try TLSFarEnd(try far.take(), manner)
    // A server keeps its client's certificate in the ticket, and this one is long.
    let names = (0..<40).map { "DNS:a-name-of-some-length-\($0).test" }.joined(separator: ",")
    let own = try rig.authority.write("client", .init("ada", names: names), to: rig.folder)
    var settings = TLSClientSettings()
    settings.ca = rig.folder / "ca.pem"
    settings.identity = TLSIdentity(certificate: own.certificate, key: own.key)
    let context = try TLSClientContext(settings)
    try await onLane { lane in
      async let greeted: Void = onOwnThread { try server.handshake() }
      async let carried: Void = onOwnThread { try Self.carryHandshake(nearWire, farWire) }
      let descriptor = try near.take()
      let session = try await shake(TLSHandshake(context, to: "gw.test", over: descriptor.raw), descriptor.raw)
      let stream = TLSStream(session, over: descriptor, kind: .socket, on: lane.poller)
      defer { stream.close() }
      try await carried
      try await greeted
      let read = try stream.read()
      #expect(read == .blocked(until: .readable))
      let write = try stream.write([1, 2, 3])
      #expect(write == .blocked(until: .readable))

      let gate = Gate()
      let recorder = EventRecorder { _ in gate.open() }
      stream.delegate = recorder
      stream.writerWaits = .readable
      try await onOwnThread { try nearWire.send(farWire.receive(upTo: 65_536)) }
      await gate.wait(on: lane)
      stream.writerWaits = []
      #expect(recorder.events.first == .hasSpaceAvailable)
      let again = try stream.write([1, 2, 3])
      #expect(again == .moved(3))
      try await onOwnThread {
        try farWire.send(nearWire.receive(upTo: 65_536))
        #expect(try server.receive() == [1, 2, 3])
      }
    }
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
}
