// How other programs write a serial port with its settings: `/dev/ttyUSB0,115200n81` (ser2net),
// `/dev/ttyUSB0,b115200,raw` (socat), `/dev/ttyUSB0:9600`, `/dev/ttyUSB0@115200`. Our URLs have the settings as
// parameters.

package enum PortNotation {
  /// `path` as a URL; nil if it does not end in settings.
  package static func url(_ path: String) -> String? { cut(path)?.url }

  /// "COM3", in any case.
  static func isWindows(_ name: String) -> Bool {
    let digits = name.utf8.dropFirst(3)
    return name.lowercased().hasPrefix("com") && (1...3).contains(digits.count)
      && digits.allSatisfy { (0x30...0x39).contains($0) }
  }

  /// The port's name without the settings, and the whole as a URL.
  static func cut(_ path: String) -> (name: String, url: String)? {
    // udev puts no commas into names, but it uses colons and signs such as @. After those, only a bit rate counts as a
    // setting.
    let (head, tail) = split(path, at: path.firstIndex(of: ","))
    var (name, words) = (head, tail.map { $0.split(separator: ",").map(String.init) } ?? [])
    let (base, rate) = split(head, at: head.lastIndex { $0 == ":" || $0 == "@" })
    if let rate, rate.utf8.count > 2, let first = parse(rate), first.contains(where: { $0.name == "baud" }) {
      name = base
      words.insert(rate, at: 0)
    } else if tail == nil {
      return nil
    }
    let settings = text(of: words)
    return (name, "tty://\(name)" + (settings.isEmpty ? "" : "?\(settings)"))
  }

  /// `115200`, `115200,8n1` → "baud=115200"; nil if it is not such a list.
  static func settings(_ text: String) -> String? {
    let words = text.split(separator: ",").map(String.init)
    guard let first = words.first, parse(first)?.contains(where: { $0.name == "baud" }) ?? false else { return nil }
    return self.text(of: words)
  }

  private typealias Setting = (name: String, value: String)
  private static let standards = ["data": "8", "parity": "none", "stop": "1", "flow": "none"]
  private static let parities: [Character: String] = [
    "n": "none", "e": "even", "o": "odd", "m": "mark", "s": "space",
  ]

  private static func split(_ text: String, at index: String.Index?) -> (String, String?) {
    guard let index else { return (text, nil) }
    return (String(text[..<index]), String(text[text.index(after: index)...]))
  }

  /// The settings that differ from the standard, each once.
  private static func text(of words: [String]) -> String {
    var given: [String: String] = [:]
    for setting in words.flatMap({ parse($0) ?? [] }) where given[setting.name] == nil {
      given[setting.name] = setting.value
    }
    return ["baud", "data", "parity", "stop", "flow"].compactMap { name in
      given[name].flatMap { $0 == standards[name] ? nil : "\(name)=\($0)" }
    }.joined(separator: "&")
  }

  /// Nil for a word that is not one of our settings.
  private static func parse(_ word: String) -> [Setting]? {
    let word = word.lowercased()
    switch word {
    case "rtscts", "crtscts": return [("flow", "rtscts")]
    case "xonxoff": return [("flow", "xonxoff")]
    case "none", "even", "odd", "mark", "space": return [("parity", word)]
    case "1stopbit": return [("stop", "1")]
    case "2stopbits": return [("stop", "2")]
    case "cs5", "cs6", "cs7", "cs8": return [("data", String(word.suffix(1)))]
    default: break
    }
    if word.hasSuffix("databits"), word.count == 9 { return [("data", String(word.prefix(1)))] }
    let letters = Array(word)
    if letters.count == 1, let parity = parities[letters[0]] { return [("parity", parity)] }
    // 8N1
    if letters.count == 3, let format = format(data: letters[0], parity: letters[1], stop: letters[2]) { return format }
    let digits = word.hasPrefix("b") ? word.dropFirst() : word[...]
    if let baud = rate(digits) { return [("baud", baud)] }
    // 115200n81
    guard letters.count > 3, let baud = rate(word.dropLast(3)),
      let format = format(data: letters[letters.count - 2], parity: letters[letters.count - 3], stop: letters.last!)
    else { return nil }
    return [("baud", baud)] + format
  }

  private static func rate(_ digits: Substring) -> String? {
    guard digits.utf8.count > 1, digits.utf8.allSatisfy({ (0x30...0x39).contains($0) }), let rate = UInt32(digits),
      rate > 0
    else { return nil }
    return String(rate)
  }

  private static func format(data: Character, parity: Character, stop: Character) -> [Setting]? {
    guard "5678".contains(data), let parity = parities[parity], "12".contains(stop) else { return nil }
    return [("data", String(data)), ("parity", parity), ("stop", String(stop))]
  }
}
