// tls:// against plain OpenSSL, without our TLS code.

import ByteStreams
import Dispatch
import Glibc
import StreamTLS
import StreamTestKit
import Testing

@testable import StreamBroker
@testable import StreamBrokerCore

/// A TLS server on the loopback.
struct TLSRig: StreamRig {
  let folder: TemporaryFolder
  let authority: TestAuthority
  var manner = TLSFarEnd.Manner()
  var query: String

  init(_ wish: TestAuthority.Wish = .init("gw.test", names: "DNS:localhost,IP:127.0.0.1")) throws {
    folder = try TemporaryFolder()
    authority = try TestAuthority()
    try folder.write("ca.pem", authority.pem)
    let issued = try authority.issue(wish)
    manner.isServer = true
    (manner.certificate, manner.key) = (issued.certificate, issued.key)
    query = "?ca=\(folder / "ca.pem")"
  }

  func farEnd(_ part: FarPart) throws -> String? {
    if case .refuse = part { return "tls://127.0.0.1:1\(query)" }
    return "tls://\(try serve { try $0.play(part) })\(query)"
  }

  /// Accepts the next client and runs `play`. Returns the listening address.
  func serve(_ play: @escaping @Sendable (TLSFarEnd) throws -> Void) throws -> SocketAddress {
    let listener = try LoopbackListener()
    DispatchQueue(label: "far end").async { [manner] in
      do {
        let end = try TLSFarEnd(try listener.accept().take(), manner)
        try end.handshake()
        try play(end)
      } catch { Issue.record(error) }
      listener.close()
    }
    return listener.address
  }

  /// Expects that the client refuses the server. Returns the error text.
  func refused(_ url: (SocketAddress) -> String) async throws -> String {
    let listener = try LoopbackListener()
    async let played: Void = onOwnThread { [manner] in
      let end = try TLSFarEnd(try listener.accept().take(), manner)
      _ = try? end.handshake()
      _ = try? end.receive()
    }
    let text = url(listener.address)
    let reported = try await onLane { lane in
      do {
        let stream = try await Broker(Schemes.standard).open(text, on: lane)
        defer { stream.close() }
        _ = try await stream.readToEnd(on: lane)
        return "opened"
      } catch { return "\(error)" }
    }
    try await played
    return reported
  }
}

extension TLSContexts {
  fileprivate func get(on lane: isolated Lane) async throws -> TLSClientContext {
    var result: Result<TLSClientContext, TLSSettingsFault>?
    let gate = Gate()
    get(on: lane.poller) {
      result = $0
      gate.open()
    }
    await gate.wait(on: lane)
    return try #require(result).get()
  }
}

@Suite("tls", .timeLimit(.minutes(5)))
struct TLSTests {
  @Test("accepts a certificate that its authority has issued for the host, by name or by address")
  func believed() async throws {
    let rig = try TLSRig()
    for host in ["127.0.0.1", "localhost"] {
      let port = try rig.serve { end in
        // An address is not a server name (RFC 6066 section 3).
        #expect(end.askedName == (host == "localhost" ? host : nil))
        try end.play(.echo)
      }.port
      try await onLane { lane in
        let stream = try await Broker(Schemes.standard).open("tls://\(host):\(port)\(rig.query)", on: lane)
        defer { stream.close() }
        try await stream.writeAll([1, 2], on: lane)
        #expect(try await stream.read(exactly: 2, on: lane) == [1, 2])
      }
    }
  }

  @Test("accepts no other certificate, and explains what to do")
  func disbelieved() async throws {
    let rig = try TLSRig()
    var reported = try await rig.refused { "tls://\($0)" }  // the system's authorities
    #expect(reported.contains("the server's certificate (CN=gw.test) is not signed by a trusted authority"))
    #expect(reported.contains("ca=…"))
    reported = try await rig.refused { "tls://\($0)\(rig.query)&server-name=else.test" }
    #expect(reported.contains("is for another name") && reported.contains("'else.test'"))
    var wish = TestAuthority.Wish("gw.test", names: "IP:127.0.0.1")
    wish.validity = -7200 ... -3600
    let old = try TLSRig(wish)
    reported = try await old.refused { "tls://\($0)\(old.query)" }
    #expect(reported.contains("the server's certificate (CN=gw.test) has expired"))
  }

  @Test("reports which of its files is wrong")
  func files() async throws {
    try await onLane { lane in
      do {
        try await Broker(Schemes.standard).open("tls://127.0.0.1:1?ca=/nowhere/ca.pem", on: lane).close()
        Issue.record("opened")
      } catch let failure as OpenFailure {
        #expect("\(failure)".hasPrefix("TLS to 127.0.0.1:1: /nowhere/ca.pem: No such file or directory"))
      }
    }
  }

