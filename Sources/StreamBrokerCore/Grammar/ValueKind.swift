// The kinds of value of a URL parameter or config key: how each is read, checked, shown and explained. The tables of
// schemes and config keys name these; no other code turns text into a setting.

import ByteStreams

/// A value that was read and checked.
public enum Value: Hashable, Sendable {
  /// A text, word, path or UUID.
  case text(String)
  /// A secret.
  case secret(Secret)
  /// A whole number.
  case integer(Int)
  /// Bytes.
  case size(Int)
  /// `yes` or `no`.
  case flag(Bool)
  /// A duration.
  case duration(Duration)
  /// Two durations, the lower one first.
  case durations(ClosedRange<Duration>)
  /// The values of a key that accepts several.
  case list([Value])
}

extension Value: CustomStringConvertible {
  /// The canonical text, which reads back as the same value; a secret is masked.
  public var description: String {
    switch self {
    case .text(let text): text
    case .secret(let secret): secret.description
    case .integer(let number): String(number)
    case .size(let bytes): Units.text(bytes: bytes)
    case .flag(let isSet): isSet ? "yes" : "no"
    case .duration(let duration): Units.text(duration)
    case .durations(let range): "\(Units.text(range.lowerBound))..\(Units.text(range.upperBound))"
    case .list(let values): values.map(\.description).joined(separator: ", ")
    }
  }
}

/// Why a text is not a value of its kind: "expected a whole number from 5 to 8, not '9'".
public struct ValueFault: Error, Hashable, Sendable {
  /// A sentence without the name of the parameter.
  public let message: String
  /// The value that was probably meant.
  public let suggestion: String?

  /// `message` is a sentence for people.
  public init(_ message: String, suggestion: String? = nil) {
    self.message = message
    self.suggestion = suggestion
  }
}

