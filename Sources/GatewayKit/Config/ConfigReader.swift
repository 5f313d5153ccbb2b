// YAML tree + table of keys → settings, and every problem found on the way. Knows the form of keys, not their purpose:
// ConfigBuilder makes routes of the settings, ValueKind reads and refuses a single value, such as a network of `allow`.
// ConfigReader+URLs.swift reads URLs.

import StreamBroker

/// A value, with the place and the path of its key.
struct ConfigSetting {
  let value: Value
  let key: ConfigProblem.SourceLocation
  let path: String
}

/// A URL of the file.
struct ConfigURL {
  let url: EndpointURL
  let location: ConfigProblem.SourceLocation
  let path: String
}

/// The content of one mapping and of those within it. Settings have dotted names: "clients.max".
struct ConfigSection {
  let location: ConfigProblem.SourceLocation
  var settings: [String: ConfigSetting] = [:]
  var urls: [String: [ConfigURL]] = [:]
  /// Entries of mappings whose keys are names.
  var children: [String: [(name: String, section: ConfigSection)]] = [:]
  /// Keys in the file, even where their values are broken.
  var present: [String: ConfigProblem.SourceLocation] = [:]
  /// Not a mapping; already reported.
  var isBroken = false
}

struct ConfigReader {
  /// The configuration's files: the main one, then those that it includes.
  let files: [String]
  /// Knows which endpoints can be opened.
  let broker: Broker
  /// Schemes of listeners that can be used.
  let listeners: Set<String>
  var expansion: Expansion
  private var problems: [ConfigProblem] = []
  /// Suspicious things that may be intended.
  private(set) var warnings: [ConfigProblem] = []
  private var more = 0
  /// Whether to warn of files that other users may read or write.
  var looksAtFiles = false
  /// The first secret written in the file itself.
  private(set) var inlineSecret: (location: ConfigProblem.SourceLocation, path: String)?
  /// Which files all users may read: a secret in one of them is worth a warning.
  private let readable: Set<Int>

  init(
    files: [String], readable: Set<Int> = [], broker: Broker, listeners: Set<String> = ListenerSchemes.built,
    in environment: ConfigEnvironment
  ) {
    self.files = files
    self.readable = readable
    self.listeners = listeners
    self.broker = broker
    expansion = Expansion(environment)
  }

  /// All problems so far, or nil.
  var fault: ConfigProblems? { problems.isEmpty ? nil : ConfigProblems(problems, more: more) }

  mutating func report(
    _ message: String, at location: ConfigProblem.SourceLocation, _ path: String, suggestion: String? = nil
  ) {
    if problems.count == ConfigProblems.limit {
      more += 1
    } else {
      problems.append(
        ConfigProblem(
          file: files[location.file], location: location, path: path, message: message, suggestion: suggestion))
    }
  }

  mutating func warn(_ message: String, at location: ConfigProblem.SourceLocation?, _ path: String) {
    guard warnings.count < ConfigProblems.limit else { return }
    warnings.append(
      ConfigProblem(
        file: files[location?.file ?? 0], location: location, path: path, message: "warning: \(message)",
        suggestion: nil))
  }

  /// A doubt about a whole file or folder.
  mutating func warn(_ message: String, of file: String) {
    guard warnings.count < ConfigProblems.limit else { return }
    warnings.append(
      ConfigProblem(file: file, location: nil, path: "", message: "warning: \(message)", suggestion: nil))
  }

  /// What the file refers to.
  var environment: ConfigEnvironment { expansion.environment }

  /// A place, for a message about another one: `line 12`, with the file's name if there are several.
  func place(_ location: ConfigProblem.SourceLocation) -> String {
    files.count == 1 ? "line \(location.line)" : "\(files[location.file]):\(location.line)"
  }

  mutating func read(_ root: YAMLNode) -> ConfigSection {
    var section = ConfigSection(location: root.location)
    readKeys(root, ConfigKeys.top, at: Spot(path: "", name: "", key: root.location), into: &section)
    return section
  }

  // MARK: keys

  /// Where a value belongs, in the file and in the section.
  struct Spot {
    let path: String
    /// Dotted, within the section.
    let name: String
    let key: ConfigProblem.SourceLocation
    /// A key above is not in this version; already reported.
    var isLater = false
    /// An item of a list of mappings.
    var isItem = false

    func below(_ word: String, key: ConfigProblem.SourceLocation, isNewSection: Bool = false) -> Spot {
      let shown = Suggestion.plain(word)
      return Spot(
        path: path.isEmpty ? shown : "\(path).\(shown)",
        name: isNewSection ? "" : name.isEmpty ? word : "\(name).\(word)",
        key: key, isLater: isLater)
    }
  }

