// The description of the API, by OpenAPI 3.1: served at /api/v1/openapi.json. Tests/EndToEnd/test_api.py compares it with
// what the gateway answers.

import StreamBroker

enum OpenAPI {
  static var description: JSONValue {
    .object([
      "openapi": .text("3.1.0"),
      "info": .object([
        "title": .text("Baudway"), "version": .text(Version.text),
        "description": .text(
          "Later versions may add keys to answers. Times are in seconds. Routes on which the user has no role are hidden."
        ),
      ]),
      "security": .array([.object([]), .object(["basic": .array([])]), .object(["bearer": .array([])])]),
      "paths": .object(
        Dictionary(grouping: operations, by: \.path).sorted { $0.key < $1.key }.map { path, operations in
          JSONValue.Member(
            key: path,
            value: .object(operations.map { JSONValue.Member(key: $0.method, value: $0.description) }))
        }),
      "components": .object([
        "securitySchemes": .object([
          "basic": .object(["type": .text("http"), "scheme": .text("basic")]),
          "bearer": .object(["type": .text("http"), "scheme": .text("bearer")]),
        ]),
        "schemas": .object(schemas),
      ]),
    ])
  }

  // MARK: - Operations

  struct Operation {
    let path: String
    let method: String
    let summary: String
    var parameters: [JSONValue] = []
    /// The schema of the content; nil where there is none.
    var request: String?
    var isRequestNeeded = false
    /// Content types with their schemas.
    let answers: [(type: String, schema: JSONValue?)]
    /// The status of the answers.
    var done = 200
    /// In addition to 400, 401, 403, 405, 411, 413, 429, 431 and 503, and to 404 and 504 for a route.
    var failures: [Int] = []
    /// Their failures are text.
    var isProbe = false
    var needsLogIn = true

    var description: JSONValue {
      var responses = [JSONValue.Member(key: String(done), value: OpenAPI.response("done", answers))]
      let isOfRoute = path.contains("{name}")
      let others = isProbe ? [] : needsLogIn ? [401, 403, 429] : [403]
      let all = [400, 405, 411, 413, 431, 503] + others + (isOfRoute ? [404, 504] : []) + failures
      for status in Set(all).sorted() {
        var types: [(type: String, schema: JSONValue?)] = [("application/problem+json", OpenAPI.reference("Problem"))]
        if isProbe { types.append(("text/plain; charset=utf-8", .object(["type": .text("string")]))) }
        responses.append(JSONValue.Member(key: String(status), value: OpenAPI.response("not done", types)))
      }
      let name = JSONValue.object([
        "name": .text("name"), "in": .text("path"), "required": .bool(true), "description": .text("a route"),
        "schema": OpenAPI.routeName,
      ])
      let parameters = (isOfRoute ? [name] : []) + parameters
      return .object([
        "summary": .text(summary), "parameters": parameters.isEmpty ? nil : .array(parameters),
        "security": needsLogIn ? nil : .array([.object([])]),
        "requestBody": request.map { request in
          .object([
            "required": .bool(isRequestNeeded),
            "content": .object(["application/json": .object(["schema": OpenAPI.reference(request)])]),
          ])
        },
        "responses": .object(responses),
      ])
    }
  }

  private static let text: [(type: String, schema: JSONValue?)] = [("text/plain; charset=utf-8", string)]
  // Without a schema: OpenAPI has words for single events only since 3.2. Before, some programs read a schema here as that
  // of one event, and others as that of all.
  private static let events: [(type: String, schema: JSONValue?)] = [("text/event-stream", nil)]
  private static func json(_ name: String) -> [(type: String, schema: JSONValue?)] {
    [(type: AdminResponse.json, schema: reference(name))]
  }

