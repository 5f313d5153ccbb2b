// The URL of an endpoint, parsed and checked: `tty:///dev/ttyUSB0?baud=115200`. We have our own parser, because
// Foundation's refuses Bluetooth addresses and bit rates (and costs 45 MB). The grammar of each scheme is a table, and
// a value of this type has passed all its checks. Opens nothing. The gateway's listeners use the same type with tables
// of their own.

/// The URL of an endpoint, which was parsed and passed the checks of its scheme: `Broker.url(_:)`. A value; opens
/// nothing.
public struct EndpointURL: Sendable {
  /// As it was written; may hold a secret, so print `description` instead.
  public let text: String
  /// In lower case.
  public let scheme: String
  /// Without brackets, in the scheme's canonical case; empty if the scheme has none.
  public let host: String
  /// A TCP port, a channel, a PSM, or for `tty` a bit rate (then equal to `integer("baud")`).
  public let port: Int?
  /// Percent-decoded, with its leading slash. Exception: a USB identity is in the form of `USBIdentity.path`, with
  /// escapes, because its parts may contain slashes.
  public let path: String
  /// The parameters given in the query and beside the URL, in the order of the scheme's table.
  public let settings: [Setting]
  /// The table of its scheme.
  public let grammar: SchemeGrammar
  /// What the text contains without any effect. No part of the canonical URL, so equality ignores it.
  public let warnings: [URLWarning]

  /// One parameter that was given.
  public struct Setting: Hashable, Sendable {
    /// The parameter's name.
    public let name: String
    /// Its value.
    public let value: Value
  }

  /// Parses `text` by `schemes`. Throws the first problem; `parse` returns all.
  package init(_ text: String, schemes: [SchemeGrammar] = EndpointSchemes.all) throws(URLProblem) {
    let parsed = Self.parse(text, schemes: schemes)
    guard let url = parsed.url else { throw parsed.problems[0] }
    self = url
  }

  /// Turns the text of a secret parameter into the secret, or reports what is wrong with it.
  package typealias Revealer = (_ text: String) -> Result<String, ValueFault>

  /// Finds all problems of `text` and of the parameters `beside` it, which must not be in its query as well. With
  /// `built`, a scheme outside that set is a problem; `place` is where the others are, for that problem. `reveal` turns
  /// the texts of secrets into secrets. The URL is nil exactly when there are problems.
  package static func parse(
    _ text: String, beside: [(name: String, value: String)] = [], schemes: [SchemeGrammar] = EndpointSchemes.all,
    built: Set<String>? = nil, in place: String = Version.name, reveal: @escaping Revealer = { .success($0) }
  ) -> (url: EndpointURL?, problems: [URLProblem]) {
    var parser = URLParser(text, beside: beside, schemes: schemes, built: built, in: place, reveal: reveal)
    let url = parser.parse()
    return (parser.problems.isEmpty ? url : nil, parser.problems.sorted { $0.offset < $1.offset })
  }

  init(
    text: String, host: String, port: Int?, path: String, settings: [Setting], grammar: SchemeGrammar,
    warnings: [URLWarning] = []
  ) {
    self.text = text
    self.scheme = grammar.scheme
    self.host = host
    self.port = port
    self.path = path
    self.settings = settings
    self.grammar = grammar
    self.warnings = warnings
  }
}

/// A part of a URL that is accepted but has no effect, and its position.
public struct URLWarning: Hashable, Sendable, CustomStringConvertible {
  /// What is ignored, and what to write.
  public let message: String
  /// Number of Unicode scalars before the part.
  public let offset: Int

  public var description: String { message }
}

/// A problem of a URL, and its position.
public struct URLProblem: Error, Hashable, Sendable, CustomStringConvertible {
  /// A sentence for people, without the URL.
  public let message: String
  /// Number of Unicode scalars before the fault; 0 if the fault is in a parameter beside the URL.
  public let offset: Int
  /// The text that was probably meant.
  public let suggestion: String?
  /// The parameter beside the URL that is at fault; nil if the text itself is.
  package let beside: Beside?
  /// The scheme has no parameter of this name.
  package internal(set) var unknown: String?

  package struct Beside: Hashable, Sendable {
    package let index: Int
    /// Whether the value is at fault, not the name.
    package let isValue: Bool
  }

  init(message: String, offset: Int, suggestion: String?, beside: Beside?) {
    self.message = message
    self.offset = offset
    self.suggestion = suggestion
    self.beside = beside
  }

  /// A problem that a scheme finds in its own URL, which has passed the checks of the grammar.
  public init(_ message: String, suggestion: String? = nil) {
    self.init(message: message, offset: 0, suggestion: suggestion, beside: nil)
  }

  /// The message with the suggestion.
  public var description: String { message + (suggestion.map { "; did you mean '\($0)'?" } ?? "") }
}

// MARK: settings

extension EndpointURL {
  /// Whether the parameter was given, instead of having its default.
  public func gives(_ name: String) -> Bool { settings.contains { $0.name == name } }

  /// All parameters in force, in the order of the table: the given ones, and the defaults that the scheme's rules
  /// allow.
  public var settingsInForce: [Setting] {
    grammar.parameters.flatMap { parameter in
      if gives(parameter.name) { return settings.filter { $0.name == parameter.name } }
      guard let standard = value(parameter.name) else { return [] }
      let setting = Setting(name: parameter.name, value: standard)
      let url = EndpointURL(
        text: text, host: host, port: port, path: path, settings: settings + [setting], grammar: grammar)
      let isAllowed = grammar.rules.allSatisfy { $0.parameter != parameter.name || $0.fault(url) == nil }
      return isAllowed ? [setting] : []
    }
  }

