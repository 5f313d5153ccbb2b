// The settings of a route (or of the top of the file): its own word, else the inherited one, else the table's default.
// Asking for a name that the table lacks is our own mistake.

import ByteStreams
import StreamBroker

struct Settings {
  let own: [String: ConfigSetting]
  let inherited: [String: ConfigSetting]
  let standards: [String: Value]

  static let topStandards = standards(of: ConfigKeys.top)
  static let routeStandards = standards(of: ConfigKeys.route)
  /// Dotted names of keys that mean something on shared links only.
  static let sharedOnly = Set(flat(ConfigKeys.route).filter { $0.key.isForSharedLinks }.map(\.name))

  /// Without what means nothing on a per-client link.
  var withoutShared: Settings {
    let known = Self.sharedOnly
    return Settings(
      own: own.filter { !known.contains($0.key) }, inherited: inherited.filter { !known.contains($0.key) },
      standards: standards)
  }

  func given(_ name: String) -> ConfigSetting? { own[name] ?? inherited[name] }

  func value(_ name: String) -> Value? { given(name)?.value ?? standards[name] }

  func text(_ name: String) -> String {
    guard case .text(let text)? = value(name) else { preconditionFailure("no text \(name)") }
    return text
  }

  func word<Word: RawRepresentable<String>>(_ name: String) -> Word {
    guard let word = Word(rawValue: text(name)) else { preconditionFailure("\(Word.self) lacks \(text(name))") }
    return word
  }

  func integer(_ name: String) -> Int? {
    switch value(name) {
    case .integer(let number)?, .size(let number)?: number
    default: nil
    }
  }

  /// Nil when it is the word `off`, or not given.
  func durationUnlessOff(_ name: String) -> Duration? {
    guard case .duration(let duration)? = value(name) else { return nil }
    return duration
  }

  /// The bytes of a text with escapes; none when it is not given.
  func bytes(_ name: String) -> [UInt8] {
    guard case .text(let text)? = value(name) else { return [] }
    return Escapes.bytes(of: text) ?? []  // its kind has let no bad one through
  }

  /// Nil when the list is not given.
  func networks(_ name: String) -> [Network]? {
    guard case .list(let values)? = value(name) else { return nil }
    return values.compactMap { Network($0.description) }
  }

  /// None when the list is not given.
  func texts(_ name: String) -> [String] {
    guard case .list(let values)? = value(name) else { return [] }
    return values.map(\.description)
  }

  func flag(_ name: String) -> Bool {
    guard case .flag(let isSet)? = value(name) else { preconditionFailure("no flag \(name)") }
    return isSet
  }

  func duration(_ name: String) -> Duration {
    guard case .duration(let duration)? = value(name) else { preconditionFailure("no duration \(name)") }
    return duration
  }

  func durations(_ name: String) -> ClosedRange<Duration> {
    guard case .durations(let range)? = value(name) else { preconditionFailure("no durations \(name)") }
    return range
  }

  // MARK: the table

  private static func standards(of keys: [ConfigKey]) -> [String: Value] {
    var standards: [String: Value] = [:]
    for (name, key) in flat(keys) {
      guard case .value(let kind) = key.shape, let standard = key.standard else { continue }
      standards[name] = try? kind.read(standard)
    }
    return standards
  }

  private static func flat(_ keys: [ConfigKey], prefix: String = "") -> [(name: String, key: ConfigKey)] {
    keys.flatMap { key in
      guard case .mapping(let inner) = key.shape else { return [(prefix + key.name, key)] }
      return flat(inner, prefix: prefix + key.name + ".")
    }
  }
}
