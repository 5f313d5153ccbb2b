// The content of a request that changes something: after the request's name and a space, the bytes of the content. It is
// accepted if, and only if, the served description of the API accepts it. Without a name, the number of bytes chooses the
// request.

@testable import GatewayKit
@testable import StreamWebSocket

struct ContentsProperty {
  private struct Kind {
    let name: String
    let request: AdminRequest
    let schema: JSONValue
  }

  private let kinds: [Kind]
  private let schemas: ContentSchema

  private static let names = ["kick", "reset", "release", "reopen", "line", "writer", "send", "terminal"]

  init() throws(Broken) {
    guard let description = try? JSONReader.read(OpenAPI.description.description.utf8) else {
      throw Broken("the description does not read back")
    }
    schemas = ContentSchema(description)
    var kinds: [Kind] = []
    for name in Self.names + ["reload"] {
      let path = name == "reload" ? "/api/v1/reload" : "/api/v1/routes/{name}/\(name)"
      let line = "POST \(path.replacing("{name}", with: "gps")) HTTP/1.1\r\nHost: localhost\r\n\r\n"
      guard case .success((let head, _)?) = AdminRig.head(Array(line.utf8)),
        let resource = AdminResource(path: head.path),
        case .success(let request) = AdminRig.request(head, for: resource, WebPageRule()),
        let schema = description["paths"]?[path]?["post"]?["requestBody"]?["content"]?["application/json"]?["schema"]
      else { throw Broken("no request, or no schema: \(name)") }
      kinds.append(Kind(name: name, request: request, schema: schema))
    }
    self.kinds = kinds
  }

  func check(_ input: [UInt8]) throws(Broken) {
    let word = String(decoding: input.prefix { $0 != 0x20 }, as: UTF8.self)
    if let kind = kinds.first(where: { $0.name == word }) {
      try check(kind, Array(input.dropFirst(word.utf8.count + 1)))
    } else {
      try check(kinds[input.count % kinds.count], input)
    }
  }

  private func check(_ kind: Kind, _ content: [UInt8]) throws(Broken) {
    let outcome = AdminRig.action(kind.request, content)
    let json: JSONValue
    do throws(JSONFault) {
      json = content.isEmpty ? .object([]) : try JSONReader.read(content)
    } catch {
      guard case .failure(let refusal) = outcome else { throw Broken("no JSON, but accepted") }
      try AdminRig.check(refusal)
      try hold((0...content.count).contains(error.offset), "a fault at \(error.offset) of \(content.count)")
      try hold(refusal.detail.hasPrefix("The content is not JSON at byte \(error.offset): "), refusal.detail)
      return try hold(refusal.status == .badRequest, "\(refusal.status)")
    }
    let isDescribed = try schemas.accepts(json, kind.schema)
    switch outcome {
    case .failure(let refusal):
      try AdminRig.check(refusal)
      try hold(refusal.status == .unprocessableContent, "\(refusal.status): \(refusal.detail)")
      // A schema can't say that a key is there twice, nor how long a recipe takes.
      let keys = (json.members ?? []).map(\.key)
      try hold(
        !isDescribed || Set(keys).count < keys.count || keys == ["recipe"], "described, but refused: \(refusal.detail)")
      let loose = AdminRig.action(kind.request, Array(Self.loose(json).utf8))
      try hold(loose == outcome, "another refusal with fractions of 0: \(json)")
    case .success(let action):
      try hold(isDescribed, "accepted, but not described: \(json)")
      try hold((action == nil) == (kind.name == "terminal"), "no change")
      try hold(action?.route == nil || action?.route == "gps", "another route")
      try holdsOneLine(action?.detail, "a line of the log")
      let reversed = JSONValue.object((json.members ?? []).reversed())
      for text in [json.description, Self.loose(json), reversed.description] {
        try hold(AdminRig.action(kind.request, Array(text.utf8)) == outcome, "\(text) does something else")
      }
      let more = JSONValue.object((json.members ?? []) + [JSONValue.Member(key: "Unknown", value: .null)])
      guard case .failure(let refusal) = AdminRig.action(kind.request, Array(more.description.utf8)),
        refusal.detail.contains("'Unknown'")
      else { throw Broken("an unknown key is ignored, or not named") }
    }
  }

  /// The same value, with the whole numbers as 17.0.
  private static func loose(_ value: JSONValue) -> String {
    switch value {
    case .integer(let number) where number < 1 << 53: "\(number).0"
    case .array(let values): "[\(values.map { loose($0) }.joined(separator: ","))]"
    case .object(let members):
      "{\(members.map { "\(JSONValue.quote($0.key)):\(loose($0.value))" }.joined(separator: ","))}"
    default: value.description
    }
  }
}
