// Handshakes as a server: what is negotiated, which clients are accepted, and what refused clients receive.

import ByteStreams
import COpenSSL
import Glibc
import StreamTestKit
import Testing

@testable import StreamTLS

@Suite("A TLS handshake", .timeLimit(.minutes(5)))
struct TLSHandshakeTests {
  @Test("agrees on the newest version and a cipher of the profile", arguments: TLSStreamTests.versions)
  func profile(version: ClosedRange<Int32>) async throws {
    var rig = try TLSRig()
    rig.far.version = version
    try await onLane { [rig] lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      #expect(stream.facts.version == (version.upperBound == TLS1_3_VERSION ? .tls13 : .tls12))
      #expect((TLSProfile.ciphers + TLSProfile.suites).contains(stream.facts.cipher))
      #expect(far.cipher == stream.facts.cipher)
      #expect(stream.facts.side == .server && stream.facts.peer == nil && !stream.facts.isResumed)
    }
  }

  @Test("respects the minimum version, and the configured ciphers")
  func narrowed() async throws {
    var rig = try TLSRig()
    rig.server.minVersion = .tls13
    rig.far.version = TLS1_2_VERSION...TLS1_2_VERSION
    var reported = try await rig.refuse()
    #expect(reported.failure == .noCommonVersion)
    #expect(reported.far?.description == "tlsv1 alert protocol version")

    rig.server.minVersion = .tls12
    rig.server.ciphers = ["ECDHE-ECDSA-AES256-GCM-SHA384"]
    rig.far.ciphers = "ECDHE-ECDSA-AES128-GCM-SHA256"
    reported = try await rig.refuse()
    #expect(reported.failure == .noCommonCipher)
    rig.far.ciphers = nil
    try await onLane { [rig] lane in
      let (stream, _) = try await rig.accept(on: lane)
      defer { stream.close() }
      #expect(stream.facts.cipher == "ECDHE-ECDSA-AES256-GCM-SHA384")
    }
  }

  @Test("follows its own order of ciphers, except for a client that prefers ChaCha20")
  func preference() async throws {
    var rig = try TLSRig()
    rig.far.version = TLS1_2_VERSION...TLS1_2_VERSION
    for (first, cipher) in [
      ("ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-ECDSA-CHACHA20-POLY1305"),
      ("ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-AES128-GCM-SHA256"),
    ] {
      let other = TLSProfile.ciphers.filter { $0 != first }
      rig.far.ciphers = ([first] + other).joined(separator: ":")
      try await onLane { [rig] lane in
        let (stream, _) = try await rig.accept(on: lane)
        defer { stream.close() }
        #expect(stream.facts.cipher == cipher)
      }
    }
  }

  // MARK: - Names

  @Test(
    "presents the certificate for the requested name",
    arguments: [
      ("gw.test", "gw.test"), ("GPS.test", "gps.test"), ("a.wild.test", "*.wild.test"), ("a.b.wild.test", "gw.test"),
      ("else.test", "gw.test"), (nil, "gw.test"),
    ])
  func names(asked: String?, shown: String) async throws {
    var rig = try TLSRig()
    for (name, wish) in [("gps", "gps.test"), ("wild", "*.wild.test")] {
      let files = try rig.authority.write(name, .init(wish, names: "DNS:\(wish)"), to: rig.folder)
      rig.server.identities.append(TLSIdentity(certificate: files.certificate, key: files.key))
    }
    rig.far.serverName = asked
    try await onLane { [rig] lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      #expect(far.peerName == shown)
      #expect(stream.facts.serverName == asked?.lowercased())
    }
  }

  @Test("has a certificate of each kind of key for one name, and the client chooses")
  func kinds() async throws {
    var rig = try TLSRig()
    var wish = TestAuthority.Wish("rsa.test", names: "DNS:gw.test,IP:127.0.0.1")
    wish.usesRSA = true
    let files = try rig.authority.write("rsa", wish, to: rig.folder)
    rig.server.identities.append(TLSIdentity(certificate: files.certificate, key: files.key))
    rig.far.version = TLS1_2_VERSION...TLS1_2_VERSION
    for (cipher, shown) in [("ECDHE-ECDSA-AES128-GCM-SHA256", "gw.test"), ("ECDHE-RSA-AES128-GCM-SHA256", "rsa.test")] {
      rig.far.ciphers = cipher
      try await onLane { [rig] lane in
        let (stream, far) = try await rig.accept(on: lane)
        defer { stream.close() }
        #expect(far.peerName == shown)
      }
    }
  }

