// The words with which ser2net sets a serial line, in every spelling of its versions: `115200n81`, `speed=9600`,
// `8DATABITS`, `-RTSCTS`, `local=false`, `rs485=10:20:rts_on_send`.

import StreamBroker

struct SerialWords {
  private var baud: UInt32 = 9600
  private var data = "8"
  private var parity = "none"
  private var stop = "1"
  private var hardware = false
  private var software = false
  private var hangup = false
  private var lines: [String: Bool] = [:]
  private var rs485: [(name: String, value: String)] = []
  /// No settings are made, as for a printer.
  private(set) var isWriteOnly = false
  /// What was set and has no equivalent, by name.
  private(set) var lost: [String: String] = [:]

  private static let parities: [Character: String] = [
    "n": "none", "e": "even", "o": "odd", "m": "mark", "s": "space",
  ]
  /// Names of defaults for this class, in the order in which they are applied.
  static let names = [
    "speed", "databits", "parity", "stopbits", "xonxoff", "rtscts", "local", "hangup-when-done", "nobreak", "rs485",
    "dtr", "rts", "custspeed", "wronly",
  ]

  static func knows(_ word: String) -> Bool {
    var words = SerialWords()
    return words.apply(word)
  }

  /// False for a word that ser2net does not know either.
  mutating func apply(_ word: String) -> Bool {
    let isOff = word.hasPrefix("-")
    let parts = (isOff ? word.dropFirst() : word[...]).split(
      separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
    let (name, value) = (Ser2netFile.key(parts.first.map(String.init) ?? ""), parts.count > 1 ? String(parts[1]) : nil)
    if let value { return apply(name, value) }
    return isOff ? apply(name, "off") : format(name) || apply(name, "on") || speed(name)
  }

  mutating func apply(_ name: String, _ value: String) -> Bool {
    let flag = Ser2netFile.flag(value)
    switch (name, flag) {
    case ("speed", _): return speed(value.lowercased())
    case ("databits", _): return format("\(value)databits")
    case ("stopbits", _): return format(value == "1" ? "1stopbit" : "\(value)stopbits")
    case ("parity", _): return format(value.lowercased())
    case ("rs485", _): return readRS485(value.lowercased())
    case ("xonxoff", let isOn?): software = isOn
    case ("rtscts", let isOn?): hardware = isOn
    case ("hangup-when-done", let isOn?): hangup = isOn
    case ("dtr", let isOn?), ("rts", let isOn?): lines[name] = isOn
    case ("wronly", let isOn?): isWriteOnly = isOn
    case ("custspeed", _?): break  // every rate is possible
    case ("local", let isOn?): lost[name] = isOn ? nil : "the modem lines of the port are not watched"
    case ("nobreak", let isOn?): lost[name] = isOn ? "a break is not ended at the opening of the port" : nil
    default: return false
    }
    return true
  }

  /// `8DATABITS`, `EVEN`, `2STOPBITS`
  private mutating func format(_ word: String) -> Bool {
    switch word {
    case "1stopbit", "2stopbits": stop = String(word.prefix(1))
    case "5databits", "6databits", "7databits", "8databits": data = String(word.prefix(1))
    case _ where Self.parities.values.contains(word): parity = word
    default: return false
    }
    return true
  }

  /// `115200n81`; each part after the rate may be missing.
  private mutating func speed(_ text: String) -> Bool {
    let digits = text.prefix { $0.isASCII && $0.isNumber }
    guard let rate = UInt32(digits), rate >= 10, text.count - digits.count <= 3 else { return false }
    let rest = Array(text.dropFirst(digits.count))
    let format = (rest.first.map { Self.parities[$0] }, rest.dropFirst().first, rest.dropFirst(2).first)
    guard format.0 != .some(nil), format.1.map("5678".contains) ?? true, format.2.map("12".contains) ?? true else {
      return false
    }
    baud = rate
    parity = format.0.flatMap(\.self) ?? parity
    data = format.1.map(String.init) ?? data
    stop = format.2.map(String.init) ?? stop
    return true
  }

  /// `10:20:rts_on_send`, in milliseconds.
  private mutating func readRS485(_ text: String) -> Bool {
    rs485 = []
    lost["rs485"] = nil
    if text == "off" { return true }
    let parts = text.split(separator: ":", omittingEmptySubsequences: false).map(String.init)
    guard parts.count > 1, let before = Int(parts[0]), let after = Int(parts[1]), before >= 0, after >= 0 else {
      return false
    }
    let words = parts[2...].map(Ser2netFile.key)
    let known = ["rts-on-send", "rts-after-send", "rx-during-tx", "terminate-bus"]
    guard words.allSatisfy(known.contains) else { return false }
    rs485.append(("rs485", words.contains("rts-after-send") ? "rts-after-send" : "rts-on-send"))
    for (name, delay) in [("rs485-delay-before", before), ("rs485-delay-after", after)] where delay > 0 {
      rs485.append((name, "\(min(delay, 1000))ms"))
    }
    let more = words.filter { known[2...].contains($0) } + (max(before, after) > 1000 ? ["delays beyond 1 s"] : [])
    if !more.isEmpty { lost["rs485"] = "the kernel's RS-485 mode is set without \(more.joined(separator: ", "))" }
    return true
  }

  // MARK: - Results

  /// `?baud=9600&parity=even`: the rate, and what differs from our defaults.
  var query: String {
    var settings = [("baud", String(baud))]
    for (name, value, standard) in [("data", data, "8"), ("parity", parity, "none"), ("stop", stop, "1")]
    where value != standard {
      settings.append((name, value))
    }
    if hardware || software { settings.append(("flow", hardware ? "rtscts" : "xonxoff")) }
    for name in ["dtr", "rts"] { if let isOn = lines[name] { settings.append((name, isOn ? "on" : "off")) } }
    if hangup { settings.append(("hupcl", "yes")) }
    return "?" + (settings + rs485.map { ($0.name, $0.value) }).map { "\($0)=\($1)" }.joined(separator: "&")
  }

  /// As ser2net shows it in a banner.
  var shown: String { "\(baud)\(parity.prefix(1).uppercased())\(data)\(stop)" }

  var hasTwoFlowControls: Bool { hardware && software }
}
