// Texts of ser2net with its escapes: those of C, and letters that stand for the port, the client or the time. They
// become a banner, or bytes for the device.

import StreamBroker

struct Ser2netString {
  enum Piece {
    case bytes([UInt8])
    case variable(Character)
  }

  /// What a letter stands for here.
  enum Meaning {
    /// A name that a banner fills in: `{route}`.
    case name(String)
    case text(String)
  }

  let pieces: [Piece]

  private static let escapes: [Character: UInt8] = [
    "a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11,
  ]
  private static let variables = Set("doNpBsYyMmADeUIHhiSqPT")

  init(_ text: String) {
    var pieces: [Piece] = []
    var bytes: [UInt8] = []
    var rest = text[...]
    while let letter = rest.popFirst() {
      guard letter == "\\" else {
        bytes += letter.utf8
        continue
      }
      guard let escaped = rest.popFirst() else { break }
      if let byte = Self.escapes[escaped] {
        bytes.append(byte)
      } else if escaped == "x" {
        let digits = rest.prefix(2).prefix { $0.isASCII && $0.isHexDigit }
        rest = rest.dropFirst(digits.count)
        if let byte = UInt8(digits, radix: 16) { bytes.append(byte) }
      } else if "01234567".contains(escaped) {
        let more = rest.prefix(2).prefix { "01234567".contains($0) }
        rest = rest.dropFirst(more.count)
        bytes.append(UInt8(truncatingIfNeeded: Int("\(escaped)\(more)", radix: 8) ?? 0))
      } else if Self.variables.contains(escaped) {
        pieces += [.bytes(bytes), .variable(escaped)]
        bytes = []
      } else {
        bytes += escaped.utf8
      }
    }
    self.pieces = pieces + [.bytes(bytes)]
  }

  /// The letters that `meaning` does not know.
  func lost(_ meaning: (Character) -> Meaning?) -> [String] {
    var lost: [String] = []
    for case .variable(let letter) in pieces where meaning(letter) == nil && !lost.contains("\\\(letter)") {
      lost.append("\\\(letter)")
    }
    return lost
  }

  /// `clients.banner`: names in braces, everything that is no text as an escape.
  func banner(_ meaning: (Character) -> Meaning?) -> String {
    var text = ""
    for piece in pieces {
      switch piece {
      case .bytes(let bytes): text += Self.template(bytes)
      case .variable(let letter):
        switch meaning(letter) {
        case .name(let name): text += name
        case .text(let fixed): text += Self.template(Array(fixed.utf8))
        case nil: break
        }
      }
    }
    return text
  }

  /// `device.on-open`, `device.on-close`.
  func bytes(_ meaning: (Character) -> Meaning?) -> [UInt8] {
    pieces.flatMap { piece -> [UInt8] in
      switch piece {
      case .bytes(let bytes): return bytes
      case .variable(let letter):
        if case .text(let fixed) = meaning(letter) { return Array(fixed.utf8) }
        return []
      }
    }
  }

  /// A brace would begin a name.
  private static func template(_ bytes: [UInt8]) -> String {
    guard let text = String(validating: bytes, as: UTF8.self) else {
      return Escapes.text(of: bytes).replacing("{", with: "\\x7B")
    }
    return text.unicodeScalars.map { scalar in
      let isText = scalar.value > 0x7F && YAMLText.isPrintable(scalar) && !Suggestion.isControl(scalar)
      return isText ? String(scalar) : Escapes.text(of: Array(String(scalar).utf8))
    }.joined().replacing("{", with: "\\x7B")
  }
}
