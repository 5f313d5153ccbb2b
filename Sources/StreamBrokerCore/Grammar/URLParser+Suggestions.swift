// Guesses the URL that an invalid text may have meant. A suggestion is always a valid URL of an accepted scheme, without
// a warning.

extension URLParser {
  /// The first of these texts that is a valid URL without a secret: a secret may be the value of a variable.
  func firstGood(_ texts: [String?]) -> String? {
    texts.lazy.compactMap { $0 }.first {
      guard $0 != text,  // or it would look for its own suggestion without end
        let url = EndpointURL.parse($0, schemes: schemes, built: built, in: place, reveal: reveal).url,
        url.warnings.isEmpty
      else { return false }
      return !url.settings.contains { if case .secret = $0.value { true } else { false } }
    }
  }

  /// For a text without a scheme: a serial port's name, or a host and port.
  func urlWithScheme() -> String? {
    let name = text.hasPrefix("/dev/") ? text : text.hasPrefix("tty") ? "/dev/\(text)" : nil
    let isNetwork = scalars.lastIndex(of: ":").map { isDigits($0 + 1..<scalars.count) } ?? false
    return firstGood([name.map { PortNotation.url($0) ?? "tty://\($0)" }, isNetwork ? "tcp://\(text)" : nil])
  }

  /// For a text whose scheme is not followed by two slashes: `tcp:4001`, `tcp:://host:4001`, `tty:/dev/ttyS0`.
  func urlWithSlashes(_ grammar: SchemeGrammar, after start: Int) -> String? {
    let rest = string(start..<scalars.count)
    let bare = String(rest.drop { $0 == ":" || $0 == "/" })
    switch grammar.path {
    case .file, .device: return rest.hasPrefix("/") ? firstGood(["\(grammar.scheme):///\(bare)"]) : nil
    default: return firstGood(["\(grammar.scheme)://\(bare)", "\(grammar.scheme)://:\(bare)"])
    }
  }

  /// For a text pasted from a page, with special spaces in it.
  func urlWithoutOddSpaces() -> String? {
    var plain = String.UnicodeScalarView()
    plain.append(contentsOf: scalars.filter { !Typography.isOddSpace($0) })
    return firstGood([String(plain)])
  }

  /// Works on scalars: a space with a combining mark after it is one `Character`, which is not a space, and the text
  /// would not change.
  func urlWithEscapedSpaces() -> String? {
    firstGood([scalars.map { $0 == " " ? "%20" : String($0) }.joined()])
  }

  /// The URL before a comment, with the space that is missing between them.
  func urlBeforeComment(at offset: Int) -> String? {
    firstGood([string(0..<offset)]).map { "\($0) \(string(offset..<scalars.count))" }
  }

  /// `exec:ls -l` → exec:/usr/bin/ls?arg=-l. Nil for other schemes. No URL if quotes suggest that a shell was expected.
  func programWithArguments() -> (program: String, url: String?)? {
    guard text.lowercased().hasPrefix("exec:"), schemes.contains(where: { $0.scheme == "exec" }) else { return nil }
    let words = string(5..<scalars.count).split(separator: " ")
    guard let program = words.first, !program.contains("?") else { return nil }
    if text.contains("'") || text.contains("\"") { return (String(program), nil) }
    let path = program.hasPrefix("/") ? String(program) : "/usr/bin/\(program)"
    let arguments = words.dropFirst().map { "arg=\(Self.escaped($0))" }
    return (String(program), firstGood(["exec:\(path)?\(arguments.joined(separator: "&"))"]))
  }

  private static func escaped(_ word: Substring) -> String {
    String(word).replacing("%", with: "%25").replacing("&", with: "%26").replacing("#", with: "%23")
  }
}