  private mutating func readKeys(
    _ node: YAMLNode, _ keys: [ConfigKey], at spot: Spot, into section: inout ConfigSection
  ) {
    let sample = keys.first { $0.standard != nil }.map { "\($0.name): \($0.standard!)" } ?? "\(keys[0].name): …"
    for entry in entries(of: node, at: spot, sample: sample) {
      guard let key = keys.first(where: { $0.name == entry.name }) else {
        // Only count beyond the limit: finding suggestions for a hundred thousand keys takes long.
        if problems.count == ConfigProblems.limit {
          more += 1
          continue
        }
        if entry.isPlain, reportTypography(entry.name, column: entry.location.column, at: entry.location, spot.path) {
          continue
        }
        let home = ConfigKeys.home(of: entry.name, under: spot.path, isSection: spot.name.isEmpty && !spot.isItem)
        let suggestion = home == nil ? Suggestion.nearest(to: entry.name, in: keys.map(\.name)) : nil
        let advice =
          spot.path.isEmpty && entry.value.isRoute
          ? "; a route belongs below 'routes', and is indented deeper"
          : home.map { "; it belongs \($0)" } ?? (entry.mayBeText ? Self.commaAdvice : "")
        report(
          "unknown key \(Suggestion.quote(entry.name))\(advice)", at: entry.location, spot.path, suggestion: suggestion)
        continue
      }
      let below = spot.below(entry.name, key: entry.location)
      section.present[below.name] = entry.location
      read(entry.value, key, at: below, into: &section)
    }
  }

  private static let commaAdvice = "; if it is part of the text before the comma, that text needs quotes"

  /// Reports curly quotes and no-break spaces in a text without straight quotes; returns whether there are any.
  /// `column` is the column of the text if the line has it unchanged, without escapes; else nil.
  mutating func reportTypography(
    _ text: String, column: Int?, at location: ConfigProblem.SourceLocation, _ path: String, isSecret: Bool = false
  ) -> Bool {
    if let inner = Typography.unquoted(text), let quote = text.unicodeScalars.first {
      let form = isSecret || Suggestion.mayHoldSecret(text) ? "" : ": \(YAMLFault.quoted(inner))"
      report(YAMLFault.curlyQuote(quote) + form, at: location, path)
      return true
    }
    guard let space = Typography.oddSpace(in: text.unicodeScalars) else { return false }
    let there = column.map { location.moved(to: $0 + space.offset) } ?? location
    report("\(space.name), which YAML treats as a letter; write a plain space or none", at: there, path)
    return true
  }

  private mutating func read(_ node: YAMLNode, _ key: ConfigKey, at spot: Spot, into section: inout ConfigSection) {
    switch key.shape {
    case .value(let kind):
      if let value = readValue(node, kind, key, at: spot) {
        section.settings[spot.name] = ConfigSetting(value: value, key: spot.key, path: spot.path)
      }
    case .list(let kind): readList(node, kind, key, at: spot, into: &section)
    case .mapping(let keys): readMapping(node, keys, key, at: spot, into: &section)
    case .switched(let keys):
      if case .scalar = node.content, !node.isNull {
        if let off = readValue(node, .words(["off"]), key, at: spot) {
          section.settings[spot.name] = ConfigSetting(value: off, key: spot.key, path: spot.path)
        }
      } else {
        readMapping(node, keys, key, at: spot, into: &section)
      }
    case .mappings(let keys):
      section.children[spot.name] = list(node).map { item in
        var child = ConfigSection(location: item.location)
        let inner = Spot(path: spot.path, name: "", key: spot.key, isLater: spot.isLater, isItem: true)
        readMapping(item, keys, key, at: inner, into: &child)
        return ("", child)
      }
    case .named(let shape, let names): readNamed(node, shape, names, key, at: spot, into: &section)
    case .url(let schemes, let built, let isList):
      let nodes = isList && !node.isNull ? list(node) : [node]
      section.urls[spot.name] = readURLs(nodes, of: node, schemes, built, at: later(key, at: spot))
    }
  }

  private mutating func readList(
    _ node: YAMLNode, _ kind: ValueKind, _ key: ConfigKey, at spot: Spot, into section: inout ConfigSection
  ) {
    let items = list(node)
    let inner = items.isEmpty ? spot : later(key, at: spot)
    let values = items.compactMap { readValue($0, kind, ConfigKey(key.name, kind), at: inner) }
    // If all items are broken (already reported), the user has not written an empty list.
    guard !values.isEmpty || items.isEmpty else { return }
    section.settings[spot.name] = ConfigSetting(value: .list(values), key: spot.key, path: spot.path)
  }

