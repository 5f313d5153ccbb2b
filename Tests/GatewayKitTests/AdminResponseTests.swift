import StreamWebSocket
import Testing

@testable import GatewayKit

@Suite("A response of the admin listener")
struct AdminResponseTests {
  private func text(_ response: AdminResponse) -> String { String(decoding: response.bytes, as: UTF8.self) }

  @Test("states its length and closes the connection, and HEAD gets the same head alone")
  func whole() {
    let answer = text(.text("ok\n"))
    #expect(answer.hasPrefix("HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 3\r\n"))
    #expect(answer.hasSuffix("Connection: close\r\n\r\nok\n"))
    #expect(text(.text("ok\n", isHead: true)) == answer.dropLast(3))
  }

  @Test("that is an error is a problem by RFC 9457")
  func problem() throws {
    let answer = text(.problem(.unauthorized, "No \"way\"."))
    #expect(answer.contains("\r\nContent-Type: application/problem+json\r\n"))
    #expect(
      answer.contains("\r\nWWW-Authenticate: Basic realm=\"baudway\"") && answer.contains("WWW-Authenticate: Bearer"))
    let start = try #require(answer.firstRange(of: "\r\n\r\n")).upperBound
    let json = try JSONReader.read(Array(answer[start...].dropLast().utf8))
    #expect(json["status"] == .integer(401) && json["title"]?.text == "Unauthorized")
    #expect(json["detail"]?.text == "No \"way\"." && json["type"]?.text == "about:blank")
    for status in [HTTPStatus.unavailable, .tooManyRequests] {
      #expect(text(.problem(status, "Later.")).contains("\r\nRetry-After: 5\r\n"))
    }
  }

  @Test("in pieces is chunked, for an old client until the connection ends, and for HEAD only a head")
  func pieces() throws {
    final class Words: ControlAnswer {
      var words = ["one", "", "sixteen letters!"]
      func next(_ done: @escaping ([UInt8]?) -> Void) { done(words.isEmpty ? nil : Array(words.removeFirst().utf8)) }
    }
    func sent(_ line: String) throws -> [String] {
      let pieces = AdminPieces(.pieces(contentType: "text/x", Words()), to: try adminRequest(line))
      var all: [String] = []
      var isOver = false
      while !isOver {
        pieces.next { piece in
          if let piece { all.append(String(decoding: piece, as: UTF8.self)) } else { isOver = true }
        }
      }
      return all
    }
    let new = try sent("GET / HTTP/1.1")
    #expect(new[0].contains("\r\nTransfer-Encoding: chunked\r\n") && !new[0].contains("Content-Length"))
    #expect(new.dropFirst() == ["3\r\none\r\n", "10\r\nsixteen letters!\r\n", "0\r\n\r\n"])
    let old = try sent("GET / HTTP/1.0")
    #expect(!old[0].contains("chunked") && old.dropFirst() == ["one", "sixteen letters!"])
    #expect(try sent("HEAD / HTTP/1.1") == [new[0]])
  }
}
