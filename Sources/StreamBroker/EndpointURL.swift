// The URL of an endpoint, parsed and checked: `tty:///dev/ttyUSB0?baud=115200`. Our own parser, because Foundation's
// refuses Bluetooth addresses and bit rates (and costs 45 MB). The grammar of each scheme is a table; a value of this
// type has passed all of it. Opens nothing. The gateway's listeners are named by the same type with tables of their own.

public struct EndpointURL: Sendable {
  /// As it was written; may hold a secret, so print `description` instead.
  public let text: String
  /// In lower case.
  public let scheme: String
  /// Without brackets, in the scheme's canonical case; empty where the scheme has none.
  public let host: String
  /// A TCP port, a channel, a PSM, or for `tty` a bit rate, which is `integer("baud")` as well.
  public let port: Int?
  /// Percent-decoded, with its leading slash; but a USB identity, whose parts may hold slashes, is as `USBIdentity` reads it.
  public let path: String
  /// What was given in the query and beside the URL, in the order of the scheme's table.
  public let settings: [Setting]
  public let grammar: SchemeGrammar

  /// One parameter that was given.
  public struct Setting: Hashable, Sendable {
    public let name: String
    public let value: Value
  }

  /// Reads `text` by `schemes`. Throws the first of its problems; `parse` finds them all.
  public init(_ text: String, schemes: [SchemeGrammar] = EndpointSchemes.all) throws(URLProblem) {
    let parsed = Self.parse(text, schemes: schemes)
    guard let url = parsed.url else { throw parsed.problems[0] }
    self = url
  }

  /// The secret that a text stands for, or what is wrong with it.
  public typealias Revealer = (_ text: String) -> Result<String, ValueFault>

  /// Finds all problems of `text` and of the parameters `beside` it, which may not be in its query too. With `built`,
  /// a scheme that is not among these is a problem. Secrets are what `reveal` makes of their texts. There is a URL exactly when
  /// there are no problems.
  public static func parse(
    _ text: String, beside: [(name: String, value: String)] = [], schemes: [SchemeGrammar] = EndpointSchemes.all,
    built: Set<String>? = nil, reveal: @escaping Revealer = { .success($0) }
  ) -> (url: EndpointURL?, problems: [URLProblem]) {
    var parser = URLParser(text, beside: beside, schemes: schemes, built: built, reveal: reveal)
    let url = parser.parse()
    return (parser.problems.isEmpty ? url : nil, parser.problems.sorted { $0.offset < $1.offset })
  }

  init(
    text: String, host: String, port: Int?, path: String, settings: [Setting], grammar: SchemeGrammar
  ) {
    self.text = text
    self.scheme = grammar.scheme
    self.host = host
    self.port = port
    self.path = path
    self.settings = settings
    self.grammar = grammar
  }
}

/// What is wrong with a URL, and where.
public struct URLProblem: Error, Hashable, Sendable, CustomStringConvertible {
  public let message: String
  /// Characters (Unicode scalars) before the fault; 0 when it lies in a parameter beside the URL.
  public let offset: Int
  public let suggestion: String?
  /// The parameter beside the URL that is at fault; nil when the text itself is.
  public let beside: Beside?

  public struct Beside: Hashable, Sendable {
    public let index: Int
    /// Its value is at fault, not its name.
    public let isValue: Bool
  }

  public var description: String { message + (suggestion.map { "; did you mean '\($0)'?" } ?? "") }
}

// MARK: settings

extension EndpointURL {
  /// Whether the parameter was given, rather than left at its default.
  public func gives(_ name: String) -> Bool { settings.contains { $0.name == name } }

  /// What was given and, where it means something, what was not: every parameter in force, in the order of the table.
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

  /// The given value, else the default of the scheme's table, else nil. The last one of a repeatable parameter.
  public func value(_ name: String) -> Value? {
    if let given = settings.last(where: { $0.name == name }) { return given.value }
    guard let parameter = grammar.parameter(name), let standard = parameter.standard else { return nil }
    return try? parameter.kind.read(standard)
  }

