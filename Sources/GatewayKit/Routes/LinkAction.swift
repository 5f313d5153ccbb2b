// What an administrator can ask of a route's shared link: `baudway reset`, `release` and `reopen`, and these and more by the
// API.

import StreamBroker

package enum LinkAction: Hashable, Sendable {
  /// Carries out a reset recipe at the port; nil for the route's own.
  case reset(ResetRecipe?)
  /// Gives the port up.
  case release
  case reopen
  /// Changes settings and outputs of the open port.
  case line(LineAsk)
  /// Gives the writer role to a session, or takes it from the one that has it.
  case writer(UInt64?)
  /// Sends bytes to the device.
  case send([UInt8])

  /// The word for requests and the log.
  package var name: String {
    switch self {
    case .reset: "reset"
    case .release: "release"
    case .reopen: "reopen"
    case .line: "line"
    case .writer: "writer"
    case .send: "send"
    }
  }

  var recipe: ResetRecipe? { if case .reset(let recipe) = self { recipe } else { nil } }

  /// For the log.
  var detail: String? {
    switch self {
    case .reset(let recipe): recipe?.text
    case .release, .reopen: nil
    case .line(let ask): ask.description
    case .writer(let session): session.map { "session \($0)" } ?? "no session"
    case .send(let bytes): Figures.count(bytes.count, "byte")
    }
  }

  /// The key of an answer that says whether it was done, and that of the result's text.
  private var keys: (isDone: String, result: String?) {
    switch self {
    case .reset: ("reset", "recipe")
    case .release: ("released", nil)
    case .reopen: ("reopened", "link")
    case .line: ("changed", "line")
    case .writer: ("moved", "writer")
    case .send: ("sent", "bytes")
    }
  }

  /// Whether the answer says that it was done; nil if it is not one to this.
  func isDone(_ answer: JSONValue) -> Bool? { answer[keys.isDone]?.flag }
  /// What it says more.
  func result(_ answer: JSONValue) -> String { keys.result.flatMap { answer[$0]?.text } ?? "" }

  /// The answer to a program.
  func answer(_ result: Result<JSONValue, LinkRefusal>, on route: String) -> JSONValue {
    switch result {
    case .success(let result):
      .object([
        keys.isDone: .bool(true), "route": .text(route), keys.result ?? "": keys.result.map { _ in result },
      ])
    case .failure(let refusal):
      .object([keys.isDone: .bool(false), "route": .text(route), "error": .text(refusal.message)])
    }
  }
}

/// Changes of a line, in the order in which they are made.
package struct LineAsk: Hashable, Sendable, CustomStringConvertible {
  let requests: [ControlChannelRequest]

  package var description: String { requests.map(\.description).joined(separator: ", ") }

  static let outputs = ["dtr", "rts"]
  static let keys = Set(kinds.map(\.key))
  private static let settings = verb("line").map(\.name)
  /// The keys of `baudway.v1`, by the names that they have here.
  private static let kinds: [(key: String, kind: ControlChannelRequest.Kind)] =
    verb("line").map { ($0.name, $0.kind) }
    + outputs.flatMap { output in verb(output).map { (output, $0.kind) } }
    + verb("break").filter { $0.name == "ms" }.map { ("break", $0.kind) }

  private static func verb(_ name: String) -> [(name: String, kind: ControlChannelRequest.Kind)] {
    ControlChannelRequest.verbs.first { $0.name == name }?.keys ?? []
  }

  /// The object has these keys only; their values are checked as those of `baudway.v1`. A fault names the key of the
  /// object.
  init(_ object: JSONValue) throws(ControlChannelRequest.Fault) {
    for (key, kind) in Self.kinds {
      if let value = object[key] { try kind.check(value, key) }
    }
    let settings = (object.members ?? []).filter { Self.settings.contains($0.key) }
    var requests: [ControlChannelRequest] = []
    func add(_ name: String, _ keys: [JSONValue.Member]) throws(ControlChannelRequest.Fault) {
      let whole = JSONValue.object([JSONValue.Member(key: "request", value: .text(name))] + keys)
      requests.append(try ControlChannelRequest.parse(Array(whole.description.utf8)).request)
    }
    if !settings.isEmpty { try add("line", settings) }
    for name in Self.outputs {
      if let isOn = object[name] { try add(name, [JSONValue.Member(key: "on", value: isOn)]) }
    }
    if let time = object["break"] { try add("break", [JSONValue.Member(key: "ms", value: time)]) }
    guard !requests.isEmpty else {
      throw .init(id: nil, message: "name a change, such as {\"baud\":115200} or {\"dtr\":false}")
    }
    self.requests = requests
  }
}

extension LinkRefusal {
  fileprivate static let noSharedLink = LinkRefusal(
    "each client of this route has a link of its own; only a shared link has a port")
}

extension Route {
  /// Begins a live recording.
  func capture(_ buffer: CaptureBuffer, to writer: LiveCaptureWriter) -> Result<CaptureSubject, LinkRefusal> {
    guard let link = group.sharedLink else { return .failure(.noSharedLink) }
    group.recording.beginLive(buffer, to: writer, of: link)
    return .success(CaptureSubject(route: settings.name, endpoint: settings.endpoint))
  }

  func endCapture(_ writer: LiveCaptureWriter) { group.recording.endLive(writer, of: group.sharedLink) }

  /// The answer says more about what was done: the recipe's name, the link's state. `label`: who asks.
  func carryOut(
    _ action: LinkAction, for label: AcceptedConnection.Label?,
    then done: @escaping (Result<JSONValue, LinkRefusal>) -> Void
  ) {
    guard let link = group.sharedLink else {
      return done(.failure(.noSharedLink))
    }
    switch action {
    case .reset(let recipe):
      guard let recipe = recipe ?? settings.device.reset else {
        return done(
          .failure(LinkRefusal("the route has no 'device.reset'; name a recipe: \(ResetRecipe.expected)")))
      }
      link.reset(by: recipe) { result in done(result.map { .text(recipe.name) }) }
    case .release: link.release { result in done(result.map { _ in .null }) }
    case .reopen:
      link.reopen()
      done(.success(.text(link.status.word)))
    case .line(let ask): link.change(by: ask) { result in done(result.map { .text($0.description) }) }
    case .writer(let session):
      if let refusal = link.hub.upstream.giveRole(to: session) { return done(.failure(LinkRefusal(refusal))) }
      done(.success(session.map { .integer($0) } ?? .null))
    case .send(let bytes):
      send(bytes, from: label ?? AcceptedConnection.Label(address: nil, listener: "control"), then: done)
    }
  }
}
