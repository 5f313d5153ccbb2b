// Which requests become a WebSocket, which are refused, and what is negotiated.

import StreamTestKit
import Testing

@testable import StreamWebSocket

/// As a field's value: the field is missing.
private let none = "-"
private let key = "dGhlIHNhbXBsZSBub25jZQ=="

private func head(_ changes: [String: String] = [:], first: String = "GET /gps HTTP/1.1") throws -> HTTPRequestHead {
  var fields: [String: String] = [
    "Host": "gate:8080", "Upgrade": "websocket", "Connection": "keep-alive, Upgrade", "Sec-WebSocket-Key": key,
    "Sec-WebSocket-Version": "13",
  ]
  for (name, value) in changes { fields[name] = value == none ? nil : value }
  var parser = HTTPRequestParser()
  let text = first + "\r\n" + fields.map { "\($0): \($1)\r\n" }.joined() + "\r\n"
  guard case .complete(let head, _) = try parser.take(Array(text.utf8)) else { throw HTTPFault.malformed("incomplete") }
  return head
}

private func refusal(_ head: HTTPRequestHead, _ settings: WebSocketUpgrade.Settings = .init()) -> HTTPRefusal? {
  do {
    _ = try WebSocketUpgrade(head, settings)
    return nil
  } catch {
    return error
  }
}

@Suite("An upgrade")
struct UpgradeTests {
  @Test("answers the key of RFC 6455's example")
  func accepts() throws {
    let upgrade = try WebSocketUpgrade(head(), .init())
    let text = String(decoding: upgrade.response, as: UTF8.self)
    #expect(text.hasPrefix("HTTP/1.1 101 ") && text.hasSuffix("\r\n\r\n"))
    #expect(text.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"))
    #expect(upgrade.terms == WebSocketTerms())
  }

  @Test("is refused with the right status, and a sentence")
  func refusals() throws {
    let cases: [(HTTPRequestHead, HTTPStatus)] = [
      (try head(["Upgrade": none]), .upgradeRequired), (try head(["Connection": "close"]), .upgradeRequired),
      (try head(first: "GET / HTTP/1.0"), .upgradeRequired), (try head(first: "POST / HTTP/1.1"), .methodNotAllowed),
      (try head(["Sec-WebSocket-Version": "8"]), .upgradeRequired), (try head(["Host": none]), .badRequest),
      (try head(["Host": "a b/c"]), .badRequest), (try head(["Upgrade": "websoc\u{212A}et"]), .upgradeRequired),
      (try head(["Sec-WebSocket-Key": none]), .badRequest), (try head(["Sec-WebSocket-Key": "abc"]), .badRequest),
      (try head(["Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZR=="]), .badRequest),
      (try head(["Content-Length": "3"]), .badRequest), (try head(["Transfer-Encoding": "chunked"]), .badRequest),
      (try head(["Sec-WebSocket-Protocol": "binary, binary"]), .badRequest),
      (try head(["Origin": "http://evil.example"]), .forbidden), (try head(["Origin": "null"]), .forbidden),
    ]
    for (head, status) in cases {
      let answer = refusal(head)
      let refusal = try #require(answer, "\(head)")
      #expect(refusal.status == status, "\(head)")
      let text = String(decoding: refusal.bytes, as: UTF8.self)
      #expect(
        text.hasPrefix("HTTP/1.1 \(status.rawValue) \(status.phrase)\r\n") && text.contains("Connection: close\r\n"))
      #expect(text.hasSuffix("\r\n\r\n\(refusal.text)\n") && refusal.text.count > 10)
    }
    let answer = refusal(try head(["Upgrade": "h2c"]))
    let version = String(decoding: try #require(answer).bytes, as: UTF8.self)
    #expect(version.contains("Sec-WebSocket-Version: 13\r\n") && version.contains("Upgrade: websocket\r\n"))
  }