  /// The given value, else the scheme's default, else nil. For a repeatable parameter, the last value.
  public func value(_ name: String) -> Value? {
    if let given = settings.last(where: { $0.name == name }) { return given.value }
    guard let parameter = grammar.parameter(name), let standard = parameter.standard else { return nil }
    return try? parameter.kind.read(standard)
  }

  /// The same URL, with relative file paths (`ca=ca.pem`) resolved against `folder`.
  package func resolvingPaths(from folder: String) -> EndpointURL {
    let resolved = settings.map { setting in
      guard grammar.parameter(setting.name)?.kind == .path, case .text(let path) = setting.value,
        !path.hasPrefix("/"), folder != "."
      else { return setting }
      return Setting(name: setting.name, value: .text(folder == "/" ? "/\(path)" : "\(folder)/\(path)"))
    }
    return EndpointURL(
      text: text, host: host, port: port, path: self.path, settings: resolved, grammar: grammar, warnings: warnings)
  }

  /// The value of a text, word, path or UUID.
  public func string(_ name: String) -> String? {
    guard case .text(let text)? = value(name) else { return nil }
    return text
  }

  /// All values of a repeatable parameter, in the order given.
  public func strings(_ name: String) -> [String] {
    settings.compactMap { setting in
      guard setting.name == name, case .text(let text) = setting.value else { return nil }
      return text
    }
  }

  /// The value of a whole number or size; nil for another kind, and if there is neither a value nor a default.
  public func integer(_ name: String) -> Int? {
    switch value(name) {
    case .integer(let number)?, .size(let number)?: number
    default: nil
    }
  }

  /// The value of a flag.
  public func flag(_ name: String) -> Bool? {
    guard case .flag(let isSet)? = value(name) else { return nil }
    return isSet
  }

  /// The value of a duration.
  public func duration(_ name: String) -> Duration? {
    guard case .duration(let duration)? = value(name) else { return nil }
    return duration
  }

  /// The value of a secret.
  public func secret(_ name: String) -> Secret? {
    guard case .secret(let secret)? = value(name) else { return nil }
    return secret
  }
}

// MARK: the canonical text

extension EndpointURL: CustomStringConvertible {
  /// The canonical URL: the query form, settings in the order of the table, secrets masked.
  public var description: String { target + query { _ in true } }

  /// The given settings whose names `isShown` accepts, as in the canonical URL: "?a=1&b=2", or nothing.
  package func query(_ isShown: (String) -> Bool) -> String {
    var separator = "?"
    var text = ""
    for setting in settings where isShown(setting.name) {
      text += "\(separator)\(setting.name)=\(Self.escape(setting.value.description, also: "&"))"
      separator = "&"
    }
    return text
  }

  /// A name to compare URLs by, if only one program can have the endpoint open; nil if several can.
  package var device: String? {
    let isFound = grammar.authority == .service && path.isEmpty  // each scan may find another device
    return grammar.isExclusive && !isFound ? target : nil
  }

  /// The canonical URL without its settings: two URLs with the same target lead to the same endpoint.
  public var target: String {
    var authority = host.contains(":") && grammar.authority.isNetwork ? "[\(host.replacing("%", with: "%25"))]" : host
    if case .name = grammar.authority { authority = Self.escape(host, also: "/@") }
    if let port, !grammar.authority.ignoresPort { authority += ":\(port)" }
    // Without the slashes, a path that begins with two slashes would look like a host.
    let slashes = grammar.authority == .opaque && !path.hasPrefix("//") ? "" : "//"
    let isIdentity = grammar.path == .device && host == "usb"
    return "\(scheme):\(slashes)\(authority)\(isIdentity ? path : escapedPath)"
  }

  private var escapedPath: String {
    let escaped = Self.escape(path, also: grammar.path == .device ? ",*[" : "")
    // A part of the name that looks like a bit rate is escaped, so that it remains part of the name.
    guard grammar.path == .device, PortNotation.cut(escaped) != nil,
      let mark = escaped.lastIndex(where: { $0 == ":" || $0 == "@" })
    else { return escaped }
    return escaped[..<mark] + (escaped[mark] == ":" ? "%3A" : "%40") + escaped[escaped.index(after: mark)...]
  }

  /// Percent-escapes characters that would end the part or are not allowed in a log line; other text stays readable.
  static func escape(_ text: String, also more: String) -> String {
    var escaped = ""
    for scalar in text.unicodeScalars {
      let isBlank = scalar == " " || !scalar.isASCII && scalar.properties.isWhitespace
      if isBlank || "\"%?#<>\\".unicodeScalars.contains(scalar) || more.unicodeScalars.contains(scalar) {
        // All these bytes are above 0x0F, so each has two digits.
        for byte in UTF8.encode(scalar)! { escaped += "%" + String(byte, radix: 16, uppercase: true) }
      } else {
        escaped.unicodeScalars.append(scalar)
      }
    }
    return escaped
  }
}

// Two URLs are equal if their targets and the settings in force are. Spelling, and defaults written out, do not matter.
extension EndpointURL: Hashable {
  public static func == (one: EndpointURL, other: EndpointURL) -> Bool {
    one.target == other.target && one.settingsInForce == other.settingsInForce
  }

  public func hash(into hasher: inout Hasher) { hasher.combine(target) }
}

extension SchemeGrammar.Authority {
  /// Whether the host is a network host, and the port a TCP port.
  package var isNetwork: Bool {
    switch self {
    case .network, .listening: true
    default: false
    }
  }

  var ignoresPort: Bool {
    guard case .ignored = self else { return false }
    return true
  }
}
