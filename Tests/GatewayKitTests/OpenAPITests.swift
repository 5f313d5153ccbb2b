import StreamBroker
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("The description of the API")
struct OpenAPITests {
  /// Has each key that may be missing elsewhere.
  private static var whole: Snapshot {
    let listeners: [Snapshot.Listener] = [
      .init(url: "tcp://:1", state: .listening("tcp://*:1"), nanoseconds: 1, limit: "IPv4 only"),
      .init(url: "tcp://:2", state: .waiting(error: "bind", retry: .seconds(1)), nanoseconds: 1),
    ]
    var device = DeviceFacts()
    device.name = "x"
    var shared = Snapshot.Route(name: "a", endpoint: "tty:///dev/x", link: .shared, maxClients: 8)
    shared.isStuck = true
    shared.listeners = listeners
    shared.state = Snapshot.LinkState(
      word: "open", nanoseconds: 1, line: "9600 8N1", device: device, reason: "r", isReleased: true,
      retry: .seconds(1),
      hold: Snapshot.Hold(cause: .cts, nanoseconds: 1), overruns: 1)
    shared.capture = Snapshot.Capture(file: "/x", error: "write", written: 1, dropped: 1)
    shared.clients = [
      Snapshot.Client(
        number: 1, address: "127.0.0.1:1", user: "ada", tls: "TLS 1.3", listener: "tcp://:1", role: .writer,
        nanoseconds: 1, up: 1, down: 1, dropped: 1, queuedUp: 1, queuedDown: 1, isWriter: true, phase: .closing,
        closingNanoseconds: 1)
    ]
    let perClient = Snapshot.Route(
      name: "b", endpoint: "tcp://h:1", link: .perClient, maxClients: 8, links: ["open": 1])
    return Snapshot(
      version: "1", process: 1, nanoseconds: 1, isHealthy: true, certificateFaults: ["x"], refused: ["full": 1],
      failedReload: .init(problems: ["x"], more: 1, nanoseconds: 1),
      handshakes: .init(unfinished: 1, most: 1, refused: 1), admin: listeners, routes: [shared, perClient])
  }

  private static let schemas = OpenAPI.description["components"]?["schemas"]

  /// The keys of an answer, and those that its schema describes, each by its place.
  private static func collect(
    _ value: JSONValue, _ schema: JSONValue, at place: String, _ sent: inout Set<String>,
    _ described: inout Set<String>
  ) {
    var schema = schema
    if let name = schema["$ref"]?.text?.split(separator: "/").last { schema = schemas?[String(name)] ?? .null }
    for element in value.array ?? [] { collect(element, schema["items"] ?? .null, at: place + "[]", &sent, &described) }
    guard let properties = schema["properties"]?.members else { return }
    for member in properties { described.insert("\(place).\(member.key)") }
    for member in value.members ?? [] {
      let place = "\(place).\(member.key)"
      sent.insert(place)
      collect(member.value, schema["properties"]?[member.key] ?? .null, at: place, &sent, &described)
    }
  }

  /// The answer of an operation with this status.
  private static func answer(_ status: Int, of method: String, _ path: String) -> JSONValue? {
    OpenAPI.description["paths"]?[path]?[method]?["responses"]?[String(status)]
  }

  @Test("limits the numbers of sessions to 64 bits")
  func sessions() {
    let kick = Self.schemas?["Kick"]?["oneOf"]?.array?.last?["properties"]?["sessions"]?["items"]
    let writer = Self.schemas?["Writer"]?["properties"]?["session"]
    for schema in [kick, writer] {
      #expect(schema?["minimum"] == .integer(0) && schema?["maximum"] == .integer(UInt64.max))
    }
  }

  @Test("names the recipes, and has the grammar of others")
  func recipes() throws {
    let pattern = try #require(Self.schemas?["Reset"]?["properties"]?["recipe"]?["pattern"]?.text)
    let recipe = try Regex(pattern)
    for (name, text) in ResetRecipe.builtIn { #expect(name.contains(recipe) && text.contains(recipe)) }
    for text in ["", "esp", "esp32 ", "custom", "custom()", "custom(dtr=maybe)", "x custom(dtr=on)"] {
      #expect(!text.contains(recipe), "\(text)")
    }
  }

  @Test("has the same names of routes in paths and in the query of readyz")
  func routeNames() throws {
    let paths = OpenAPI.description["paths"]
    let ready = try #require(paths?["/readyz"]?["get"]?["parameters"]?.array?.first?["schema"]?["pattern"])
    #expect(ready == paths?["/api/v1/routes/{name}"]?["get"]?["parameters"]?.array?.first?["schema"]?["pattern"])
  }

  @Test("has no schema for the stream of events, which OpenAPI 3.1 can't describe")
  func events() {
    #expect(Self.answer(200, of: "get", "/api/v1/events")?["content"] == .object(["text/event-stream": .object([])]))
  }

  @Test("has the terminal's WebSocket, and the answer to a request for none")
  func terminal() {
    let path = "/api/v1/routes/{name}/terminal"
    #expect(Self.answer(101, of: "get", path) != nil && Self.answer(101, of: "get", path)?["content"] == nil)
    #expect(Self.answer(426, of: "get", path) != nil && Self.answer(200, of: "get", path) == nil)
    #expect(Self.answer(426, of: "post", path) == nil)
  }

  @Test("has each key of the state, and no other")
  func keys() throws {
    let whole = Self.whole
    let routes = whole.routes.map { route in
      route.opening + route.clients.map(\.json.description).joined(separator: ",") + Snapshot.Route.closing
    }
    let json = try JSONReader.read((whole.opening + routes.joined(separator: ",") + Snapshot.closing).utf8)
    var (sent, described): (Set<String>, Set<String>) = ([], [])
    Self.collect(json, try #require(Self.schemas?["Status"]), at: "", &sent, &described)
    #expect(sent.subtracting(described) == [])
    #expect(described.subtracting(sent) == [".routes[].clients[].route"], "that one is in the list of all clients")
  }
}