  static let operations: [Operation] = [
    Operation(
      path: "/", method: "get", summary: "The status page, which loads its own files from below /page/.",
      answers: [("text/html; charset=utf-8", .object(["type": .text("string")]))], needsLogIn: false),
    Operation(
      path: "/healthz", method: "get", summary: "Whether the process works: all its threads answer.", answers: text,
      isProbe: true, needsLogIn: false),
    Operation(
      path: "/readyz", method: "get",
      summary: "Whether all listeners are bound, or with a route: whether its clients find its device.",
      parameters: [
        .object([
          "name": .text("route"), "in": .text("query"), "schema": routeName,
        ])
      ], answers: text, failures: [404], isProbe: true, needsLogIn: false),
    Operation(
      path: "/metrics", method: "get", summary: "Figures for Prometheus.",
      answers: [MetricsFormat.prometheus, .openMetrics].map {
        ($0.contentType, .object(["type": .text("string")]))
      }),
    Operation(
      path: "/api/v1/openapi.json", method: "get", summary: "This description.",
      answers: [(AdminResponse.json, .object(["type": .text("object")]))]),
    Operation(
      path: "/api/v1/user", method: "get",
      summary: "The user's name and roles: on \"*\", and on each route that it sees.",
      answers: json("User")),
    Operation(
      path: "/api/v1/routes", method: "get",
      summary: "The state of the gateway and its routes, as `status --json` has it.",
      answers: json("Status")),
    Operation(path: "/api/v1/routes/{name}", method: "get", summary: "One route.", answers: json("Route")),
    Operation(
      path: "/api/v1/clients", method: "get", summary: "The clients of all routes.", answers: json("Clients")),
    Operation(
      path: "/api/v1/devices", method: "get",
      summary:
        "Serial ports and Bluetooth adapters of this machine, as `devices --json` has it; needs a role on \"*\".",
      answers: json("Devices")),
    Operation(
      path: "/api/v1/events", method: "get",
      summary: "Server-sent events: each line of the log from level info on, as the log has it in JSON.",
      parameters: [
        .object([
          "name": .text("Last-Event-ID"), "in": .text("header"),
          "description": .text("the last event that the client has; later ones that are still kept come first"),
          "schema": .object(["type": .text("string")]),
        ])
      ], answers: events),
    Operation(
      path: "/api/v1/log", method: "get",
      summary: "The latest events that the user may see, at most 200, oldest first.", answers: json("Log")),
    Operation(
      path: "/api/v1/routes/{name}/log", method: "get", summary: "The latest events of one route, as /api/v1/log.",
      answers: json("Log")),
    Operation(
      path: "/api/v1/reload", method: "post",
      summary:
        "Reads the configuration again; needs the role admin on \"*\". 422: it has mistakes, and nothing has changed.",
      request: "Nothing", answers: json("Reloaded"), failures: contentFailures + [409]),
    Operation(
      path: "/api/v1/routes/{name}/kick", method: "post", summary: "Ends sessions; needs the role admin on the route.",
      request: "Kick", isRequestNeeded: true, answers: json("Kicked"), failures: contentFailures),
    Operation(
      path: "/api/v1/routes/{name}/reset", method: "post",
      summary:
        "Carries out a reset recipe at the open port; needs the role admin on the route. 409: not done, or not all.",
      request: "Reset", answers: json("WasReset"), failures: contentFailures + [409]),
    Operation(
      path: "/api/v1/routes/{name}/release", method: "post",
      summary:
        "Closes the port, so that another program can use it, until it is reopened; needs the role admin on the route.",
      request: "Nothing", answers: json("Released"), failures: contentFailures + [409]),
    Operation(
      path: "/api/v1/routes/{name}/reopen", method: "post",
      summary: "Opens a released port again once it is needed; needs the role admin on the route.",
      request: "Nothing", answers: json("Reopened"), failures: contentFailures + [409]),
    Operation(
      path: "/api/v1/routes/{name}/line", method: "post",
      summary:
        "Changes settings and outputs of the open port, until it is closed; needs the role admin on the route. 409: not done, or not all.",
      request: "Line", isRequestNeeded: true, answers: json("Changed"), failures: contentFailures + [409]),
    Operation(
      path: "/api/v1/routes/{name}/writer", method: "post",
      summary:
        "Gives the writer role to a session, or takes it from the one that has it; needs the role admin on the route.",
      request: "Writer", isRequestNeeded: true, answers: json("Moved"), failures: contentFailures + [409]),
    Operation(
      path: "/api/v1/routes/{name}/send", method: "post",
      summary:
        "Sends bytes to the device, as a client that comes, sends them and leaves; needs the role admin on the route. 409: not all were sent.",
      request: "Send", isRequestNeeded: true, answers: json("Sent"), failures: contentFailures + [409]),
    Operation(
      path: "/api/v1/routes/{name}/terminal", method: "post",
      summary:
        "A ticket for a terminal: for a few seconds, a WebSocket to this path may log in once by the sub-protocols baudway.v1 and ticket.TICKET.",
      request: "Nothing", answers: json("Ticket"), failures: contentFailures),
    Operation(
      path: "/api/v1/routes/{name}/terminal", method: "get",
      summary:
        "A WebSocket to the route, with the sub-protocol baudway.v1. 426: the request asks for no WebSocket.",
      answers: [], done: 101, failures: [426]),
  ]