  @Test("refuses unknown names, with the right alert")
  func unknownName() async throws {
    var rig = try TLSRig()
    let context = try TLSServerContext(rig.server)
    for (name, failure): (String?, TLSFailure) in [
      ("else.test", .unknownName("else.test")), (nil, .unknownName(nil)),
    ] {
      rig.far.serverName = name
      let reported = try await rig.refuse(context, choosing: { $0 == "gw.test" ? context : nil })
      #expect(reported.failure == failure)
      #expect(reported.far?.description == "tlsv1 unrecognized name")
    }
  }

  @Test("agrees on the first of our protocols that is offered, or reports that there is none")
  func alpn() async throws {
    var rig = try TLSRig()
    rig.server.alpn = ["baudway", "http/1.1"]
    rig.far.alpn = ["h2", "http/1.1", "baudway"]
    try await onLane { [rig] lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      #expect(stream.facts.alpn == "baudway" && far.alpn == "baudway")
    }
    rig.far.alpn = ["h2"]
    let reported = try await rig.refuse()
    #expect(reported.failure == .noCommonProtocol)
    #expect(reported.far?.description == "tlsv1 alert no application protocol")
    rig.far.alpn = []
    try await onLane { [rig] lane in
      let (stream, _) = try await rig.accept(on: lane)
      #expect(stream.facts.alpn == nil)
      stream.close()
    }
  }

  // MARK: - Other protocols

  @Test(
    "answers plain HTTP in plain HTTP, and anything else with an alert",
    arguments: [
      ("GET / HTTP/1.1\r\nHost: gw\r\n\r\n", TLSFailure.plainHTTP), ("OPTIONS * HTTP/1.1\r\n\r\n", .plainHTTP),
      ("SSH-2.0-OpenSSH_9.2\r\n", .notTLS("SSH")), ("hello, device\r\n", .notTLS("plain text")),
      ("\u{1}\u{2}\u{3}\u{4}\u{5}\u{6}", .notTLS("unknown bytes")),
    ])
  func noTLS(text: String, failure: TLSFailure) async throws {
    let rig = try TLSRig()
    let (near, far) = try FarEnd.tcpPair()
    let context = try TLSServerContext(rig.server)
    let descriptor = try near.take()
    try far.send(Array(text.utf8))
    await #expect(throws: failure) {
      _ = try await shake(try TLSHandshake(context, over: descriptor.raw), descriptor.raw)
    }
    shutdown(descriptor.raw, Int32(SHUT_WR))
    let answer = try await onOwnThread { try far.receiveToEnd() }
    if failure == .plainHTTP {
      let lines = String(decoding: answer, as: UTF8.self).split(separator: "\r\n")
      #expect(lines.first == "HTTP/1.1 400 Bad Request")
      #expect(lines.last?.contains("https://") == true)
      #expect(lines.contains("Content-Length: \(lines.last?.utf8.count ?? 0)"))
    } else {
      #expect(answer == [0x15, 3, 3, 0, 2, 2, 10])
    }
  }

  @Test("reports a client that leaves anywhere in its first flight")
  func left() async throws {
    let rig = try TLSRig()
    let (near, far) = try FarEnd.tcpPair()
    let client = try TLSFarEnd(try far.take(), rig.far)
    // Its ClientHello, as sent.
    async let vain = onOwnThread { (try? client.handshake()) != nil }
    let hello = try await onOwnThread { try near.receive(upTo: 4096) }
    near.close()
    let wasGreeted = try await vain
    #expect(!wasGreeted)
    try await expectNoDescriptorLeak {
      for count in [0, 1, 4, 5, 6, hello.count / 2, hello.count - 1, hello.count] {
        let (near, far) = try FarEnd.tcpPair()
        let context = try TLSServerContext(rig.server)
        let descriptor = try near.take()
        try far.send(hello[..<count])
        far.finishWriting()
        await #expect(throws: TLSFailure.closedInHandshake(.client), "after \(count) bytes") {
          _ = try await shake(try TLSHandshake(context, over: descriptor.raw), descriptor.raw)
        }
        far.close()
      }
    }
  }

  @Test("reads a ClientHello that arrives a byte at a time")
  func dribbled() async throws {
    let rig = try TLSRig()
    let (near, middle) = try FarEnd.pair()
    let (other, far) = try FarEnd.tcpPair()
    let client = try TLSFarEnd(try far.take(), rig.far)
    async let greeted: Void = onOwnThread { try client.handshake() }
    async let forwarded: Void = onOwnThread {
      let hello = try other.receive(upTo: 4096)
      for byte in hello { try middle.send([byte]) }
      try other.send(try middle.receive(upTo: 16_384))
      try middle.send(try other.receive(upTo: 4096))
      try other.send(try middle.receive(upTo: 4096))
    }
    let descriptor = try near.take()
    let session = try await shake(
      try TLSHandshake(try TLSServerContext(rig.server), over: descriptor.raw), descriptor.raw)
    #expect(session.facts.version == .tls13)
    try await forwarded
    try await greeted
  }
}
