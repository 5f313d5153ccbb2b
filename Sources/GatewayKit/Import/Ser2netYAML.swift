// ser2net.yaml of ser2net 4. Version 1 repeats keys of the top level (`connection: &name …`), and `*(name)` in a text
// is that definition; version 2 has mappings (`connections:`), and `=(name)`.

import StreamBroker

struct Ser2netYAML {
  private typealias Entry = YAMLNode.Entry

  private var file = Ser2netFile()
  private var defaults = Ser2netFile.Defaults()
  private var definitions: [String: String] = [:]
  private let mark: Character

  private static let version2 = ["defines", "defaults", "delete_defaults", "admins", "leds", "connections", "rotators"]
  private static let version1 = ["define", "default", "delete_default", "admin", "led", "connection", "rotator"]

  /// Nil when the documents are something else.
  static func read(_ documents: [YAMLNode]) throws(YAMLFault) -> Ser2netFile? {
    let mappings = documents.compactMap { if case .mapping(let entries) = $0.content { entries } else { nil } }
    let all = mappings.flatMap { $0 }
    let keys = Set(all.compactMap { Self.text($0.key)?.lowercased() })
    // `defaults`, `leds` and the like may be keys of other formats, so they count only beside a connection.
    let isVersion2 = all.contains { entry in
      guard text(entry.key)?.lowercased() == "connections", case .mapping(let named) = entry.value.content else {
        return false
      }
      return named.contains { isConnection($0.value) }
    }
    let isVersion1 =
      keys.contains("define") || all.contains { text($0.key)?.lowercased() == "connection" && isConnection($0.value) }
    guard isVersion1 || isVersion2 else { return nil }
    var reader = Ser2netYAML(mark: isVersion2 && !isVersion1 ? "=" : "*")
    for entry in all { try reader.read(entry) }
    return reader.file
  }

  /// Whether bytes that are no YAML were meant to be such a file.
  static func isLikely(_ bytes: [UInt8]) -> Bool {
    bytes.split(separator: UInt8(ascii: "\n")).contains {
      $0.starts(with: "connection:".utf8) || $0.starts(with: "connections:".utf8) || $0.starts(with: "define:".utf8)
    }
  }

  private init(mark: Character) { self.mark = mark }

  private static func isConnection(_ node: YAMLNode) -> Bool {
    guard case .mapping(let entries) = node.content else { return false }
    return entries.contains { ["accepter", "connector"].contains(text($0.key)?.lowercased()) }
  }

  private static func text(_ node: YAMLNode) -> String? {
    if case .scalar(let scalar) = node.content { scalar.text } else { nil }
  }

  // MARK: - The top level

  private mutating func read(_ entry: Entry) throws(YAMLFault) {
    let (key, place) = (Self.text(entry.key)?.lowercased() ?? "", entry.key.location)
    if Self.version2.contains(key) {
      guard case .mapping(let named) = entry.value.content else {
        if !entry.value.isNull { try file.add(.unknown, "\(key), which is \(entry.value.kind)", place) }
        return
      }
      let kind = Self.version1[Self.version2.firstIndex(of: key)!]
      for item in named { try read(kind, name: Self.text(item.key) ?? "", item.value, at: item.key.location) }
    } else if Self.version1.contains(key) {
      try read(key, name: entry.value.anchor ?? "", entry.value, at: place)
    } else if key == "include" {
      try file.add(.include, Self.text(entry.value) ?? "", place)
    } else {
      try file.add(.unknown, key, place)
    }
  }

  private mutating func read(
    _ kind: String, name: String, _ node: YAMLNode, at place: Ser2netFile.Location
  ) throws(YAMLFault) {
    switch kind {
    case "define": if !name.isEmpty, let text = Self.text(node) { definitions[name] = try expand(text, at: place) }
    case "default":
      let parts = try fields(node)
      let isNamed = parts.contains { $0.name == "name" }
      let part = { (key: String) in parts.last { $0.name == key }?.value }
      let (key, value) = (part("name") ?? (isNamed ? "" : name), part("value") ?? "")
      defaults.set(key, value, of: part("class"))
      try file.addDefault(key, value, place)
    case "delete_default": try deleteDefault(name, node)
    case "rotator": try file.add(.rotator, name, place)
    case "admin": try file.add(.admin, name, place)
    case "led": try file.add(.led, name, place)
    default: try connection(name, node, at: place)
    }
  }

