// Heads of requests and responses: which are accepted and which refused. Pieces do not change the result.

import StreamTestKit
import StreamWebSocket
import Testing

private func parse(_ text: String, limit: Int = HTTPRequestParser.usualLimit) throws -> HTTPRequestHead? {
  var parser = HTTPRequestParser(limit: limit)
  guard case .complete(let head, _) = try parser.take(Array(text.utf8)) else { return nil }
  return head
}

@Suite("The head of a request")
struct HTTPTests {
  @Test("has method, path, query and fields")
  func parts() throws {
    let head = try #require(
      try parse("GET /a%20b/c?x=%20&y HTTP/1.1\r\nHost: h:1\r\nX-One:  two \t\r\nx-one: three\r\n\r\n"))
    #expect(head.method == "GET" && head.path == "/a b/c" && head.query == "x=%20&y" && head.minorVersion == 1)
    #expect(head["host"] == "h:1" && head.fields.list("x-one") == ["two", "three"])
    #expect(try parse("GET ws://h/p?q HTTP/1.1\r\n\r\n")?.path == "/p")
    #expect(try parse("GET HTTPS://h HTTP/1.1\r\n\r\n")?.path == "/")
  }

  @Test("may arrive in any pieces, and does not include what follows it")
  func pieces() throws {
    var random = SeededRandom()
    let seed = random.seed
    let text = Array("\r\nGET /gps HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\n\r\n".utf8)
    for _ in 0..<50 {
      var parser = HTTPRequestParser()
      var rest = (text + [0x82, 0x80])[...]
      var left: Int?
      while left == nil, !rest.isEmpty {
        let piece = Array(rest.prefix(Int.random(in: 1...20, using: &random)))
        if case .complete(let head, let taken) = try parser.take(piece) {
          #expect(head.path == "/gps", "seed \(seed)")
          left = rest.count - taken
        }
        rest = rest.dropFirst(piece.count)
      }
      #expect(left == 2, "seed \(seed)")
    }
  }

  @Test(
    "is refused when it is not HTTP/1.1 to the letter",
    arguments: [
      "\u{16}\u{3}\u{1}", "GET /\n", "GET  / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1 \r\n\r\n", "GET /\r\n\r\n",
      "GET / HTTP/1.1\r\nA : b\r\n\r\n", "GET / HTTP/1.1\r\n folded\r\n\r\n", "GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n",
      "GET / HTTP/1.1\r\nA: \u{1}\r\n\r\n", "GET / HTTP/1.1\r\n: b\r\n\r\n", "GET / HTTP/1.1\rA",
      "GET * HTTP/1.1\r\n\r\n",
      "GET /%zz HTTP/1.1\r\n\r\n", "GET /%2 HTTP/1.1\r\n\r\n", "GET /%0a HTTP/1.1\r\n\r\n", "GET /%ff HTTP/1.1\r\n\r\n",
      "GET /# HTTP/1.1\r\n\r\n", "G(T / HTTP/1.1\r\n\r\n", "GET / FTP/1.1\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n",
    ])
  func malformed(text: String) {
    #expect { try parse(text) } throws: { if case HTTPFault.malformed = $0 { true } else { false } }
  }

  @Test("carries the status of its refusal")
  func otherFaults() {
    #expect(throws: HTTPFault.version) { try parse("PRI * HTTP/2.0\r\n\r\n") }
    #expect(throws: HTTPFault.tooLarge) { try parse("GET /" + String(repeating: "a", count: 16 * 1024)) }
    let many = String(repeating: "A: b\r\n", count: 101)
    #expect(throws: HTTPFault.tooLarge) { try parse("GET / HTTP/1.1\r\n\(many)\r\n") }
    #expect(HTTPRefusal(.tooLarge).status == .headTooLarge && HTTPRefusal(.version).status == .versionNotSupported)
  }

  @Test("holds no more than its limit, however slowly it arrives")
  func endless() throws {
    var parser = HTTPRequestParser(limit: 100)
    var taken = 0
    #expect(throws: HTTPFault.tooLarge) {
      _ = try parser.take(Array("GET / HTTP/1.1\r\n".utf8))
      while taken < 1000 {
        _ = try parser.take([0x61])
        taken += 1
      }
    }
    #expect(taken == 84)
  }

  @Test("is also read of an answer")
  func answer() throws {
    var parser = HTTPResponseParser()
    let bytes = Array("HTTP/1.1 404 Not Found\r\nA: b\r\n\r\nbody".utf8)
    let progress = try bytes.withUnsafeBytes { try parser.take($0) }
    guard case .complete(let head, let taken) = progress else {
      Issue.record("\(progress)")
      return
    }
    #expect(head.status == 404 && head.phrase == "Not Found" && head["a"] == "b" && taken == bytes.count - 4)
    for wrong in ["SSH-2.0-x\r\n\r\n", "HTTP/1.1 20 x\r\n\r\n", "HTTP/1.1 abc x\r\n\r\n", "HTTP/1.1\r\n\r\n"] {
      var parser = HTTPResponseParser()
      #expect(throws: HTTPFault.self, "\(wrong)") { try Array(wrong.utf8).withUnsafeBytes { _ = try parser.take($0) } }
    }
  }
}
