// The strings of gensio(5), with which ser2net 4 describes both ends of a connection:
// `telnet(rfc2217),ssl(key=k.pem),tcp,localhost,2000`. Filters, each with options, then what they stand on.

import StreamBroker

struct GensioString {
  struct Layer {
    let name: String
    /// In lower case, but for the values. An option without a value has "".
    let options: [(name: String, value: String)]

    func option(_ name: String) -> String? { options.last { $0.name == name.lowercased() }?.value }
  }

  /// From the outside inwards; clients see the first one.
  let filters: [Layer]
  let base: Layer
  /// What follows the base and its comma.
  let rest: String

  /// Whether one of the filters has this name.
  func has(_ filter: String) -> Bool { filters.contains { $0.name == filter } }

  /// In the order of the string; the values are what the string says where it does not end well.
  private static let filterNames: Set = [
    "telnet", "ssl", "certauth", "mux", "msgdelim", "relpkt", "ratelimit", "trace", "perf", "conacc", "keepopen",
    "kiss", "xlt", "script",
  ]
  private static let baseNames: Set = [
    "tcp", "udp", "sctp", "unix", "unixdgram", "unixseq", "serialdev", "sdev", "termios", "stdio", "pty", "echo",
    "file", "dummy", "ipmisol", "mdns", "sound", "afskmdm", "ax25", "cm108gpio",
  ]
  private static let mostLayers = 16

  init(_ text: String) throws(ValueFault) {
    var rest = text[...]
    var filters: [Layer] = []
    while true {
      let whole = rest
      rest = rest.drop(while: \.isWhitespace)
      let name = String(rest.prefix { $0.isASCII && ($0.isLetter || $0.isNumber || $0 == "_" || $0 == "-") })
      let key = name.lowercased()
      // Without a name, such as `localhost,2000`, it is TCP.
      guard Self.filterNames.contains(key) || Self.baseNames.contains(key) else {
        self.filters = filters
        base = Layer(name: "tcp", options: [])
        self.rest = String(whole)
        return
      }
      rest = rest.dropFirst(name.count)
      let layer = Layer(name: key, options: try Self.options(&rest))
      rest = rest.drop(while: \.isWhitespace)
      guard rest.isEmpty || rest.hasPrefix(",") else {
        throw ValueFault("expected a comma before \(Suggestion.quote(String(rest)))")
      }
      rest = rest.dropFirst()
      if Self.baseNames.contains(key) {
        self.filters = filters
        base = layer
        self.rest = String(rest)
        return
      }
      filters.append(layer)
      guard filters.count <= Self.mostLayers else { throw ValueFault("more than \(Self.mostLayers) layers") }
    }
  }

  /// `(key=k.pem,cert=c.pem)`
  private static func options(_ rest: inout Substring) throws(ValueFault) -> [(name: String, value: String)] {
    guard rest.hasPrefix("(") else { return [] }
    var quote: Character?
    var isEscaped = false
    let inside = rest.dropFirst().prefix { letter in
      if isEscaped {
        isEscaped = false
      } else if letter == "\\" {
        isEscaped = true
      } else if let open = quote {
        if letter == open { quote = nil }
      } else if letter == "'" || letter == "\"" {
        quote = letter
      } else if letter == ")" {
        return false
      }
      return true
    }
    guard inside.endIndex < rest.endIndex else { throw ValueFault("'(' without ')'") }
    rest = rest[inside.endIndex...].dropFirst()
    return words(String(inside), separators: ", \t\n\r").map { word in
      let parts = word.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false).map(String.init)
      return (parts[0].lowercased(), parts.count > 1 ? parts[1] : "")
    }
  }

  /// Splits as gensio does: quotes and `\` take the meaning from a separator, and empty words are left out.
  static func words(_ text: String, separators: String) -> [String] {
    var words: [String] = []
    var word: String?
    var quote: Character?
    var isEscaped = false
    for letter in text {
      if isEscaped {
        isEscaped = false
        word = (word ?? "") + String(letter)
      } else if letter == "\\" {
        isEscaped = true
      } else if let open = quote {
        if letter == open { quote = nil } else { word = (word ?? "") + String(letter) }
      } else if letter == "'" || letter == "\"" {
        quote = letter
        word = word ?? ""
      } else if separators.contains(letter) {
        if let done = word { words.append(done) }
        word = nil
      } else {
        word = (word ?? "") + String(letter)
      }
    }
    if let word { words.append(word) }
    return words
  }
}
