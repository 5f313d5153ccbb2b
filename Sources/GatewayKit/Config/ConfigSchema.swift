// The JSON Schema of config.yaml (draft 7, which editors support best), made from ConfigKeys and the schemes of URLs.
// It covers shapes, names, words and ranges; only `check` compares values with each other. Plain values are in
// ConfigSchema+Values.swift.

import StreamBroker

package struct ConfigSchema {
  /// The schema of this build, as the content of a file. `broker` knows which endpoints can be opened.
  package static func text(
    broker: Broker = Gateway.broker, listeners: Set<String> = ListenerSchemes.built
  ) -> String {
    var schema = ConfigSchema(broker: broker, listeners: listeners)
    return schema.root().pretty() + "\n"
  }

  private let endpoints: Set<String>
  private let listeners: Set<String>
  /// Parts used in several places, by name.
  private var definitions: [(name: String, schema: JSONValue)] = []

  private init(broker: Broker, listeners: Set<String>) {
    endpoints = broker.schemes
    self.listeners = listeners
  }

  private mutating func root() -> JSONValue {
    // Evaluated before `definitions`, which it fills.
    let properties = properties(of: ConfigKeys.top)
    return .object([
      "$schema": .text("http://json-schema.org/draft-07/schema#"),
      "title": .text("Configuration of Baudway"),
      "description": .text("Made by `baudway schema`; for YAML 1.2, in which on, off, yes and no are words."),
      "type": .text("object"),
      "anyOf": .array([
        .object(["required": .array([.text("routes")])]), .object(["required": .array([.text("include")])]),
      ]),
      "additionalProperties": .bool(false), "properties": properties,
      "definitions": .object(
        (Self.valueDefinitions + definitions).map { JSONValue.Member(key: $0.name, value: $0.schema) }),
    ])
  }

  // MARK: keys

  private mutating func properties(of keys: [ConfigKey]) -> JSONValue {
    var members: [JSONValue.Member] = []
    for key in keys {
      if let schema = schema(of: key) { members.append(JSONValue.Member(key: key.name, value: schema)) }
    }
    return .object(members)
  }

  /// Nil for a key that is not allowed at all.
  private mutating func schema(of key: ConfigKey) -> JSONValue? {
    guard let body = body(of: key) else { return nil }
    let support = key.support(with: listeners)
    let notes = [
      support == .built ? nil : "not in \(Version.name)", key.isForSharedLinks ? "shared links only" : nil,
    ].compactMap(\.self)
    let summary = key.summary + (notes.isEmpty ? "" : " (\(notes.joined(separator: "; ")))")
    var members = [JSONValue.Member(key: "description", value: .text(summary))]
    if support == .later() { members.append(JSONValue.Member(key: "doNotSuggest", value: .bool(true))) }
    if case .value(let kind) = key.shape, let standard = key.standard {
      members.append(JSONValue.Member(key: "default", value: Self.plain(standard, kind)))
    }
    // Draft 7 ignores members beside a $ref, so the description is in the part that is referred to.
    let whole = JSONValue.object(members + (body.members ?? []))
    guard ConfigKeys.policies.contains(where: { $0.name == key.name }), isSection(key) else { return whole }
    return reference(to: key.name, whole)
  }

  private func isSection(_ key: ConfigKey) -> Bool {
    switch key.shape {
    case .mapping, .switched: key.support(with: listeners) == .built
    default: false
    }
  }

  private mutating func body(of key: ConfigKey) -> JSONValue? {
    switch (key.shape, key.support(with: listeners)) {
    case (.value(let kind), .built): return Self.value(kind)
    case (.value, .later(let granted)): return granted.isEmpty ? nil : Self.value(.words(granted))
    case (.list(let kind), .built): return Self.list(Self.value(kind))
    case (.list, .later): return .object(["type": .words("array", "null"), "maxItems": .integer(0)])
    case (.mapping(let keys), .built): return mapping(keys)
    case (.switched(let keys), .built): return Self.any([Self.value(.words(["off"])), mapping(keys)])
    case (.switched, .later(let granted)):
      return Self.any([Self.value(.words(granted)), .object(["type": .text("null")])])
    case (.mappings(let keys), .built): return Self.list(mapping(keys))
    case (.named(let shape, let names), .built): return named(shape, names)
    case (.url(let schemes, let built, let isList), .built): return url(schemes, built, isList: isList, key.name)
    case (.url, .later): return nil
    // A section that is commented out as a whole is null.
    case (.mapping, .later), (.mappings, .later), (.named, .later): return .object(["type": .text("null")])
    }
  }

  /// Null is allowed: all keys may be commented out.
  private mutating func mapping(_ keys: [ConfigKey]) -> JSONValue {
    .object([
      "type": .words("object", "null"), "additionalProperties": .bool(false), "properties": properties(of: keys),
    ])
  }

  private mutating func named(_ shape: ConfigKey.Shape, _ names: ConfigKey.Names) -> JSONValue {
    guard case .mapping(let keys) = shape, names == .routes else {
      let one: JSONValue? =
        switch shape {
        case .value(let kind): Self.value(kind)
        case .mapping(let keys): mapping(keys)
        default: nil
        }
      return .object(["type": .words("object", "null"), "additionalProperties": one])
    }
    let route = JSONValue.object([
      "type": .text("object"), "required": .words("listen", "endpoint"), "additionalProperties": .bool(false),
      "properties": properties(of: keys),
    ])
    return .object([
      "type": .text("object"), "minProperties": .integer(1),
      "propertyNames": .object(["pattern": .text("^[a-z0-9._-]{1,64}$")]),
      "additionalProperties": reference(to: "route", route),
    ])
  }

  /// Null, one item, or a list of them.
  private static func list(_ item: JSONValue) -> JSONValue {
    any([item, .object(["type": .text("array"), "items": item]), .object(["type": .text("null")])])
  }

  // MARK: URLs

  /// The scheme in a regular expression: `+` and `.`, which a scheme may have (RFC 3986, section 3.1), stand for
  /// themselves.
  static func pattern(_ scheme: String) -> String {
    scheme.reduce(into: "") { $0 += $1 == "+" || $1 == "." ? "\\\($1)" : "\($1)" }
  }

  private mutating func url(
    _ schemes: [SchemeGrammar], _ built: ConfigKey.BuiltSchemes, isList: Bool, _ name: String
  ) -> JSONValue {
    let known: Set<String> =
      switch built {
      case .listeners: listeners
      case .endpoints: endpoints
      case .admin: Set(schemes.map(\.scheme))
      case .none: []
      }
    let name = built == .admin ? "admin-\(name)" : name
    let schemes = schemes.filter { known.contains($0.scheme) }
    let text = JSONValue.object([
      "type": .text("string"),
      "pattern": .text("^(?:\(schemes.map { Self.pattern($0.scheme) }.joined(separator: "|"))):|\(Self.variable)"),
      "examples": .array(schemes.map { .text($0.example) }),
    ])
    let parts = schemes.map { scheme in
      JSONValue.object([
        "if": .object([
          "required": .words("url"),
          "properties": .object(["url": .object(["pattern": .text("^\(Self.pattern(scheme.scheme)):")])]),
        ]),
        "then": reference(to: "\(name)-\(scheme.scheme)", Self.parameters(of: scheme)),
      ])
    }
    let mapping = JSONValue.object([
      "type": .text("object"), "required": .words("url"), "properties": .object(["url": text]), "allOf": .array(parts),
    ])
    let one = reference(to: name, Self.any([text, mapping]))
    guard isList else { return Self.any([one]) }
    return Self.any([one, .object(["type": .text("array"), "minItems": .integer(1), "items": one])])
  }

  private static func parameters(of scheme: SchemeGrammar) -> JSONValue {
    let members = scheme.parameters.compactMap { parameter -> JSONValue.Member? in
      var value: JSONValue
      switch parameter.support {
      case .built: value = Self.value(parameter.kind)
      case .later(let granted):
        if granted.isEmpty { return nil }
        value = Self.value(.words(granted + (granted.contains("0s") ? ["0"] : [])))
      }
      if !parameter.aliases.isEmpty {
        value = Self.any([value, .object(["enum": .array(parameter.aliases.keys.sorted().map { .text($0) })])])
      }
      let body = parameter.isRepeatable ? any([value, .object(["type": .text("array"), "items": value])]) : value
      let schema = JSONValue.object([
        "description": .text(parameter.summary + (parameter.support == .built ? "" : " (not in \(Version.name))")),
        "default": parameter.standard.map { plain($0, parameter.kind) },
      ])
      return JSONValue.Member(key: parameter.name, value: .object((schema.members ?? []) + (body.members ?? [])))
    }
    let url = JSONValue.Member(key: "url", value: .bool(true))
    return .object(["additionalProperties": .bool(false), "properties": .object([url] + members)])
  }

  // MARK: parts

  private mutating func reference(to name: String, _ schema: @autoclosure () -> JSONValue) -> JSONValue {
    if !definitions.contains(where: { $0.name == name }) { definitions.append((name, schema())) }
    return .object(["$ref": .text("#/definitions/\(name)")])
  }

  static func any(_ schemas: [JSONValue]) -> JSONValue {
    let choices = schemas.flatMap { schema in
      schema.members?.count == 1 ? schema["anyOf"]?.array ?? [schema] : [schema]
    }
    return .object(["anyOf": .array(choices)])
  }
}

extension JSONValue {
  static func words(_ words: String...) -> JSONValue { .array(words.map { .text($0) }) }

  /// One member per line, except where all fit into one line.
  func pretty(indent: String = "", width: Int = 118) -> String {
    let line = description
    let inner = indent + "  "
    if line.count + indent.count <= width { return line }
    switch self {
    case .array(let values):
      return "[\n" + values.map { inner + $0.pretty(indent: inner) }.joined(separator: ",\n") + "\n\(indent)]"
    case .object(let members):
      let lines = members.map { "\(inner)\(JSONValue.quote($0.key)): \($0.value.pretty(indent: inner))" }
      return "{\n" + lines.joined(separator: ",\n") + "\n\(indent)}"
    default: return line
    }
  }
}