  private mutating func deleteDefault(_ name: String, _ node: YAMLNode) throws(YAMLFault) {
    if case .sequence(let classes) = node.content {
      for kind in classes.compactMap(Self.text) { defaults.remove(name, of: kind) }
      return
    }
    let parts = try fields(node)
    // The man page's example has a comma behind the name.
    let part = { (key: String) in parts.last { $0.name == key }?.value.filter { $0 != "," } }
    if let name = part("name"), let kind = part("class") { defaults.remove(name, of: kind) }
  }

  // MARK: - Connections

  private mutating func connection(
    _ name: String, _ node: YAMLNode, at place: Ser2netFile.Location
  ) throws(YAMLFault) {
    var made = Ser2netFile.Connection(name: name, location: place, title: name.isEmpty ? "a connection" : name)
    made.defaults = defaults
    guard case .mapping(let entries) = node.content else {
      made.faults.append(Ser2netFile.Text(text: "expected keys and values, not \(node.kind)", location: node.location))
      try file.add(made)
      return
    }
    for entry in entries {
      let (key, place) = (Self.text(entry.key)?.lowercased() ?? "", entry.value.location)
      let value = try Self.text(entry.value).map { text throws(YAMLFault) in try expand(text, at: place) }
      let text = value.map { Ser2netFile.Text(text: $0, location: place) }
      switch key {
      case "accepter": made.accepter = text
      case "connector": made.connector = text
      case "timeout": made.timeout = text
      case "enable": made.isEnabled = value.flatMap(Ser2netFile.flag) ?? true
      case "options":
        for field in try fields(entry.value) { made.options.append(field) }
      default:
        made.options.append(Ser2netFile.Option(name: key, value: value ?? "", location: entry.key.location))
      }
    }
    try file.add(made)
  }

  /// The entries of a mapping whose values are texts. An LED or a connection is named by its alias.
  private func fields(_ node: YAMLNode) throws(YAMLFault) -> [Ser2netFile.Option] {
    guard case .mapping(let entries) = node.content else { return [] }
    var fields: [Ser2netFile.Option] = []
    for entry in entries {
      let text = try Self.text(entry.value).map { text throws(YAMLFault) in
        try expand(text, at: entry.value.location)
      }
      fields.append(
        Ser2netFile.Option(
          name: Ser2netFile.key(Self.text(entry.key) ?? ""), value: text ?? entry.value.anchor ?? "",
          location: entry.key.location))
    }
    return fields
  }

  // MARK: - Names in texts

  /// Replaces `*(name)`. The content of a file, `*{path}`, is never read: the text keeps it, and no route is made of
  /// such a text.
  private func expand(_ text: String, at place: Ser2netFile.Location) throws(YAMLFault) -> String {
    var result = ""
    var rest = text[...]
    while let start = rest.firstIndex(of: mark) {
      result += rest[..<start]
      rest = rest[start...].dropFirst()
      if rest.hasPrefix("(\(mark)") {
        result += "\(mark)("
        rest = rest.dropFirst(2)
      } else if rest.hasPrefix("("), let end = rest.firstIndex(of: ")") {
        let name = String(rest[..<end].dropFirst())
        guard let value = definitions[name] else {
          throw YAMLFault(
            "\(Suggestion.quote("\(mark)(\(name))")) has no definition before it; write 'define: &\(Suggestion.plain(name)) TEXT'",
            at: place)
        }
        result += value
        rest = rest[end...].dropFirst()
      } else {
        result.append(mark)
      }
      guard result.utf8.count <= Ser2netFile.textLimit else { break }
    }
    result += rest
    guard result.utf8.count <= Ser2netFile.textLimit else {
      throw YAMLFault("a text of more than \(Units.text(bytes: Ser2netFile.textLimit))", at: place)
    }
    return result
  }
}