  /// Of requests with content.
  private static let contentFailures = [408, 415, 422]

  static func response(_ description: String, _ types: [(type: String, schema: JSONValue?)]) -> JSONValue {
    let content = types.map { JSONValue.Member(key: $0.type, value: .object(["schema": $0.schema])) }
    return .object([
      "description": .text(description), "content": content.isEmpty ? nil : .object(content),
    ])
  }

  // MARK: - Schemas

  static func reference(_ name: String) -> JSONValue { .object(["$ref": .text("#/components/schemas/\(name)")]) }

  private static let string = JSONValue.object(["type": .text("string")])
  private static let count = JSONValue.object(["type": .text("integer"), "minimum": .integer(0)])
  private static let number = JSONValue.object(["type": .text("number"), "minimum": .integer(0)])
  private static let flag = JSONValue.object(["type": .text("boolean")])
  private static func list(_ item: JSONValue) -> JSONValue { .object(["type": .text("array"), "items": item]) }
  private static func words(_ words: [String]) -> JSONValue { .object(["enum": .array(words.map { .text($0) })]) }
  private static let session = JSONValue.object([
    "type": .text("integer"), "minimum": .integer(0), "maximum": .integer(UInt64.max),
  ])
  private static let sessionOrNone = JSONValue.object([
    "type": .array([.text("integer"), .text("null")]), "minimum": .integer(0), "maximum": .integer(UInt64.max),
  ])
  private static let routeName = JSONValue.object([
    "type": .text("string"), "pattern": .text("^[a-z0-9._-]{1,64}$"),
  ])
  /// A custom one also takes 5 s at most, sets each line once in a step and begins with a line.
  private static let recipe = JSONValue.object([
    "type": .text("string"),
    "pattern": .text("^(?:\((ResetRecipe.names + [ResetRecipe.pattern]).joined(separator: "|")))$"),
  ])
  private static func between(_ least: Int, _ most: Int) -> JSONValue {
    .object(["type": .text("integer"), "minimum": .integer(least), "maximum": .integer(most)])
  }
  private static let linkWord = words(["closed", "opening", "open", "waiting", "draining"])
  private static let role = words(Config.User.Role.allCases.map(\.rawValue))
  private static let counts = JSONValue.object(["type": .text("object"), "additionalProperties": count])

  /// Keys whose names end in `?` may be missing.
  private static func object(_ keys: KeyValuePairs<String, JSONValue>, isClosed: Bool = false) -> JSONValue {
    let members = keys.map { JSONValue.Member(key: $0.hasSuffix("?") ? String($0.dropLast()) : $0, value: $1) }
    let needed = keys.map(\.key).filter { !$0.hasSuffix("?") }
    return .object([
      "type": .text("object"), "properties": .object(members),
      "required": needed.isEmpty ? nil : .array(needed.map { .text($0) }),
      "additionalProperties": isClosed ? .bool(false) : nil,
    ])
  }