  private mutating func readURLs(
    _ nodes: [YAMLNode], of whole: YAMLNode, _ schemes: [SchemeGrammar], _ built: ConfigKey.BuiltSchemes, at spot: Spot
  ) -> [ConfigURL] {
    let known: Set<String>? =
      switch built {
      case .listeners: listeners
      case .endpoints: broker.schemes
      case .admin, .none: nil
      }
    if nodes.isEmpty { report("needs a URL, such as \(schemes[0].example)", at: whole.location, spot.path) }
    return nodes.compactMap { node in
      let url = readURL(node, schemes, built: known, at: spot)
      // Mistakes that only the scheme's connector can find.
      if let url, built == .endpoints { reportRefusal(of: url) }
      return url
    }
  }

  private mutating func reportRefusal(of url: ConfigURL) {
    do throws(URLProblem) {
      _ = try broker.connector(url.url)
    } catch {
      report(error.message, at: url.location, url.path, suggestion: error.suggestion)
    }
  }

  private mutating func readMapping(
    _ node: YAMLNode, _ keys: [ConfigKey], _ key: ConfigKey, at spot: Spot, into section: inout ConfigSection
  ) {
    if node.isNull { return }  // all of its keys commented out
    readKeys(node, keys, at: later(key, at: spot), into: &section)
  }

  private mutating func readNamed(
    _ node: YAMLNode, _ shape: ConfigKey.Shape, _ names: ConfigKey.Names, _ key: ConfigKey, at spot: Spot,
    into section: inout ConfigSection
  ) {
    if node.isNull { return }
    let inner = later(key, at: spot)
    var children: [(String, ConfigSection)] = []
    let sample = names == .routes ? RouteForm.example : "name: …"
    let all = entries(of: node, at: inner, sample: sample)
    guard case .mapping = node.content else { return }
    for entry in all {
      if names == .routes { checkRouteName(entry.name, at: entry.location, spot.path) }
      var child = ConfigSection(location: entry.location)
      let below = inner.below(entry.name, key: entry.location, isNewSection: true)
      if case .mapping = entry.value.content {} else { child.isBroken = !entry.value.isNull }
      if names == .routes, child.isBroken {
        let isRoutesKey = ConfigKeys.route.contains { $0.name == entry.name }
        let advice =
          isRoutesKey
          ? "'\(entry.name)' is a key of a route: indent it deeper than the route's name"
          : "write '\(RouteForm.text(Suggestion.plain(entry.name), of: entry.value))'"
        report("expected keys and values, not \(entry.value.kind); \(advice)", at: entry.value.location, below.path)
      } else {
        read(entry.value, ConfigKey(entry.name, shape), at: below, into: &child)
      }
      children.append((entry.name, child))
    }
    section.children[spot.name] = children
  }

  private mutating func checkRouteName(_ name: String, at location: ConfigProblem.SourceLocation, _ path: String) {
    let isGood = { (letter: Character) in
      letter.isASCII && (letter.isLowercase || letter.isNumber || "._-".contains(letter))
    }
    if !name.isEmpty, name.utf8.count <= 64, name.allSatisfy(isGood), name != ".", name != ".." { return }
    if reportTypography(name, column: nil, at: location, path) { return }
    if name == "." || name == ".." {
      report("'\(name)' is not a route name, since it means a folder in paths", at: location, path)
      return
    }
    let meant = String(name.lowercased().map { isGood($0) ? $0 : "-" }.prefix(64))
    report(
      "\(Suggestion.quote(name)) is not a route name; expected up to 64 of a-z 0-9 . _ -", at: location, path,
      suggestion: meant.contains { $0.isLetter } ? meant : nil)
  }

  /// Reports that a section is not in this version, once for everything in it.
  private mutating func later(_ key: ConfigKey, at spot: Spot) -> Spot {
    guard !spot.isLater, key.support(with: listeners) != .built else { return spot }
    report("not in \(Version.name)", at: spot.key, spot.path)
    var inner = spot
    inner.isLater = true
    return inner
  }

  // MARK: values

