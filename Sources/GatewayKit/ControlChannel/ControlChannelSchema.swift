// The JSON Schema of `baudway.v1`, Deploy/baudway.v1.schema.json, made from the tables that read and write its texts.
// Extensions only add keys, events or requests: clients ignore unknown ones.

import ByteStreams
import StreamBroker

package enum ControlChannelSchema {
  package static var text: String { schema.pretty() + "\n" }

  private static var schema: JSONValue {
    .object([
      "$schema": .text("http://json-schema.org/draft-07/schema#"), "title": .text("Text messages of baudway.v1"),
      "description": .text(
        "One object in each text message of a WebSocket connection with this sub-protocol; binary messages carry the bytes."
      ),
      "definitions": .object([
        "request": ConfigSchema.any(ControlChannelRequest.verbs.map(request)), "reply": reply,
        "event": ConfigSchema.any(events), "id": id, "line": .object(["type": .text("object"), "properties": line]),
      ]),
      "anyOf": .array(["request", "reply", "event"].map { .object(["$ref": .text("#/definitions/\($0)")]) }),
    ])
  }

  private static let id = ConfigSchema.any([
    .object(["type": .text("integer"), "minimum": .integer(0)]),
    .object(["type": .text("string"), "maxLength": .integer(64)]),
  ])

  private static func request(_ verb: ControlChannelRequest.Verb) -> JSONValue {
    var properties = [
      JSONValue.Member(key: "request", value: .object(["const": .text(verb.name)])),
      JSONValue.Member(key: "id", value: .object(["$ref": .text("#/definitions/id")])),
    ]
    properties += verb.keys.map { JSONValue.Member(key: $0.name, value: value($0.kind)) }
    return .object([
      "description": .text(verb.summary), "type": .text("object"), "required": .words("request"),
      "minProperties": .integer(1 + verb.least), "additionalProperties": .bool(false),
      "properties": .object(properties),
    ])
  }

  private static func value(_ kind: ControlChannelRequest.Kind) -> JSONValue {
    switch kind {
    case .flag: .object(["type": .text("boolean")])
    case .number(let range):
      .object([
        "type": .text("integer"), "minimum": .integer(range.lowerBound), "maximum": .integer(range.upperBound),
      ])
    // A JSON number counts as the word with its digits.
    case .words(let words):
      .object([
        "enum": .array(
          words.flatMap { word -> [JSONValue] in
            if let number = UInt64(word) { return [.text(word), .integer(number)] }
            if let number = Double(word) { return [.text(word), .decimal(number)] }
            return [.text(word)]
          })
      ])
    }
  }

  private static var line: JSONValue {
    .object(
      ControlChannelRequest.verbs.first { $0.name == "line" }!.keys.map {
        JSONValue.Member(key: $0.name, value: value($0.kind))
      })
  }

  private static let reply = JSONValue.object([
    "description": .text("the answer to the request with this id"), "type": .text("object"),
    "required": .words("reply", "ok"),
    "properties": .object([
      "reply": ConfigSchema.any([.object(["$ref": .text("#/definitions/id")]), .object(["type": .text("null")])]),
      "ok": .object(["type": .text("boolean")]), "error": .object(["type": .text("string")]),
      "suggestion": .object(["type": .text("string")]), "line": .object(["$ref": .text("#/definitions/line")]),
    ]),
  ])

  private static var events: [JSONValue] {
    ControlChannelEvent.names.map { name, summary in
      let properties = [JSONValue.Member(key: "event", value: .object(["const": .text(name)]))] + keys(of: name)
      return .object([
        "description": .text(summary), "type": .text("object"),
        "required": .array((["event"] + required(of: name)).map { .text($0) }), "properties": .object(properties),
      ])
    }
  }

  private static func required(of event: String) -> [String] {
    let optional = ["user", "banner", "reason"]
    return keys(of: event).map(\.key).filter { !optional.contains($0) }
  }

  private static func keys(of event: String) -> [JSONValue.Member] {
    let count = JSONValue.object(["type": .text("integer"), "minimum": .integer(0)])
    let text = JSONValue.object(["type": .text("string")])
    let flag = JSONValue.object(["type": .text("boolean")])
    let pairs: KeyValuePairs<String, JSONValue?> =
      switch event {
      case "hello":
        [
          "protocol": .object(["const": .text("baudway.v1")]), "route": text, "session": count,
          "role": .object(["enum": .words("writer", "monitor")]), "user": text, "banner": text,
        ]
      case "link":
        [
          "state": .object(["enum": .words("closed", "opening", "open", "waiting", "draining")]), "reason": text,
        ]
      case "writer":
        [
          "holder": ConfigSchema.any([count, .object(["type": .text("null")])]),
          "mine": flag,
        ]
      case "outputs":
        [
          "dtr": ConfigSchema.any([flag, .object(["type": .text("null")])]),
          "rts": ConfigSchema.any([flag, .object(["type": .text("null")])]), "break": flag,
        ]
      case "modem": ["cts": flag, "dsr": flag, "dcd": flag, "ri": flag, "changes": count]
      case "errors":
        ["breaks": count, "framing": count, "parity": count, "overruns": count, "bufferOverruns": count]
      case "drops": ["bytes": count, "total": count]
      case "queue": ["place": count]
      case "lost": ["count": count]
      case "end":
        ["word": .object(["enum": .array(Ending.Word.allCases.map { .text($0.rawValue) })]), "reason": text]
      default: [:]
      }
    return (event == "line" ? line : JSONValue.object(pairs)).members ?? []
  }
}
