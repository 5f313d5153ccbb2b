// The text of the bond file: one line for each device that is paired with an adapter. A value; opens no file.
//
//   # adapter         device            kind   keys
//   00:1A:7D:DA:71:13 C0:00:00:00:00:05 random ltk:…58 hexadecimal digits… irk:…32…
//
// To forget a device, remove its line. Lines of yours that begin with # are kept. Keys are secrets: only `encoded`
// writes them.

/// A device that is paired with an adapter of this machine.
struct Bond: Hashable, Sendable {
  let adapter: BluetoothAddress
  let device: PairedAddress
  fileprivate(set) var keys: [BondKey]

  /// For tests and `BondFile`.
  init(_ adapter: BluetoothAddress, _ device: PairedAddress, _ keys: [BondKey]) {
    self.adapter = adapter
    self.device = device
    self.keys = keys
  }

  fileprivate mutating func take(_ key: BondKey) {
    keys.removeAll { $0.yields(to: key) }
    keys.append(key)
  }

  fileprivate var line: String {
    let texts = keys.map { "\($0.kind.rawValue):" + $0.bytes.map(Self.hexadecimal).joined() }
    return (["\(adapter)", "\(device)", device.kind.word] + texts).joined(separator: " ")
  }

  private static func hexadecimal(_ byte: UInt8) -> String { (byte < 16 ? "0" : "") + String(byte, radix: 16) }
}

struct BondFile: Hashable, Sendable {
  /// What is wrong with the file, and on which line. Quotes nothing from the file: the text may be part of a key.
  struct Problem: Error, Hashable, Sendable {
    /// Counted from 1.
    let line: Int
    let message: String
  }

  private enum Line: Hashable {
    case remark(String)
    case bond(Bond)
  }
  private var lines: [Line]

  /// Any device in range can pair if the adapter allows it, so the file needs a limit.
  static let mostBonds = 256
  /// With this many bonds, devices that connect to us get no more lines: the rest is for devices that endpoints name.
  static let mostWithCallers = 192
  static let mostBytes = 256 << 10

  static let heading = """
    # Baudway's bonds with Bluetooth devices. They are secrets: keep them private. To forget a device, remove its line; the file is
    # read again before each connection.
    """

  /// A file without bonds.
  init() { lines = Self.heading.split(separator: "\n").map { .remark(String($0)) } }

  init(_ bytes: [UInt8]) throws(Problem) {
    guard bytes.count <= Self.mostBytes else {
      throw Problem(line: 1, message: "the file is too long for a bond file")
    }
    var rest = bytes[...]
    lines = []
    var seen: Set<Identity> = []
    while !rest.isEmpty {
      let text = rest.prefix { $0 != UInt8(ascii: "\n") }
      rest = rest.dropFirst(text.count + 1)
      let line = lines.count + 1
      guard text.allSatisfy({ (0x20...0x7E).contains($0) || $0 == 0x09 || $0 >= 0x80 }) else {
        throw Problem(line: line, message: "a control character")
      }
      let string = String(decoding: text, as: UTF8.self)
      let words = string.split { $0 == " " || $0 == "\t" }
      if words.isEmpty || words[0].hasPrefix("#") {
        lines.append(.remark(string))
        continue
      }
      let bond = try Self.bond(words, line)
      guard seen.insert(Identity(bond.adapter, bond.device)).inserted else {
        throw Problem(line: line, message: "this adapter and device already have a line")
      }
      guard seen.count <= Self.mostBonds else {
        throw Problem(line: line, message: "more than \(Self.mostBonds) bonds")
      }
      lines.append(.bond(bond))
    }
  }

  private struct Identity: Hashable {
    let adapter: BluetoothAddress
    let device: PairedAddress
    init(_ adapter: BluetoothAddress, _ device: PairedAddress) { (self.adapter, self.device) = (adapter, device) }
  }

  private static func bond(_ words: [Substring], _ line: Int) throws(Problem) -> Bond {
    guard words.count >= 4 else {
      throw Problem(line: line, message: "a bond has an adapter, a device, its kind and keys")
    }
    guard let adapter = BluetoothAddress(String(words[0])) else {
      throw Problem(line: line, message: "the first word is not an adapter's address")
    }
    guard let address = BluetoothAddress(String(words[1])) else {
      throw Problem(line: line, message: "the second word is not a device's address")
    }
    guard let kind = AddressKind.allCases.first(where: { $0.word == words[2] }) else {
      throw Problem(line: line, message: "the third word is not classic, public or random")
    }
    var bond = Bond(adapter, PairedAddress(address, kind), [])
    for word in words[3...] {
      guard let key = key(word), key.fits(bond.device) else {
        // A word of unknown kind may be part of a key: do not quote it.
        let kind = BondKey.Kind(rawValue: String(word.prefix { $0 != ":" }))
        throw Problem(line: line, message: "not a key of such a device" + (kind.map { ": \($0.rawValue)" } ?? ""))
      }
      guard !bond.keys.contains(where: { $0.yields(to: key) }) else {
        throw Problem(line: line, message: "two keys of one kind: \(key.kind.rawValue)")
      }
      bond.keys.append(key)
    }
    return bond
  }

  private static func key(_ word: Substring) -> BondKey? {
    guard let colon = word.firstIndex(of: ":"), let kind = BondKey.Kind(rawValue: String(word[..<colon])) else {
      return nil
    }
    let digits = Array(word[word.index(after: colon)...].utf8)
    guard digits.count == 2 * kind.size else { return nil }
    var bytes: [UInt8] = []
    for index in stride(from: 0, to: digits.count, by: 2) {
      guard let high = nibble(digits[index]), let low = nibble(digits[index + 1]) else { return nil }
      bytes.append(high << 4 | low)
    }
    return BondKey(kind, bytes)
  }

  private static func nibble(_ digit: UInt8) -> UInt8? {
    switch digit {
    case UInt8(ascii: "0")...UInt8(ascii: "9"): digit - UInt8(ascii: "0")
    case UInt8(ascii: "a")...UInt8(ascii: "f"): digit - UInt8(ascii: "a") + 10
    case UInt8(ascii: "A")...UInt8(ascii: "F"): digit - UInt8(ascii: "A") + 10
    default: nil
    }
  }

  var encoded: [UInt8] {
    Array(
      lines.map { line in
        switch line {
        case .remark(let text): text + "\n"
        case .bond(let bond): bond.line + "\n"
        }
      }.joined().utf8)
  }

  /// The bonds with one adapter.
  func bonds(with adapter: BluetoothAddress) -> [Bond] {
    lines.compactMap { if case .bond(let bond) = $0, bond.adapter == adapter { bond } else { nil } }
  }

  /// The line of a device's bond, counted from 1.
  func line(of device: PairedAddress, with adapter: BluetoothAddress) -> Int? {
    lines.firstIndex {
      if case .bond(let bond) = $0 { bond.adapter == adapter && bond.device == device } else { false }
    }.map { $0 + 1 }
  }

  /// Adds a key. Returns false if the device is new and there are `most` bonds already.
  mutating func keep(
    _ key: BondKey, of device: PairedAddress, with adapter: BluetoothAddress, most: Int = mostBonds
  ) -> Bool {
    if let line = line(of: device, with: adapter), case .bond(var bond) = lines[line - 1] {
      bond.take(key)
      lines[line - 1] = .bond(bond)
      return true
    }
    let count = lines.count { if case .bond = $0 { true } else { false } }
    guard count < most else { return false }
    lines.append(.bond(Bond(adapter, device, [key])))
    return true
  }
}