  private mutating func readValue(_ node: YAMLNode, _ kind: ValueKind, _ key: ConfigKey, at spot: Spot) -> Value? {
    guard case .scalar(let scalar) = node.content, !node.isNull else {
      let sample = "\(key.name): \(key.standard ?? kind.sample)"
      report("expected \(kind.expected), not \(node.kind); write for example '\(sample)'", at: node.location, spot.path)
      return nil
    }
    if scalar.isPlain,
      reportTypography(
        scalar.text, column: scalar.firstColumn, at: node.location, spot.path, isSecret: kind.isSecret)
    {
      return nil
    }
    let variable = kind == .escapes ? nil : Expansion.shellVariable(in: scalar.text)
    if kind.isSecret, let variable, variable.written == scalar.text {
      report(
        "'\(variable.written)' is not expanded; a variable is written \(variable.meant)", at: node.location, spot.path
      )
      return nil
    }
    do {
      let value = try expanded(scalar.text, kind, at: node.location, spot.path)
      if let variable, !kind.isSecret {
        warn(
          "'\(variable.written)' is not expanded; a variable is written \(variable.meant)", at: node.location,
          spot.path)
      }
      let support = key.support(with: listeners)
      if spot.isLater || support.grants(value.description) { return value }
      let word = support == .later() ? "" : Suggestion.quote(value.description) + " is "
      report("\(word)not in \(Version.name)", at: support == .later() ? spot.key : node.location, spot.path)
    } catch let fault as ValueFault {
      report(fault.message, at: node.location, spot.path, suggestion: fault.suggestion)
    } catch let fault as Expansion.Fault {
      report(fault.message, at: node.location, spot.path)
    } catch {
      preconditionFailure("an error of no known type: \(error)")
    }
    return nil
  }

  private mutating func expanded(
    _ written: String, _ kind: ValueKind, at location: ConfigProblem.SourceLocation, _ path: String
  ) throws -> Value {
    var text = try expansion.expand(written)
    if kind.isSecret {
      noteSecret(text, isExpanded: text != written, at: location, path)
      text = try expansion.secret(text)
    }
    let value = try kind.read(text)
    // A relative path starts in the folder of the config file, not in the working directory.
    return kind == .path ? .text(expansion.environment.resolved(text)) : value
  }

  /// `text` is a secret or names its file; `isExpanded` when it came from the environment.
  mutating func noteSecret(_ text: String, isExpanded: Bool, at location: ConfigProblem.SourceLocation, _ path: String)
  {
    if let file = expansion.secretFile(text) {
      checkPermissions(file, isSecret: true, at: location, path)
    } else if !isExpanded, inlineSecret == nil, readable.contains(location.file) {
      inlineSecret = (location, path)
    }
  }

  /// Warns when others may write a file that the configuration depends on, or read a secret one.
  mutating func checkPermissions(
    _ file: String, isSecret: Bool, at location: ConfigProblem.SourceLocation, _ path: String
  ) {
    guard looksAtFiles, let facts = expansion.environment.facts(file) else { return }
    let name = Suggestion.plain(file)
    if facts.othersMayWrite { warn("\(name): \(facts.writable(name))", at: location, path) }
    if isSecret, facts.anybodyMayRead {
      warn("\(name): anybody may read this secret (mode \(facts.shownMode)); 'chmod o-r \(name)'", at: location, path)
    }
  }

  /// The items of a list. A single value is a list of one, a missing value an empty list.
  private func list(_ node: YAMLNode) -> [YAMLNode] {
    if case .sequence(let items) = node.content { return items }
    return node.isNull ? [] : [node]
  }

  // MARK: mappings

  struct Entry {
    let name: String
    let location: ConfigProblem.SourceLocation
    let value: YAMLNode
    /// Written without quotes.
    let isPlain: Bool

    /// Whether the entry may be the rest of a text with a comma: it has no value, and it is in one line with the key
    /// before it, so inside { }.
    let mayBeText: Bool
  }

  /// Each key once; those merged by `<<` come last.
  mutating func entries(of node: YAMLNode, at spot: Spot, sample: String) -> [Entry] {
    guard case .mapping(let pairs) = node.content else {
      report("expected keys and values, such as '\(sample)', not \(node.kind)", at: node.location, spot.path)
      return []
    }
    var places: [String: ConfigProblem.SourceLocation] = [:]
    var entries: [Entry] = []
    var merged: [YAMLNode] = []
    for pair in pairs {
      guard case .scalar(let scalar) = pair.key.content else {
        report("expected a key, not \(pair.key.kind)", at: pair.key.location, spot.path)
        continue
      }
      let name = scalar.text
      if name == "<<", scalar.isPlain {
        merged += list(pair.value)
      } else if let first = places[name] {
        report("\(Suggestion.quote(name)) is given twice, first in \(place(first))", at: pair.key.location, spot.path)
      } else {
        places[name] = pair.key.location
        // A key must be in one line.
        let isPlain = scalar.isPlain && scalar.firstColumn != nil
        let mayBeText =
          pair.value.isNull
          && entries.last.map {
            $0.location.line == pair.key.location.line && $0.location.file == pair.key.location.file
          }
            ?? false
        entries.append(
          Entry(name: name, location: pair.key.location, value: pair.value, isPlain: isPlain, mayBeText: mayBeText))
      }
    }
    for source in merged {
      for entry in self.entries(of: source, at: spot, sample: sample) where places[entry.name] == nil {
        places[entry.name] = entry.location
        entries.append(entry)
      }
    }
    return entries
  }
}