  /// The same URL, with paths of files (`ca=ca.pem`) that are relative beginning in `folder`.
  public func resolvingPaths(from folder: String) -> EndpointURL {
    let resolved = settings.map { setting in
      guard grammar.parameter(setting.name)?.kind == .path, case .text(let path) = setting.value,
        !path.hasPrefix("/"), folder != "."
      else { return setting }
      return Setting(name: setting.name, value: .text(folder == "/" ? "/\(path)" : "\(folder)/\(path)"))
    }
    return EndpointURL(text: text, host: host, port: port, path: self.path, settings: resolved, grammar: grammar)
  }

  /// A text, a word, a path or a UUID.
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

  public func integer(_ name: String) -> Int? {
    switch value(name) {
    case .integer(let number)?, .size(let number)?: number
    default: nil
    }
  }

  public func flag(_ name: String) -> Bool? {
    guard case .flag(let isSet)? = value(name) else { return nil }
    return isSet
  }

  public func duration(_ name: String) -> Duration? {
    guard case .duration(let duration)? = value(name) else { return nil }
    return duration
  }

  public func secret(_ name: String) -> Secret? {
    guard case .secret(let secret)? = value(name) else { return nil }
    return secret
  }
}

// MARK: the canonical text

extension EndpointURL: CustomStringConvertible {
  /// The canonical URL: the query form, settings in the order of the table, secrets masked.
  public var description: String { place + query { _ in true } }

  /// Those of the settings that were given and whose names `isShown` wants, as they stand in the canonical URL: "?a=1&b=2", or
  /// nothing.
  public func query(_ isShown: (String) -> Bool) -> String {
    var separator = "?"
    var text = ""
    for setting in settings where isShown(setting.name) {
      text += "\(separator)\(setting.name)=\(Self.escape(setting.value.description, also: "&"))"
      separator = "&"
    }
    return text
  }

  /// What only one can have at a time, named so that two URLs can be compared; nil where many can.
  public var device: String? {
    let isFound = grammar.authority == .service && path.isEmpty  // by a scan, and each may find another
    return grammar.isExclusive && !isFound ? place : nil
  }

  /// The canonical URL without its settings: two URLs with the same place lead to the same thing.
  public var place: String {
    var authority = host.contains(":") && grammar.authority.isNetwork ? "[\(host.replacing("%", with: "%25"))]" : host
    if let port, !grammar.authority.ignoresPort { authority += ":\(port)" }
    // A path of two slashes would look like a host without them.
    let slashes = grammar.authority == .opaque && !path.hasPrefix("//") ? "" : "//"
    let isIdentity = grammar.path == .device && host == "usb"
    return "\(scheme):\(slashes)\(authority)\(isIdentity ? path : escapedPath)"
  }

  private var escapedPath: String {
    let escaped = Self.escape(path, also: grammar.path == .device ? ",*[" : "")
    // What would be read as a bit rate is part of the name here.
    guard grammar.path == .device, PortNotation.cut(escaped) != nil,
      let mark = escaped.lastIndex(where: { $0 == ":" || $0 == "@" })
    else { return escaped }
    return escaped[..<mark] + (escaped[mark] == ":" ? "%3A" : "%40") + escaped[escaped.index(after: mark)...]
  }

  /// Percent-escapes what would end the part or can't stand in a line of a log; other text stays readable.
  static func escape(_ text: String, also more: String) -> String {
    var escaped = ""
    for scalar in text.unicodeScalars {
      let isBlank = scalar == " " || !scalar.isASCII && scalar.properties.isWhitespace
      if isBlank || "\"%?#<>\\".unicodeScalars.contains(scalar) || more.unicodeScalars.contains(scalar) {
        // Each byte of these has two digits.
        for byte in UTF8.encode(scalar)! { escaped += "%" + String(byte, radix: 16, uppercase: true) }
      } else {
        escaped.unicodeScalars.append(scalar)
      }
    }
    return escaped
  }
}

// What a URL means is its place and the settings in force; the way it was written, and a default said aloud, is not.
extension EndpointURL: Hashable {
  public static func == (one: EndpointURL, other: EndpointURL) -> Bool {
    one.place == other.place && one.settingsInForce == other.settingsInForce
  }

  public func hash(into hasher: inout Hasher) { hasher.combine(place) }
}

extension SchemeGrammar.Authority {
  /// Whether the host is one of the network, and the port a TCP port.
  public var isNetwork: Bool {
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