  private static let schemas: [JSONValue.Member] = [
    (
      "Problem",
      object(["type": string, "title": string, "status": count, "detail": string, "problems?": list(string)])
    ),
    (
      "User",
      object([
        "user?": string, "role?": role,
        "routes": .object(["type": .text("object"), "additionalProperties": role]),
      ])
    ),
    ("Log", object(["lines": list(object(["id": string, "time": string, "level": string, "event": string]))])),
    (
      "Status",
      object([
        "protocol": count, "version": string, "pid": count, "seconds": number, "healthy": flag,
        "certificate-faults?": list(string), "refused?": counts,
        "reload-failed?": object(["seconds": number, "problems": list(string), "more?": count]),
        "handshakes?": object(["unfinished": count, "most": count, "refused": count]),
        "admin?": list(reference("Listener")), "routes": list(reference("Route")),
      ])
    ),
    (
      "Route",
      object([
        "route": string, "endpoint": string, "link": words(Config.Link.allCases.map(\.rawValue)),
        "state?": reference("LinkState"), "links?": counts, "max-clients": count, "queued": count, "stuck?": flag,
        "listeners": list(reference("Listener")), "capture?": reference("Capture"), "totals": reference("Totals"),
        "clients": list(reference("Client")),
      ])
    ),
    (
      "LinkState",
      object([
        "word": linkWord, "seconds": number, "line?": string,
        "device?": .object(["type": .text("object")]), "reason?": string, "released?": flag,
        "retry?": number,
        "held?": object(["by": words(OutputHold.Cause.allCases.map(\.rawValue)), "seconds": number]), "overrun?": count,
      ])
    ),
    (
      "Listener",
      object([
        "listen": string, "state": words(["starting", "listening", "waiting"]), "seconds": number, "bound?": string,
        "error?": string, "retry?": number, "limited?": string,
      ])
    ),
    ("Capture", object(["file?": string, "error?": string, "written": count, "dropped": count])),
    (
      "Totals",
      object([
        "up": count, "down": count, "dropped": count, "sessions": count,
        "ended": .object([
          "type": .text("object"), "additionalProperties": count,
          "propertyNames": words(Ending.Word.allCases.map(\.rawValue)),
        ]), "per-address": count, "line-changes": count, "line-refusals": count,
      ])
    ),
    (
      "Client",
      object([
        "route?": string, "session": session, "client?": string, "user?": string, "tls?": string, "listen": string,
        "role": words(Config.Listen.Role.allCases.map(\.rawValue)),
        "state": words(Snapshot.Client.Phase.allCases.map(\.rawValue)), "seconds": number, "closing-seconds?": number,
        "up": count, "down": count, "dropped": count, "queued-up": count, "queued-down": count, "writer?": flag,
      ])
    ),
    ("Clients", object(["clients": list(reference("Client"))])),
    (
      "Devices",
      object([
        "serial": list(object(["url": string, "node": string, "links": list(string)])),
        "bluetooth": list(object(["adapter": string, "address": string, "on": flag])), "bluetooth-error?": string,
      ])
    ),
    ("Nothing", object([:], isClosed: true)),
    (
      "Reloaded",
      object([
        "reloaded": flag, "added": list(string), "removed": list(string),
        "changed": list(object(["route": string, "keys": list(string)])), "untouched": count, "settings": list(string),
        "certificate-faults?": list(string),
      ])
    ),
    (
      "Kick",
      .object([
        "oneOf": .array([
          object(["all": .object(["const": .bool(true)])], isClosed: true),
          object(
            [
              "sessions": .object([
                "type": .text("array"), "items": session, "minItems": .integer(1),
                "maxItems": .integer(AdminRequest.mostSessions),
              ])
            ], isClosed: true),
        ])
      ])
    ),
    ("Kicked", object(["kicked": list(session)])),
    ("Reset", object(["recipe?": recipe], isClosed: true)),
    ("Ticket", object(["ticket": string, "seconds": count])),
    ("WasReset", object(["reset": .object(["const": .bool(true)]), "route": string, "recipe": string])),
    (
      "Line",
      .object([
        "type": .text("object"), "additionalProperties": .bool(false), "minProperties": .integer(1),
        "properties": .object([
          "baud": between(1, Int(ControlChannelRequest.mostBits)), "data": between(5, 8),
          "parity": words(LineSettings.Parity.allCases.map(\.rawValue)),
          "stop": .object([
            "enum": .array(
              [.integer(1), .decimal(1.5), .integer(2)] + LineSettings.StopBits.allCases.map { .text($0.rawValue) })
          ]),
          "flow": words(LineSettings.FlowControl.allCases.map(\.rawValue)), "dtr": flag, "rts": flag,
          "break": between(1, Int(ControlChannelRequest.longestBreak)),
        ]),
      ])
    ), ("Changed", object(["changed": .object(["const": .bool(true)]), "route": string, "line": string])),
    ("Writer", object(["session": sessionOrNone], isClosed: true)),
    ("Moved", object(["moved": .object(["const": .bool(true)]), "route": string, "writer": sessionOrNone])),
    (
      "Send",
      .object([
        "oneOf": .array([
          object(["text": .object(["type": .text("string"), "minLength": .integer(1)])], isClosed: true),
          object(
            ["hex": .object(["type": .text("string"), "pattern": .text("^ *([0-9A-Fa-f]{2} *)+$")])], isClosed: true),
        ])
      ])
    ), ("Sent", object(["sent": .object(["const": .bool(true)]), "route": string, "bytes": count])),
    ("Released", object(["released": .object(["const": .bool(true)]), "route": string])),
    ("Reopened", object(["reopened": .object(["const": .bool(true)]), "route": string, "link": linkWord])),
  ].map { JSONValue.Member(key: $0.0, value: $0.1) }
}
