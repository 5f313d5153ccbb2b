// A configuration of ser2net as values: its connections, each with the defaults in force where it stands.
// Ser2netYAML.swift and Ser2netLines.swift read the two forms; nothing here knows what Baudway has in their place.

import StreamBroker

struct Ser2netFile {
  typealias Location = ConfigProblem.SourceLocation

  var connections: [Connection] = []
  /// What is no connection: rotators, the admin port, LEDs, included files, defaults.
  private(set) var others: [Other] = []

  /// More connections than ser2net is used for; a file of them must not take minutes.
  static let mostConnections = 2048
  static let mostOptions = 256
  static let mostOthers = 1000
  /// The longest text, in bytes, after all names in it are replaced.
  static let textLimit = 4096

  struct Connection {
    var name: String
    let location: Location
    /// How ser2net's file names it, for comments.
    var title: String
    var accepter: Text?
    var connector: Text?
    var timeout: Text?
    var isEnabled = true
    /// In the order of the file; a name may be there more than once.
    var options: [Option] = []
    var defaults = Defaults()
    /// Why ser2net would refuse it, or why it cannot be read here.
    var faults: [Text] = []
  }

  struct Text {
    let text: String
    let location: Location
  }

  struct Option {
    /// In lower case, with `-` for `_`.
    let name: String
    let value: String
    let location: Location
  }

  struct Other {
    let kind: Kind
    let name: String
    let location: Location

    enum Kind { case rotator, admin, led, include, standard, unknown }
  }

  /// Defaults by name; those of a class, such as `serialdev`, come first.
  struct Defaults {
    private var values: [String: [String: String]] = [:]

    func value(_ name: String, of kind: String) -> String? { values[kind]?[name] ?? values[""]?[name] }

    mutating func set(_ name: String, _ value: String, of kind: String?) {
      values[kind ?? "", default: [:]][Ser2netFile.key(name)] = value
    }

    mutating func remove(_ name: String, of kind: String) { values[kind]?[Ser2netFile.key(name)] = nil }
  }

  /// ser2net 3 writes `_` in names, ser2net 4 writes `-`.
  static func key(_ name: String) -> String { name.lowercased().replacing("_", with: "-") }

  /// How gensio reads a switch; nil for another word.
  static func flag(_ text: String) -> Bool? {
    switch text.lowercased() {
    case "", "true", "on", "yes", "1": true
    case "false", "off", "no", "0": false
    default: nil
    }
  }

  // MARK: - Reading

  mutating func add(_ connection: Connection) throws(YAMLFault) {
    if connections.count == Self.mostConnections {
      throw YAMLFault("more than \(Self.mostConnections) connections", at: connection.location)
    }
    if let option = connection.options.dropFirst(Self.mostOptions).first {
      throw YAMLFault("more than \(Self.mostOptions) options of one connection", at: option.location)
    }
    connections.append(connection)
  }

  mutating func add(_ kind: Other.Kind, _ name: String, _ place: Location) throws(YAMLFault) {
    if others.count == Self.mostOthers {
      throw YAMLFault("more than \(Self.mostOthers) entries that are no connection", at: place)
    }
    others.append(Other(kind: kind, name: name, location: place))
  }

  /// A default of an option that has no equivalent is reported where it is set, not for each connection.
  mutating func addDefault(_ name: String, _ value: String, _ place: Location) throws(YAMLFault) {
    let name = Self.key(name)
    if RouteDraft.isLost(name, value) { try add(.standard, name, place) }
  }

  /// Nil when `bytes` are something else.
  static func read(_ bytes: [UInt8]) throws(YAMLFault) -> Ser2netFile? {
    let documents: [YAMLNode]
    do throws(YAMLFault) { documents = try YAMLParser.documents(of: bytes, most: 64) } catch {
      if let file = try Ser2netLines.read(bytes) { return file }
      if Ser2netYAML.isLikely(bytes) { throw error }
      return nil
    }
    if let file = try Ser2netYAML.read(documents) { return file }
    return try Ser2netLines.read(bytes)
  }
}