  @Test("checks a server less strictly if told to, and sends the requested server name")
  func less() async throws {
    let rig = try TLSRig(.init("gw.test", names: "DNS:gw.test"))
    let ca = rig.query
    for query in ["\(ca)&verify=ca", "?verify=none", "\(ca)&server-name=gw.test"] {
      let address = try rig.serve { try $0.play(.sayAndHangUp([7])) }
      try await onLane { lane in
        let stream = try await Broker(Schemes.standard).open("tls://\(address)\(query)", on: lane)
        defer { stream.close() }
        #expect(try await stream.readToEnd(on: lane) == [7])
      }
    }
  }

  @Test("presents its certificate to a server that asks for one")
  func clientCertificate() async throws {
    var rig = try TLSRig()
    rig.manner.authority = rig.authority.pem
    let files = try rig.authority.write("me", .init("me"), to: rig.folder)
    let address = try rig.serve { end in
      #expect(end.peerName == "me")
      try end.play(.sayAndHangUp([7]))
    }
    try await onLane { [rig] lane in
      let url = "tls://\(address)\(rig.query)&cert=\(files.certificate)&key=\(files.key)"
      let stream = try await Broker(Schemes.standard).open(url, on: lane)
      defer { stream.close() }
      #expect(try await stream.readToEnd(on: lane) == [7])
    }
    // With TLS 1.3 the refusal comes after the client's handshake is over, with TLS 1.2 within it.
    var reported = try await rig.refused { [rig] in "tls://\($0)\(rig.query)" }
    #expect(reported.contains("certificate required (TLS alert 116)") && reported.contains("cert=…"))
    rig.manner.version = 0x0303...0x0303
    reported = try await rig.refused { [rig] in "tls://\($0)\(rig.query)" }
    #expect(reported.contains("TLS alert 40") && reported.contains("cert=…"))
  }

  @Test("reports a server that does not speak TLS")
  func noTLS() async throws {
    for (text, what) in [("SSH-2.0-OpenSSH_9.2\r\n", "received SSH"), ("", "closed during the TLS handshake")] {
      let listener = try LoopbackListener()
      async let played: Void = onOwnThread {
        let end = try listener.accept()
        _ = try end.receive()
        try end.send(Array(text.utf8))
        end.close()
      }
      try await onLane { lane in
        do {
          try await Broker(Schemes.standard).open("tls://\(listener.address)", on: lane).close()
          Issue.record("opened")
        } catch let failure as OpenFailure {
          #expect("\(failure)".contains(what) && "\(failure)".contains("does the server use TLS on this port?"))
        }
      }
      try await played
    }
  }

  @Test(
    "loads a new certificate for the next connection, and keeps the old one while the files are half written"
  )
  func renewed() async throws {
    let rig = try TLSRig()
    let contexts = TLSContexts(
      {
        var settings = TLSClientSettings()
        settings.ca = rig.folder / "ca.pem"
        return settings
      }())
    try await onLane { lane in
      let first = try await contexts.get(on: lane)
      #expect(try await contexts.get(on: lane) === first)
      try rig.folder.write("ca.pem", "half of")
      contexts.forget()
      #expect(try await contexts.get(on: lane) === first)
      try rig.folder.write("ca.pem", TestAuthority("Another").pem)
      contexts.forget()
      #expect(try await contexts.get(on: lane) !== first)
    }
  }

  @Test("resolves relative paths from the given folder")
  func relativePaths() throws {
    let url = try EndpointURL("tls://gw.test:1?ca=ca.pem&cert=/etc/me.pem&key=keys/me.key").resolvingPaths(
      from: "/etc/baudway")
    #expect(url.string("ca") == "/etc/baudway/ca.pem" && url.string("cert") == "/etc/me.pem")
    #expect(url.string("key") == "/etc/baudway/keys/me.key")
  }

  @Test("leaves nothing open when it is cancelled in the middle of a handshake")
  func cancelled() async throws {
    let rig = try TLSRig()
    try await expectNoDescriptorLeak {
      let listener = try LoopbackListener()
      let connector = try TLSConnector(EndpointURL("tls://\(listener.address)\(rig.query)"))
      try await onLane { lane in
        var wasCalled = false
        let opening = connector.open(OpenRequest(discardsInput: false), on: lane.poller) { _ in wasCalled = true }
        let end = try await onOwnThread {
          let end = try listener.accept()
          _ = try end.receive()  // the ClientHello
          return end
        }
        opening.cancel()
        #expect(try await onOwnThread { try end.receiveToEnd() }.isEmpty)
        #expect(!wasCalled)
        end.close()
      }
      listener.close()
    }
  }
}