  @Test("accepts pages only of its own origin and of listed ones")
  func origins() throws {
    func passes(_ origin: String, host: String = "gate:8080", _ settings: WebSocketUpgrade.Settings = .init()) throws
      -> Bool
    {
      refusal(try head(["Origin": origin, "Host": host]), settings) == nil
    }
    #expect(try passes("http://gate:8080") && passes("http://GATE:8080") && passes("https://gate:8080"))
    #expect(try passes("http://gate", host: "gate:80") && passes("https://gate:443", host: "gate"))
    #expect(try !passes("http://gate") && !passes("http://gate:80801") && !passes("http://agate:8080"))
    #expect(
      try !passes("http://gate:8080", .init(isSecure: true)) && passes("https://gate:8080", .init(isSecure: true)))
    #expect(
      try passes("http://app.example", .init(origins: ["http://app.example"])) && passes("null", .init(origins: ["*"])))
    #expect(try !passes("http://app.example.org", .init(origins: ["http://app.example"])))
  }

  @Test("compares origins, not texts: the scheme's own port, case, the dot of the root, forms of an address")
  func sameOrigins() throws {
    for (listed, sent, passes) in [
      ("https://app.example:443", "https://app.example", true),
      ("https://app.example", "https://app.example:443", true),
      ("http://App.Example.", "http://app.example", true), ("http://lab.example:80", "http://lab.example", true),
      ("http://[0:0::1]:8080", "http://[::1]:8080", true), ("http://lab.example:", "http://lab.example", true),
      ("https://app.example:80", "https://app.example", false), ("http://app.example:443", "http://app.example", false),
      ("https://app.example", "http://app.example", false), ("https://app.example:8443", "https://app.example", false),
      ("https://app.example:0443", "https://app.example", true), ("null", "null", true),
    ] {
      let answer = refusal(try head(["Origin": sent, "Host": "gate"]), .init(origins: [listed]))
      #expect((answer == nil) == passes, "\(listed) \(sent)")
    }
    #expect(refusal(try head(["Origin": "http://gate.", "Host": "GATE:80"])) == nil)
  }

  @Test("knows which origins no page has")
  func obstacles() {
    for text in [
      "ws://a", "wss://a:1", "file://x", "http://a:0", "http://a:70000", "http://a:b", "http://::1", "http://[x]",
      "http://a..b", "http://.",
    ] {
      #expect(OriginNames.obstacle(text) != nil, "\(text)")
    }
    for text in ["*", "null", "http://a", "https://a.b.:443", "http://[::1]:8080", "chrome-extension://abc"] {
      #expect(OriginNames.obstacle(text) == nil, "\(text)")
    }
  }

  @Test("reports the sub-protocols of a client that offers none of ours: cut, printable, without tokens")
  func unknownSubprotocols() throws {
    func unknown(_ offer: String?) throws -> String? {
      let request = try head(offer.map { ["Sec-WebSocket-Protocol": $0] } ?? [:])
      return try WebSocketUpgrade(request, .init()).unknownSubprotocols
    }
    #expect(try unknown(nil) == nil && unknown("tty, binary") == nil && unknown("tty, mqtt") == "tty, mqtt")
    #expect(try unknown("tty, bearer.s3cret") == "tty, bearer.(token)")
    let many = (0..<100).map { "protocol\($0)" }.joined(separator: ", ")
    #expect(try unknown(many)?.count == 200)
  }

  @Test("accepts a page of its own origin only under its own names, and listed origins under any name")
  func hosts() throws {
    let settings = WebSocketUpgrade.Settings(
      origins: ["http://friend.example"], hosts: HostNames(["Gate", "gate.local", "*.lab.example", "gw.example."]))
    func status(_ host: String, origin: String? = nil) throws -> HTTPStatus? {
      refusal(try head(["Origin": origin ?? "http://\(host)", "Host": host]), settings)?.status
    }
    for host in [
      "gate", "gate:8080", "GATE.local", "gw.example", "gw.example.:81", "a.lab.example:1", "localhost:8080",
      "LOCALHOST", "127.0.0.1",
      "10.0.0.7:8080", "[::1]", "[fe80::1]:8080",
    ] {
      #expect(try status(host) == nil, "\(host)")
    }
    for host in [
      "evil.example:8080", "gate.evil.example", "lab.example", "a.b.lab.example", "10.0.0.7.evil.example", "1.2.3",
      "localhost.evil.example",
      "xgate", "[evil.example]", "[::1", "[gate]:80",
    ] {
      #expect(try status(host) == .forbidden, "\(host)")
    }
    // A listed origin may use any Host; so may a client without an Origin.
    #expect(try status("evil.example", origin: "http://friend.example") == nil)
    #expect(refusal(try head(["Host": "evil.example"]), settings) == nil)
    let answer = refusal(try head(["Origin": "http://evil.example", "Host": "evil.example"]), settings)
    #expect(answer?.cause == .foreignHost && answer?.text.contains("websocket.hosts") == true)
    #expect(refusal(try head(["Origin": "http://evil.example"]), settings)?.cause == .foreignOrigin)
    let any = WebSocketUpgrade.Settings(hosts: HostNames(["*"]))
    #expect(refusal(try head(["Origin": "http://evil.example", "Host": "evil.example"]), any) == nil)
  }

  @Test("chooses the client's first allowed sub-protocol, and never a token")
  func subprotocols() throws {
    func chosen(_ offer: String, _ allowed: [WebSocketSubprotocol] = WebSocketSubprotocol.allCases) throws -> String {
      let request = try head(["Sec-WebSocket-Protocol": offer])
      let upgrade = try WebSocketUpgrade(request, .init(subprotocols: allowed))
      let text = String(decoding: upgrade.response, as: UTF8.self)
      #expect(!text.contains("bearer") && text.contains("Sec-WebSocket-Protocol") == (upgrade.terms.subprotocol != nil))
      return upgrade.terms.subprotocol?.rawValue ?? "-"
    }
    #expect(try chosen("chat, binary, baudway.v1") == "binary")
    #expect(try chosen("baudway.v1, bearer.s3cret") == "baudway.v1")
    #expect(try chosen("chat") == "-" && chosen("baudway.v1, binary", [.binary]) == "binary")
  }

  @Test(
    "accepts an offer of permessage-deflate that it supports",
    arguments: [
      ("permessage-deflate", "permessage-deflate"),
      ("permessage-deflate; client_max_window_bits", "permessage-deflate; client_max_window_bits=12"),
      ("permessage-deflate; client_max_window_bits=9", "permessage-deflate; client_max_window_bits=9"),
      ("permessage-deflate; server_max_window_bits=10", "permessage-deflate; server_max_window_bits=10"),
      ("permessage-deflate; server_max_window_bits=\"15\"", "permessage-deflate; server_max_window_bits=12"),
      ("permessage-deflate; server_max_window_bits=8, permessage-deflate", "permessage-deflate"),
      ("permessage-deflate; server_no_context_takeover", "permessage-deflate; server_no_context_takeover"),
      ("permessage-deflate;client_no_context_takeover", "permessage-deflate; client_no_context_takeover"),
      ("x-webkit-deflate-frame, permessage-deflate; unknown, permessage-deflate; server_max_window_bits=16", ""),
      ("permessage-deflate; server_max_window_bits", ""), ("permessage-deflate; server_no_context_takeover=1", ""),
      ("permessage-deflate; server_no_context_takeover; server_no_context_takeover", ""),
      ("permessage-deflate; client_max_window_bits=08", ""),
    ])
  func deflate(offer: String, answer: String) throws {
    let upgrade = try WebSocketUpgrade(head(["Sec-WebSocket-Extensions": offer]), .init(deflate: DeflateSettings()))
    let text = String(decoding: upgrade.response, as: UTF8.self)
    #expect(text.contains("Sec-WebSocket-Extensions: \(answer)\r\n") == !answer.isEmpty)
    #expect((upgrade.terms.deflate == nil) == answer.isEmpty)
    let off = try WebSocketUpgrade(head(["Sec-WebSocket-Extensions": offer]), .init())
    #expect(off.terms.deflate == nil && !String(decoding: off.response, as: UTF8.self).contains("Extensions"))
  }

  @Test(
    "is the same on both sides",
    arguments: [nil, DeflateSettings(), DeflateSettings(windowBits: 15, contextTakeover: false)])
  func bothSides(deflate: DeflateSettings?) throws {
    let request = WebSocketRequest(host: "gate", target: "/gps?x", subprotocol: "binary", deflate: deflate)
    var parser = HTTPRequestParser()
    guard case .complete(let head, _) = try parser.take(request.bytes) else {
      Issue.record("no head")
      return
    }
    let upgrade = try WebSocketUpgrade(head, .init(deflate: deflate))
    var answers = HTTPResponseParser()
    guard case .complete(let answer, _) = try upgrade.response.withUnsafeBytes({ try answers.take($0) }) else {
      Issue.record("no head")
      return
    }
    let terms = try request.terms(of: answer)
    #expect(terms.subprotocol == .binary && upgrade.terms.subprotocol == .binary)
    #expect(terms.deflate?.ownWindowBits == upgrade.terms.deflate?.otherWindowBits)
    #expect(terms.deflate?.otherContextTakeover == upgrade.terms.deflate?.ownContextTakeover)
    #expect(terms.deflate?.ownContextTakeover == upgrade.terms.deflate?.otherContextTakeover)
  }

  @Test("refuses an answer that does not belong to its request")
  func wrongAnswers() throws {
    let request = WebSocketRequest(
      host: "h", target: "/", subprotocol: nil, deflate: nil, fields: [], key: key)
    func fault(_ status: String = "101 Switching Protocols", _ changes: [String: String] = [:]) throws
      -> WebSocketRequest.Fault?
    {
      var fields = [
        "Upgrade": "websocket", "Connection": "upgrade", "Sec-WebSocket-Accept": "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
      ]
      for (name, value) in changes { fields[name] = value == none ? nil : value }
      var parser = HTTPResponseParser()
      let text = "HTTP/1.1 \(status)\r\n" + fields.map { "\($0): \($1)\r\n" }.joined() + "\r\n"
      guard case .complete(let head, _) = try Array(text.utf8).withUnsafeBytes({ try parser.take($0) }) else {
        return nil
      }
      do {
        _ = try request.terms(of: head)
        return nil
      } catch {
        return error
      }
    }
    #expect(try fault() == nil)
    #expect(try fault("401 Unauthorized") == .refused(status: 401, phrase: "Unauthorized"))
    let changes: [[String: String]] = [
      ["Upgrade": "h2c"], ["Connection": "close"], ["Sec-WebSocket-Accept": "AAAA"], ["Sec-WebSocket-Accept": none],
      ["Sec-WebSocket-Protocol": "chat"], ["Sec-WebSocket-Extensions": "permessage-deflate"],
    ]
    for change in changes {
      let fault = try fault("101 x", change)
      guard case .wrong = fault else {
        Issue.record("\(change): \(String(describing: fault))")
        return
      }
    }
  }

  @Test("hashes as the RFC's examples do")
  func hashes() {
    let hex = { (bytes: [UInt8]) in bytes.map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined() }
    #expect(hex(sha1(Array("abc".utf8))) == "a9993e364706816aba3e25717850c26c9cd0d89d")
    #expect(
      hex(sha1(Array("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq".utf8)))
        == "84983e441c3bd26ebaae4aa1f95129e5e54670f1")
    #expect(hex(sha1([])) == "da39a3ee5e6b4b0d3255bfef95601890afd80709")
    #expect(base64(Array("foobar".utf8)) == "Zm9vYmFy" && base64(Array("fooba".utf8)) == "Zm9vYmE=")
    #expect(base64([]) == "" && base64(Array("f".utf8)) == "Zg==")
  }
}
