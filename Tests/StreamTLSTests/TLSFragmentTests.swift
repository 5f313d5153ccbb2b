// Small records, for clients that ask for them.

import ByteStreams
import COpenSSL
import Glibc
import StreamTestKit
import Testing

@testable import StreamTLS

@Suite("A TLS stream of small records", .timeLimit(.minutes(5)))
struct TLSFragmentTests {
  /// A client that asks for fragments of 512 bytes; with a `cipher` it uses TLS 1.2, with the cipher of the largest
  /// overhead.
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
      while !stream.hasPendingOutput { if case .moved(let count) = try stream.write(chunk) { sent += count } }
      #expect(stream.undelivered.onItsWay > 0)
      // The peer sends while our output is blocked. If we did not read, both sides would wait forever.
      let said = (0..<100_000).map { UInt8(truncatingIfNeeded: $0) }
      async let spoken: Void = onOwnThread { try far.send(said) }
      #expect(try await stream.read(exactly: said.count, on: lane) == said)
      try await spoken
      #expect(stream.hasPendingOutput)
      let total = sent
      #expect(try await onOwnThread { try far.receive(exactly: total) }.allSatisfy { $0 == 0x55 })
    }
  }
}
