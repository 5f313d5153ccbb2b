// Finds the known name that a user probably meant, and makes a user's text safe for a message. The URL parser and the
// config file use it. Knows no grammar.

package enum Suggestion {
  /// The candidate nearest to `word` in edits (insert, delete, replace, swap of neighbours), or nil if none is near
  /// enough. One edit is allowed for each three characters of the word, and at least one.
  package static func nearest(to word: String, in candidates: some Sequence<String>) -> String? {
    if let other = synonyms[word.lowercased()]?.first(where: {
      candidates.contains($0.prefix { $0 != "=" }.description)
    }) {
      return other
    }
    let written = Array(word.lowercased().unicodeScalars)
    guard !written.isEmpty, written.count <= 64 else { return nil }
    let allowed = max(1, written.count / 3)
    var best: (name: String, edits: Int)?
    for name in candidates where abs(name.utf8.count - written.count) <= allowed || !name.utf8.allSatisfy({ $0 < 0x80 })
    {
      let edits = distance(written, Array(name.unicodeScalars))
      if edits <= allowed, edits < best?.edits ?? .max { best = (name, edits) }
    }
    return best?.name
  }

  /// Names that other programs use, and what they may be called here. The first one that is a candidate is suggested.
  private static let synonyms: [String: [String]] = [
    "certificate": ["cert"], "cert": ["certificate"], "certfile": ["cert", "certificate"], "chain": ["certificate"],
    "keyfile": ["key"], "private-key": ["key"], "privkey": ["key"], "ca": ["client-ca"], "cafile": ["ca", "client-ca"],
    "cacert": ["ca", "client-ca"], "ca-file": ["ca", "client-ca"], "insecure": ["verify=none"],
    "skip-verify": ["verify=none"], "no-verify": ["verify=none"], "sni": ["server-name"], "hostname": ["server-name"],
    "protocol": ["subprotocol"], "speed": ["baud"], "bitrate": ["baud"], "baudrate": ["baud"], "bps": ["baud"],
    "databits": ["data"], "bytesize": ["data"], "stopbits": ["stop"], "flowcontrol": ["flow"], "max-clients": ["max"],
    "max-connections": ["max"], "kickolduser": ["takeover", "when-full"], "whitelist": ["allow"], "blacklist": ["deny"],
    "timeout": ["idle-timeout", "connect-timeout"], "password-hash": ["password"], "subject": ["certificate"],
    "max-size": ["max-message"], "compress": ["deflate"], "compression": ["deflate"], "origin": ["origins"],
    "bits": ["data"], "wordlength": ["data"], "csize": ["data"], "cs7": ["data=7"], "cs8": ["data=8"],
    "rtscts": ["flow=rtscts"], "crtscts": ["rtscts", "flow=rtscts"], "xonxoff": ["flow=xonxoff"],
    "n": ["none", "no"], "no": ["none", "off"], "e": ["even"], "o": ["odd"], "m": ["mark"], "s": ["space"],
    "telnets": ["rfc2217s"],
    "y": ["yes"], "off": ["none"], "hw": ["rtscts"], "hard": ["rtscts"], "hardware": ["rtscts"], "rts/cts": ["rtscts"],
    "sw": ["xonxoff"], "soft": ["xonxoff"], "software": ["xonxoff"], "xon/xoff": ["xonxoff"],
  ]

  /// Whether a message must not repeat `text`, because it names a secret and so may contain one.
  package static func mayHoldSecret(_ text: String) -> Bool {
    let text = text.lowercased()
    return ["password", "token", "secret"].contains { text.contains($0) }
  }

  /// `word` in single quotes, cut to 40 characters, control characters escaped: safe for a log line.
  package static func quote(_ word: String) -> String { "'\(plain(word))'" }

  /// The same without the quotes.
  package static func plain(_ word: String) -> String {
    var text = ""
    for scalar in word.unicodeScalars.prefix(40) {
      text += isControl(scalar) ? scalar.escaped(asASCII: true) : String(scalar)
    }
    return word.unicodeScalars.count > 40 ? text + "…" : text
  }

  /// "a, b or c"
  package static func list(_ words: [String]) -> String {
    guard let last = words.last, words.count > 1 else { return words.first ?? "" }
    return words.dropLast().joined(separator: ", ") + " or " + last
  }

  /// Characters not allowed in a name, a path or a log line: Unicode's Cc, and the two line separators.
  package static func isControl(_ scalar: Unicode.Scalar) -> Bool {
    switch scalar.value {
    case 0x20...0x7E: false  // the usual case; Unicode's tables are slow
    case 0x2028, 0x2029: true
    default: scalar.properties.generalCategory == .control
    }
  }

  /// Damerau-Levenshtein (optimal string alignment) over three rows.
  private static func distance(_ a: [Unicode.Scalar], _ b: [Unicode.Scalar]) -> Int {
    var beforePrevious: [Int] = []
    var previous = Array(0...b.count)
    for i in a.indices {
      var row = [i + 1]
      for j in b.indices {
        var edits = min(previous[j + 1] + 1, row[j] + 1, previous[j] + (a[i] == b[j] ? 0 : 1))
        if i > 0, j > 0, a[i] == b[j - 1], a[i - 1] == b[j] { edits = min(edits, beforePrevious[j - 1] + 1) }
        row.append(edits)
      }
      beforePrevious = previous
      previous = row
    }
    return previous[b.count]
  }
}
