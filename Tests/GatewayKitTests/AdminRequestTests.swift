import StreamBroker
import StreamWebSocket
import Testing

@testable import GatewayKit

/// The request that `lines` ask for; throws the refusal.
func adminRequest(
  _ line: String = "GET / HTTP/1.1", _ fields: [String] = ["Host: 127.0.0.1:8080"], early: [UInt8] = [],
  hosts: [String] = [], isSecure: Bool = false
) throws -> AdminRequest {
  var parser = HTTPRequestParser()
  let text = ([line] + fields).joined(separator: "\r\n") + "\r\n\r\n"
  guard case .complete(let head, _) = try parser.take(Array(text.utf8)) else {
    throw AdminRefusal(.badRequest, "no head")
  }
  guard let resource = AdminResource(path: head.path) else { throw AdminRefusal(.notFound, "no resource") }
  return try AdminRequest(
    head, early: early, for: resource, pages: WebPageRule(hosts: HostNames(hosts), isSecure: isSecure))
}

/// The refusal of a request; nil if it is accepted.
func adminRefusal(
  _ line: String = "GET / HTTP/1.1", _ fields: [String] = ["Host: 127.0.0.1:8080"], hosts: [String] = [],
  isSecure: Bool = false
) throws -> AdminRefusal? {
  do {
    _ = try adminRequest(line, fields, hosts: hosts, isSecure: isSecure)
    return nil
  } catch let refusal as AdminRefusal {
    return refusal
  }
}

@Suite("A request to the admin listener")
struct AdminRequestTests {
  @Test(
    "must name the gateway by one of its own names",
    arguments: ["127.0.0.1:8080", "[::1]:8080", "localhost", "GW.example:1", "192.0.2.7"])
  func own(host: String) throws {
    #expect(try adminRefusal("GET / HTTP/1.1", ["Host: \(host)"], hosts: ["gw.example"]) == nil)
  }

  @Test("is refused when it names the gateway by a name of somebody else, as a rebound web page does")
  func foreign() throws {
    let refusal = try #require(try adminRefusal("GET / HTTP/1.1", ["Host: evil.example:8080"], hosts: ["gw.example"]))
    #expect(refusal.status == .forbidden && refusal.cause == .foreignHost)
    #expect(refusal.detail.contains("evil.example:8080") && refusal.detail.contains("admin.hosts"))
  }

  @Test("may name it in any way with credentials, and to ask for its health")
  func exempt() throws {
    #expect(try adminRefusal("GET / HTTP/1.1", ["Host: proxy.example", "Authorization: Bearer x"]) == nil)
    for path in ["/healthz", "/readyz", "/readyz?route=gps"] {
      #expect(try adminRefusal("GET \(path) HTTP/1.1", ["Host: 10-0-0-7.pods.example"]) == nil)
    }
  }

  @Test("needs a Host in HTTP/1.1, and one that can be a name")
  func host() throws {
    #expect(try adminRefusal("GET /healthz HTTP/1.1", [])?.status == .badRequest)
    #expect(try adminRefusal("GET /healthz HTTP/1.0", []) == nil)
    #expect(try adminRefusal("GET /healthz HTTP/1.1", ["Host: a b"])?.status == .badRequest)
  }

  @Test("with another method is answered 405, with the methods that the path takes")
  func methods() throws {
    for method in ["PUT", "DELETE", "OPTIONS", "POST", "BREW"] {
      let refusal = try #require(try adminRefusal("\(method) /healthz HTTP/1.1"))
      #expect(refusal.status == .methodNotAllowed)
      #expect(refusal.fields == [AdminResponse.Field(name: "Allow", value: "GET, HEAD")])
    }
    #expect(try adminRequest("HEAD /healthz HTTP/1.1").isHead)
  }

  @Test("to look at something has no content")
  func content() throws {
    let host = "Host: localhost"
    #expect(try adminRefusal("GET / HTTP/1.1", [host, "Content-Length: 0"]) == nil)
    #expect(try adminRefusal("GET / HTTP/1.1", [host, "Content-Length: 1"])?.status == .badRequest)
  }

  @Test(
    "whose length is in doubt is refused",
    arguments: [
      (["Content-Length: 1", "Content-Length: 1"], HTTPStatus.badRequest), (["Content-Length: +1"], .badRequest),
      (["Content-Length: "], .badRequest), (["Content-Length: 1, 1"], .badRequest),
      (["Content-Length: 65537"], .contentTooLarge),
      (["Content-Length: 99999999999999999999999999"], .contentTooLarge),
      (["Transfer-Encoding: chunked"], .lengthRequired),
      (["Transfer-Encoding: chunked", "Content-Length: 3"], .badRequest),
    ])
  func length(fields: [String], status: HTTPStatus) throws {
    #expect(try adminRefusal("GET / HTTP/1.1", ["Host: localhost"] + fields)?.status == status)
  }

  @Test("has its query decoded, and refuses what the path does not take")
  func query() throws {
    #expect(try adminRequest("GET /readyz?route=lab%2d1 HTTP/1.1").query == ["route": "lab-1"])
    for query in ["?rute=x", "?route=a&route=b", "?route=%zz", "?route=%ff", "?route=%0a"] {
      #expect(try adminRefusal("GET /readyz\(query) HTTP/1.1")?.status == .badRequest, "\(query)")
    }
    #expect(try adminRefusal("GET /?route=x HTTP/1.1")?.status == .badRequest)
  }
}
