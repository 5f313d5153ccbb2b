import StreamBroker
import StreamWebSocket
import Testing

@testable import GatewayKit

@Suite("A change that a client of the admin listener asks for")
struct AdminActionTests {
  private func request(_ path: String, isChange: Bool = true) throws -> AdminRequest {
    try adminRequest("\(isChange ? "POST" : "GET") \(path) HTTP/1.1")
  }

  private func action(_ path: String, _ content: String) throws -> AdminAction? {
    try request(path).action(Array(content.utf8))
  }

  @Test("is read from path and content")
  func reads() throws {
    let reset = try ResetRecipe("esp32")
    #expect(try action("/api/v1/reload", "") == .reload && action("/api/v1/reload", "{}") == .reload)
    #expect(try action("/api/v1/routes/gps/kick", #"{"all":true}"#) == .kick(route: "gps", sessions: nil))
    #expect(try action("/api/v1/routes/gps/kick", #"{"sessions":[1,2]}"#) == .kick(route: "gps", sessions: [1, 2]))
    #expect(try action("/api/v1/routes/gps/reset", "") == .link(route: "gps", .reset(nil)))
    #expect(try action("/api/v1/routes/gps/reset", #"{"recipe":"esp32"}"#) == .link(route: "gps", .reset(reset)))
    #expect(try action("/api/v1/routes/gps/release", "") == .link(route: "gps", .release))
    #expect(try action("/api/v1/routes/gps/reopen", "{}") == .link(route: "gps", .reopen))
    let line = try action("/api/v1/routes/gps/line", #"{"rts":false,"break":250,"parity":"even","baud":9600,"stop":2}"#)
    #expect(line?.detail == "baud 9600, parity even, stop 2, rts off, break 250 ms" && line?.route == "gps")
    #expect(try action("/api/v1/routes/gps/writer", #"{"session":17}"#) == .link(route: "gps", .writer(17)))
    #expect(try action("/api/v1/routes/gps/writer", #"{"session":null}"#) == .link(route: "gps", .writer(nil)))
    let sent = try action("/api/v1/routes/gps/send", #"{"text":"hi\r"}"#)
    #expect(sent == .link(route: "gps", .send(Array("hi\r".utf8))) && sent?.detail == "3 bytes")
    #expect(
      try action("/api/v1/routes/gps/send", #"{"hex":" 00fF  0a "}"#) == .link(route: "gps", .send([0, 255, 10])))
    #expect(try request("/api/v1/routes", isChange: false).action([]) == nil)
  }

  @Test("has whole numbers in any form that JSON has for them")
  func wholeNumbers() throws {
    let sessions = #"{"sessions":[17.0,1.8e1,190e-1]}"#
    #expect(try action("/api/v1/routes/gps/kick", sessions) == .kick(route: "gps", sessions: [17, 18, 19]))
    #expect(try action("/api/v1/routes/gps/writer", #"{"session":17.0}"#) == .link(route: "gps", .writer(17)))
    let line = try action("/api/v1/routes/gps/line", #"{"baud":9.6e3,"data":7.0,"stop":2.0,"break":250.0}"#)
    #expect(line?.detail == "baud 9600, data 7, stop 2, break 250 ms")
  }

  @Test(
    "is refused where the content could mean something else",
    arguments: [
      #"{"all":true,"all":true}"#, #"{"all":true,"force":true}"#, #"{"sessions":[1.5]}"#, "7", "[]", "",
    ])
  func refuses(content: String) throws {
    #expect { try action("/api/v1/routes/gps/kick", content) } throws: {
      ($0 as? AdminRefusal)?.status == .unprocessableContent
    }
  }

  @Test(
    "to the line, the writer role or the device says what is wrong",
    arguments: [
      ("line", "{}", "name a change"), ("line", #"{"baud":0}"#, "'baud' must be a whole number from 1 to"),
      ("line", #"{"parity":"evn"}"#, "did you mean 'even'?"),
      ("line", #"{"dtr":1}"#, "'dtr' must be true or false"),
      ("line", #"{"rts":null}"#, "'rts' must be true or false"),
      ("line", #"{"break":true}"#, "'break' must be a whole number from 1 to 5000"),
      ("line", #"{"bauds":9600}"#, "Unknown key 'bauds'"),
      ("writer", "{}", "Name the session"), ("writer", #"{"session":"17"}"#, "Name the session"),
      ("send", "{}", "Name the bytes"), ("send", #"{"text":""}"#, "Name the bytes"),
      ("send", #"{"hex":"0"}"#, "Name the bytes"), ("send", #"{"hex":"+1"}"#, "Name the bytes"),
      ("send", #"{"text":"x","hex":"00"}"#, "Name the bytes"), ("send", #"{"base64":"eA=="}"#, "Unknown key 'base64'"),
    ])
  func refusesLine(path: String, content: String, reason: String) throws {
    #expect { try action("/api/v1/routes/gps/\(path)", content) } throws: {
      ($0 as? AdminRefusal)?.status == .unprocessableContent && ($0 as? AdminRefusal)?.detail.contains(reason) == true
    }
  }

  @Test("needs the role admin on the route, or in general; a hidden route does not exist")
  func roles() throws {
    func user(_ roles: [(String, Config.User.Role)]) -> AdminCaller {
      var user = Config.User(name: "ada")
      user.roles = roles.map { Config.User.Rule(pattern: RoutePattern($0.0), role: $0.1) }
      return AdminCaller(name: "ada", client: nil, [user])
    }
    func status(_ path: String, _ roles: [(String, Config.User.Role)], isChange: Bool = true) throws -> HTTPStatus? {
      try request(path, isChange: isChange).objection(to: user(roles))?.status
    }
    let kick = "/api/v1/routes/gps/kick"
    for change in ["reset", "release", "reopen", "line", "writer"] {
      let path = "/api/v1/routes/gps/\(change)"
      #expect(try status(path, [("gps", .admin)]) == nil && status(path, [("gps", .writer)]) == .forbidden)
    }
    #expect(try status(kick, [("gps", .admin)]) == nil && status(kick, [("*", .admin)]) == nil)
    #expect(try status(kick, [("gps", .writer), ("*", .admin)]) == .forbidden)
    #expect(try status(kick, [("lab", .admin)]) == .notFound)
    #expect(try status("/api/v1/routes/gps", [("lab", .admin)], isChange: false) == .notFound)
    #expect(try status("/api/v1/routes/gps", [("gps", .monitor)], isChange: false) == nil)
    #expect(try status("/api/v1/reload", [("gps", .admin), ("*", .writer)]) == .forbidden)
    #expect(try status("/api/v1/reload", [("*", .admin)]) == nil)
    #expect(try status("/api/v1/devices", [("gps", .admin)], isChange: false) == .forbidden)
    #expect(try status("/api/v1/routes/gps/log", [("lab", .admin)], isChange: false) == .notFound)
    #expect(try status("/api/v1/log", [("lab", .monitor)], isChange: false) == nil)
    for isChange in [true, false] {
      #expect(try status("/api/v1/routes/gps/terminal", [("gps", .monitor)], isChange: isChange) == nil)
      #expect(try status("/api/v1/routes/gps/terminal", [("lab", .admin)], isChange: isChange) == .notFound)
    }
  }

  @Test(
    "comes from no page of another origin, also with credentials",
    arguments: [
      ["Origin: https://evil.example"], ["Origin: null"], ["Origin: http://127.0.0.1:8080", "Origin: null"],
      ["Sec-Fetch-Site: cross-site"],
    ])
  func pages(fields: [String]) throws {
    let all = ["Host: 127.0.0.1:8080", "Authorization: Bearer x"] + fields
    #expect(try adminRefusal("POST /api/v1/reload HTTP/1.1", all)?.cause == .foreignOrigin)
    for method in ["GET", "POST"] {
      #expect(try adminRefusal("\(method) /api/v1/routes/gps/terminal HTTP/1.1", all)?.cause == .foreignOrigin)
    }
  }

  @Test("may come from our own page, by one of our own names")
  func ownPage() throws {
    func cause(_ host: String, _ origin: String) throws -> HTTPRefusal.Cause? {
      let fields = ["Host: \(host)", "Origin: \(origin)", "Authorization: Bearer x"]
      return try adminRefusal("POST /api/v1/reload HTTP/1.1", fields, hosts: ["gw.example"])?.cause
    }
    #expect(try cause("gw.example:8080", "http://gw.example:8080") == nil)
    #expect(try cause("evil.example", "http://evil.example") == .foreignHost)
  }

  @Test("has every path of the description, and the description has every path")
  func described() throws {
    var methods: [String: Set<String>] = [:]
    for operation in OpenAPI.operations {
      let resource = try #require(AdminResource(path: operation.path.replacing("{name}", with: "x")))
      methods[operation.path, default: []].insert(operation.method.uppercased())
      #expect(resource.needsLogIn == operation.needsLogIn)
      #expect(resource.isProbe == operation.isProbe)
    }
    // HEAD goes with each GET.
    for (path, methods) in methods {
      let resource = try #require(AdminResource(path: path.replacing("{name}", with: "x")))
      #expect(methods == Set(resource.methods).subtracting(["HEAD"]), "\(path)")
    }
    #expect(methods.count == 22 && OpenAPI.operations.count == 23)
  }
}