/// The kind of a parameter's value: how its text is read, checked and explained.
public indirect enum ValueKind: Hashable, Sendable {
  /// Any text of one line, except an empty one.
  case text
  /// A text that is never printed.
  case secret
  /// The path of a file, absolute or relative.
  case path
  /// An absolute path of at most `limit` bytes.
  case file(limit: Int)
  /// A whole number within the range.
  case integer(ClosedRange<Int>)
  /// Permission bits, 0 to 0777, always read as octal.
  case mode
  /// A size in bytes within the range: `64KiB`.
  case size(ClosedRange<Int>)
  /// A duration within the range: `250ms`, `30s`.
  case duration(ClosedRange<Duration>)
  /// `250ms..30s`, both ends within the range.
  case durations(ClosedRange<Duration>)
  /// `yes` or `no`; also `on`, `off`, `true`, `false`, `1` and `0`.
  case flag
  /// One of these words.
  case words([String])
  /// A Bluetooth UUID of 16, 32 or 128 bits.
  case uuid
  /// An address or a block of addresses: 10.0.0.0/8, ::1.
  case network
  /// Bytes written as text with `\r \n \t \\ \xHH`.
  case escapes
  /// A built-in reset recipe's name, or `custom(…)`.
  case resetRecipe
  /// A word, a colon and a value: `idle:30s`.
  case prefixed(String, ValueKind)
  /// The first kind that fits.
  case either(ValueKind, ValueKind)

  /// Reads `text` as this kind.
  public func read(_ text: String) throws(ValueFault) -> Value {
    if let value = value(of: text) { return value }
    if let fault = fault(in: text) { throw fault }
    throw ValueFault(
      "expected \(expected)\(isSecret ? "" : ", not \(Suggestion.quote(text))")",
      suggestion: repair(text) ?? variable(text))
  }

  /// What is wrong inside a value of several parts; nil if it is none at all.
  private func fault(in text: String) -> ValueFault? {
    switch self {
    case .either(let first, let second): return first.fault(in: text) ?? second.fault(in: text)
    case .resetRecipe where text.hasPrefix("custom"):
      do throws(ValueFault) {
        _ = try ResetRecipe(text)
        return nil
      } catch {
        return error
      }
    default: return nil
    }
  }

  /// A shell's variable, `$NAME` or `$(NAME)`, in the configuration's form `${NAME}`.
  private func variable(_ text: String) -> String? {
    guard !isSecret, text.hasPrefix("$") else { return nil }
    let isBracketed = text.hasPrefix("$(") && text.hasSuffix(")")
    let name = isBracketed ? text.dropFirst(2).dropLast() : text.dropFirst()
    let isName =
      name.allSatisfy { $0.isASCII && ($0.isLetter || $0.isNumber || $0 == "_") } && name.first?.isNumber == false
    return isName ? "${\(name)}" : nil
  }

  /// Whether values must not be printed.
  public var isSecret: Bool { self == .secret }

  /// What to write, with an example: "a duration from 1ms to 1h, such as 30s".
  public var expected: String {
    switch self {
    case .text: "a text of one line"
    case .secret: "a secret"
    case .path: "a file path"
    case .file(let limit): "an absolute file path of at most \(limit) bytes"
    case .integer(let range): "a whole number from \(range.lowerBound) to \(range.upperBound)"
    case .mode: "permission bits in octal, such as 0660"
    case .size(let range):
      "a size from \(Units.text(bytes: range.lowerBound)) to \(Units.text(bytes: range.upperBound)), such as 64KiB"
    case .duration(let range):
      "a duration from \(Units.text(range.lowerBound)) to \(Units.text(range.upperBound)), such as 30s"
    case .durations(let range):
      "a range of durations from \(Units.text(range.lowerBound)) to \(Units.text(range.upperBound)), such as 250ms..30s"
    case .flag: "yes or no (on or off)"
    case .words(let words): Suggestion.list(words)
    case .uuid: "a UUID of 16, 32 or 128 bits, such as 1101"
    case .network: "an address or a network, such as 192.168.0.0/16"
    case .escapes: "a text whose escapes are \\r \\n \\t \\xHH, and \\\\ for a backslash"
    case .resetRecipe: ResetRecipe.expected
    case .prefixed(let word, let kind): "\(word): and \(kind.expected)"
    case .either(let first, let second): "\(first.expected), or \(second.expected)"
    }
  }

  /// A value of this kind, for examples.
  public var sample: String {
    switch self {
    case .text, .secret: "text"
    case .path, .file: "/path"
    case .integer(let range): String(min(max(8, range.lowerBound), range.upperBound))
    case .mode: "0660"
    case .size: "64KiB"
    case .duration: "30s"
    case .durations: "250ms..30s"
    case .flag: "yes"
    case .words(let words): words.first ?? ""
    case .uuid: "1101"
    case .network: "192.168.0.0/16"
    case .escapes: "\"\\\\r\""
    case .resetRecipe: ResetRecipe.names[0]
    case .prefixed(let word, let kind): "\(word):\(kind.sample)"
    case .either(let first, _): first.sample
    }
  }

  private func value(of text: String) -> Value? {
    switch self {
    case .text, .path: text.isEmpty || text.unicodeScalars.contains { Suggestion.isControl($0) } ? nil : .text(text)
    case .file(let limit): text.hasPrefix("/") && text.utf8.count <= limit ? ValueKind.path.value(of: text) : nil
    case .secret: text.isEmpty ? nil : .secret(Secret(text))
    case .integer(let range): Self.wholeNumber(text).flatMap { range.contains($0) ? .integer($0) : nil }
    case .mode:
      text.utf8.count <= 5 && !text.hasPrefix("+") && !text.hasPrefix("-")
        ? Int(text, radix: 8).flatMap { (0...0o777).contains($0) ? .text(text) : nil } : nil
    case .size(let range): Units.size(text).flatMap { range.contains($0) ? .size($0) : nil }
    case .duration(let range): Units.duration(text).flatMap { range.contains($0) ? .duration($0) : nil }
    case .durations(let range): Self.durations(text, within: range)
    case .flag: Self.flags[text.lowercased()].map { .flag($0) }
    case .words(let words): words.contains(text) ? .text(text) : nil
    case .uuid: BluetoothNames.uuid(text).map { .text($0) }
    case .network: AddressBlock(text) == nil ? nil : .text(text)
    case .escapes: Escapes.bytes(of: text)?.isEmpty ?? true ? nil : .text(text)
    case .resetRecipe: (try? ResetRecipe(text)).map { .text($0.text) }
    case .prefixed(let word, let kind):
      text.hasPrefix(word + ":")
        ? kind.value(of: String(text.dropFirst(word.count + 1))).map { .text("\(word):\($0)") } : nil
    case .either(let first, let second): first.value(of: text) ?? second.value(of: text)
    }
  }

  private func repair(_ text: String) -> String? {
    switch self {
    case .words(let words): return Suggestion.nearest(to: text, in: words)
    case .flag: return Suggestion.nearest(to: text, in: ["yes", "no"])
    case .integer:
      let trimmed = text.drop { $0 == "0" }  // some programs read 08 as octal, others refuse it: suggest 8
      return text.hasPrefix("0") && value(of: String(trimmed)) != nil ? String(trimmed) : nil
    case .size: return Units.repair(text, isDuration: false).flatMap { value(of: $0) == nil ? nil : $0 }
    case .duration: return Units.repair(text, isDuration: true).flatMap { value(of: $0) == nil ? nil : $0 }
    case .either(let first, let second): return first.repair(text) ?? second.repair(text)
    case .escapes: return Escapes.repair(text).flatMap { value(of: $0) == nil ? nil : $0 }
    case .resetRecipe: return Suggestion.nearest(to: text, in: ResetRecipe.names)
    case .network: return Self.network(text).flatMap { value(of: $0) == nil ? nil : $0 }
    case .durations: return Self.ordered(text).flatMap { value(of: $0) == nil ? nil : $0 }
    default: return nil
    }
  }

  private static let flags = [
    "yes": true, "no": false, "on": true, "off": false, "true": true, "false": false, "1": true, "0": false,
  ]

  /// Whether `text` is a word for no.
  static func isNo(_ text: String) -> Bool { flags[text.lowercased()] == false }

  private static func wholeNumber(_ text: String) -> Int? {
    guard text.utf8.allSatisfy({ (0x30...0x39).contains($0) }), text == "0" || !text.hasPrefix("0") else { return nil }
    return Int(text)
  }

  /// "10.0.0.0/255.0.0.0", also with a space or as a wildcard 0.255.255.255, "192.168.1.*" and "192.168.1." as a
  /// network with a prefix.
  private static func network(_ text: String) -> String? {
    switch text {
    case "*", "any", "all": return "0.0.0.0/0"
    case "localhost": return "127.0.0.1"
    default: break
    }
    let halves = text.split(maxSplits: 1, omittingEmptySubsequences: false) { $0 == "/" || $0 == " " }
    if halves.count == 2 {
      guard var mask = ipv4(halves[1]) else { return nil }
      if mask & 1 == 1, mask != .max { mask = ~mask }
      let bits = mask.leadingZeroBitCount == 32 ? 0 : (~mask).leadingZeroBitCount
      guard mask == (bits == 0 ? 0 : ~UInt32(0) << UInt32(32 - bits)) else { return nil }
      return "\(halves[0])/\(bits)"
    }
    var parts = text.split(separator: ".", omittingEmptySubsequences: false)
    let most = parts.count
    while let last = parts.last, last == "*" || last == "x" || last.isEmpty { parts.removeLast() }
    guard (1...3).contains(parts.count), parts.count < most else { return nil }
    let bits = 8 * parts.count
    return (parts + Array(repeating: "0", count: 4 - parts.count)).joined(separator: ".") + "/\(bits)"
  }

  private static func ipv4(_ text: Substring) -> UInt32? {
    let parts = text.split(separator: ".", omittingEmptySubsequences: false).map { UInt8($0) }
    guard parts.count == 4 else { return nil }
    return parts.reduce(UInt32?(0)) { sum, part in sum.flatMap { sum in part.map { sum << 8 | UInt32($0) } } }
  }

  /// "30s..1s" and "1s-30s" as "1s..30s".
  private static func ordered(_ text: String) -> String? {
    let parts = text.replacing("..", with: "-").replacing(" to ", with: "-").split(separator: "-").map { part in
      Units.duration(String(part.filter { $0 != " " }))
    }
    guard parts.count == 2, let first = parts[0], let second = parts[1] else { return nil }
    return "\(Units.text(min(first, second)))..\(Units.text(max(first, second)))"
  }

  private static func durations(_ text: String, within range: ClosedRange<Duration>) -> Value? {
    guard let dots = text.firstRange(of: ".."), let low = Units.duration(String(text[..<dots.lowerBound])),
      let high = Units.duration(String(text[dots.upperBound...])), low <= high, range.contains(low),
      range.contains(high)
    else { return nil }
    return .durations(low...high)
  }
}
