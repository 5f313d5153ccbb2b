// The part of JSON Schema that the description of the API uses for contents. A keyword that it does not know breaks the
// property: ignoring one would accept too much.

@testable import GatewayKit

final class ContentSchema {
  private let schemas: JSONValue?
  private var patterns: [String: Regex<AnyRegexOutput>] = [:]

  init(_ description: JSONValue) { schemas = description["components"]?["schemas"] }

  func accepts(_ value: JSONValue, _ schema: JSONValue) throws(Broken) -> Bool {
    for keyword in schema.members ?? [] {
      if try !accepts(value, keyword.key, keyword.value, schema) { return false }
    }
    return true
  }

  private func accepts(
    _ value: JSONValue, _ keyword: String, _ rule: JSONValue, _ schema: JSONValue
  ) throws(Broken) -> Bool {
    switch keyword {
    case "$ref":
      guard let schema = schemas?[String(rule.text?.split(separator: "/").last ?? "")] else { throw Broken("\(rule)") }
      return try accepts(value, schema)
    case "oneOf":
      var count = 0
      for choice in rule.array ?? [] where try accepts(value, choice) { count += 1 }
      return count == 1
    case "const": return value == rule
    case "enum": return rule.array?.contains(value) ?? false
    case "type":
      return (rule.array ?? [rule]).contains { isOf(value, $0.text ?? "") }
    case "minimum": return number(value).map { $0 >= (rule.integer ?? 0) } ?? !isNumber(value)
    case "maximum": return number(value).map { $0 <= (rule.integer ?? 0) } ?? (!isNumber(value) || isNegative(value))
    case "minLength": return (value.text?.unicodeScalars.count).map { $0 >= Int(rule.integer ?? 0) } ?? true
    case "pattern": return try value.text.map { text throws(Broken) in try matches(text, rule.text ?? "") } ?? true
    case "minItems": return (value.array?.count).map { $0 >= Int(rule.integer ?? 0) } ?? true
    case "maxItems": return (value.array?.count).map { $0 <= Int(rule.integer ?? 0) } ?? true
    case "minProperties": return (value.members?.count).map { $0 >= Int(rule.integer ?? 0) } ?? true
    case "items":
      for element in value.array ?? [] where try !accepts(element, rule) { return false }
      return true
    case "required":
      guard let members = value.members else { return true }
      return (rule.array ?? []).allSatisfy { key in members.contains { $0.key == key.text } }
    case "properties":
      for member in value.members ?? [] {
        if let schema = rule[member.key], try !accepts(member.value, schema) { return false }
      }
      return true
    case "additionalProperties":
      try hold(rule == .bool(false), "additionalProperties: \(rule)")
      return (value.members ?? []).allSatisfy { schema["properties"]?[$0.key] != nil }
    default: throw Broken("unknown keyword \(keyword)")
    }
  }

  private func isOf(_ value: JSONValue, _ type: String) -> Bool {
    switch (type, value) {
    case ("object", .object), ("array", .array), ("string", .text), ("boolean", .bool), ("null", .null),
      ("integer", .integer):
      true
    // Negative, or of more than 64 bits.
    case ("integer", .decimal(let number)): number == number.rounded()
    default: false
    }
  }

  private func isNumber(_ value: JSONValue) -> Bool {
    switch value {
    case .integer, .decimal: true
    default: false
    }
  }

  private func isNegative(_ value: JSONValue) -> Bool {
    if case .decimal(let number) = value { number < 0 } else { false }
  }

  /// Rounded down. Nil for what is no number from 0 to 2⁶⁴.
  private func number(_ value: JSONValue) -> UInt64? {
    switch value {
    case .integer(let number): number
    case .decimal(let number): number >= 0 && number < 0x1p64 ? UInt64(number) : nil
    default: nil
    }
  }

  private func matches(_ text: String, _ pattern: String) throws(Broken) -> Bool {
    if patterns[pattern] == nil {
      guard let regex = try? Regex(pattern) else { throw Broken("the pattern \(pattern)") }
      patterns[pattern] = regex.matchingSemantics(.unicodeScalar)
    }
    guard let regex = patterns[pattern] else { return false }
    return ((try? regex.wholeMatch(in: text)) ?? nil) != nil
  }
}
