// Tree + table → settings, with every problem on the way. Knows what keys look like, not what they are for:
// ConfigBuilder makes routes of the settings. URLs are read in ConfigReader+URLs.swift.

import StreamBroker

/// A value with the places of its key and of itself.
struct ConfigSetting {
  let value: Value
  let key: ConfigProblem.Place
  let path: String
}

/// A URL of the file.
struct ConfigURL {
  let url: EndpointURL
  let place: ConfigProblem.Place
  let path: String
}

/// What was found in one mapping and in those within it: settings under dotted names, "clients.max".
struct ConfigSection {
  let place: ConfigProblem.Place
  var settings: [String: ConfigSetting] = [:]
  var urls: [String: [ConfigURL]] = [:]
  /// Entries of mappings whose keys are names.
  var children: [String: [(name: String, section: ConfigSection)]] = [:]
  /// Keys that are there, whatever became of their values.
  var present: [String: ConfigProblem.Place] = [:]
  /// Not a mapping at all, which was reported.
  var isBroken = false
}

struct ConfigReader {
  let file: String
  /// Knows which endpoints can be opened.
  let broker: Broker
  /// Schemes of listeners that can be used.
  let listeners: Set<String>
  var expansion: Expansion
  private var problems: [ConfigProblem] = []
  /// What is odd, and may be meant all the same.
  private(set) var warnings: [ConfigProblem] = []
  private var more = 0
  /// Whether it is told when secrets lie open.
  var looksAtFiles = false
  /// The first secret that stands in the file itself.
  private(set) var inlineSecret: (place: ConfigProblem.Place, path: String)?

  init(
    file: String, broker: Broker, listeners: Set<String> = ListenerSchemes.built, in surroundings: Surroundings
  ) {
    self.file = file
    self.listeners = listeners
    self.broker = broker
    expansion = Expansion(surroundings)
  }

  /// All that is wrong so far, or nil.
  var fault: ConfigProblems? { problems.isEmpty ? nil : ConfigProblems(problems, more: more) }

  mutating func report(
    _ message: String, at place: ConfigProblem.Place, _ path: String, suggestion: String? = nil
  ) {
    if problems.count == ConfigProblems.limit {
      more += 1
    } else {
      problems.append(
        ConfigProblem(file: file, place: place, path: path, message: message, suggestion: suggestion))
    }
  }

  mutating func warn(_ message: String, at place: ConfigProblem.Place?, _ path: String) {
    guard warnings.count < ConfigProblems.limit else { return }
    warnings.append(
      ConfigProblem(file: file, place: place, path: path, message: "warning: \(message)", suggestion: nil))
  }

  mutating func read(_ root: YAMLNode) -> ConfigSection {
    var section = ConfigSection(place: root.place)
    readKeys(root, ConfigKeys.top, at: Spot(path: "", name: "", key: root.place), into: &section)
    return section
  }

  // MARK: keys

  /// Where in the file and in the section a value belongs.
  struct Spot {
    let path: String
    /// Dotted, within the section.
    let name: String
    let key: ConfigProblem.Place
    /// Something above is not in this version, which was said once.
    var isLater = false
    /// One of a list of mappings.
    var isItem = false

    func below(_ word: String, key: ConfigProblem.Place, isNewSection: Bool = false) -> Spot {
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
        // What was meant takes long to find, a hundred thousand times.
        if problems.count == ConfigProblems.limit {
          more += 1
          continue
        }
        if entry.isPlain, reportTypography(entry.name, column: entry.place.column, at: entry.place, spot.path) {
          continue
        }
        let home = ConfigKeys.home(of: entry.name, under: spot.path, isSection: spot.name.isEmpty && !spot.isItem)
        let suggestion = home == nil ? Suggestion.nearest(to: entry.name, in: keys.map(\.name)) : nil
        let advice = home.map { "; it belongs \($0)" } ?? (entry.mayBeText ? Self.commaAdvice : "")
        report(
          "unknown key \(Suggestion.quote(entry.name))\(advice)", at: entry.place, spot.path, suggestion: suggestion)
        continue
      }
      let below = spot.below(entry.name, key: entry.place)
      section.present[below.name] = entry.place
      read(entry.value, key, at: below, into: &section)
    }
  }

  private static let commaAdvice = "; where it belongs to the text before the comma, that text needs quotes"

  /// Curly quotes and no-break spaces in what stands there without straight quotes, at `column` of the place's line where the file holds
  /// it letter by letter. Whether there are any, which was reported.
  mutating func reportTypography(
    _ text: String, column: Int?, at place: ConfigProblem.Place, _ path: String, isSecret: Bool = false
  ) -> Bool {
    if let inner = Typography.unquoted(text), let quote = text.unicodeScalars.first {
      let form = isSecret || Suggestion.mayHoldSecret(text) ? "" : ": \(YAMLFault.quoted(inner))"
      report(YAMLFault.curlyQuote(quote) + form, at: place, path)
      return true
    }
    guard let space = Typography.oddSpace(in: text.unicodeScalars) else { return false }
    let there = column.map { ConfigProblem.Place(line: place.line, column: $0 + space.offset) } ?? place
    report("\(space.name), which is a letter to YAML; write a plain space or none", at: there, path)
    return true
  }

  private mutating func read(_ node: YAMLNode, _ key: ConfigKey, at spot: Spot, into section: inout ConfigSection) {
    switch key.shape {
    case .value(let kind):
      if let value = readValue(node, kind, key, at: spot) {
        section.settings[spot.name] = ConfigSetting(value: value, key: spot.key, path: spot.path)
      }
    case .list(let kind):
      let items = list(node)
      let inner = items.isEmpty ? spot : later(key, at: spot)
      let values = items.compactMap { readValue($0, kind, ConfigKey(key.name, kind), at: inner) }
      // Where all are broken, which was reported, nobody has written an empty list.
      guard !values.isEmpty || items.isEmpty else { return }
      section.settings[spot.name] = ConfigSetting(value: .list(values), key: spot.key, path: spot.path)
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
        var child = ConfigSection(place: item.place)
        let inner = Spot(path: spot.path, name: "", key: spot.key, isLater: spot.isLater, isItem: true)
        readMapping(item, keys, key, at: inner, into: &child)
        return ("", child)
      }
    case .named(let shape, let names): readNamed(node, shape, names, key, at: spot, into: &section)
    case .url(let schemes, let built, let isList):
      let inner = later(key, at: spot)
      let known: Set<String>? =
        switch built {
        case .listeners: listeners
        case .endpoints: broker.schemes
        case .none: nil
        }
      let nodes = isList && !node.isNull ? list(node) : [node]
      if nodes.isEmpty { report("needs a URL, such as \(schemes[0].example)", at: node.place, spot.path) }
      section.urls[spot.name] = nodes.compactMap { node in
        let url = readURL(node, schemes, built: known, at: inner)
        // What only the scheme's connector knows to be wrong.
        if let url, built == .endpoints { reportRefusal(of: url) }
        return url
      }
    }
  }

  private mutating func reportRefusal(of url: ConfigURL) {
    do throws(URLProblem) {
      _ = try broker.connector(url.url)
    } catch {
      report(error.message, at: url.place, url.path, suggestion: error.suggestion)
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
      if names == .routes { checkRouteName(entry.name, at: entry.place, spot.path) }
      var child = ConfigSection(place: entry.place)
      let below = inner.below(entry.name, key: entry.place, isNewSection: true)
      if case .mapping = entry.value.content {} else { child.isBroken = !entry.value.isNull }
      if names == .routes, child.isBroken {
        let form = RouteForm.text(Suggestion.plain(entry.name), of: entry.value)
        report("expected keys and values, not \(entry.value.kind); write '\(form)'", at: entry.value.place, below.path)
      } else {
        read(entry.value, ConfigKey(entry.name, shape), at: below, into: &child)
      }
      children.append((entry.name, child))
    }
    section.children[spot.name] = children
  }

  private mutating func checkRouteName(_ name: String, at place: ConfigProblem.Place, _ path: String) {
    let isGood = { (letter: Character) in
      letter.isASCII && (letter.isLowercase || letter.isNumber || "._-".contains(letter))
    }
    if !name.isEmpty, name.utf8.count <= 64, name.allSatisfy(isGood), name != ".", name != ".." { return }
    if reportTypography(name, column: nil, at: place, path) { return }
    let meant = String(name.lowercased().map { isGood($0) ? $0 : "-" }.prefix(64))
    report(
      "\(Suggestion.quote(name)) is no name of a route; expected up to 64 of a-z 0-9 . _ -", at: place, path,
      suggestion: meant.contains { $0.isLetter } ? meant : nil)
  }

  /// Says that a section is not in this version, once for all that is in it.
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
      report("expected \(kind.expected), not \(node.kind); write for example '\(sample)'", at: node.place, spot.path)
      return nil
    }
    if scalar.isPlain,
      reportTypography(
        scalar.text, column: scalar.firstColumn, at: node.place, spot.path, isSecret: kind.isSecret)
    {
      return nil
    }
    let variable = kind == .escapes ? nil : Expansion.shellVariable(in: scalar.text)
    if kind.isSecret, let variable, variable.written == scalar.text {
      report(
        "'\(variable.written)' stands for itself; a variable is written \(variable.meant)", at: node.place, spot.path)
      return nil
    }
    do {
      var text = try expansion.expand(scalar.text)
      if kind.isSecret {
        noteSecret(text, isExpanded: text != scalar.text, at: node.place, spot.path)
        text = try expansion.secret(text)
      }
      let value = try kind.read(text)
      if let variable, !kind.isSecret {
        warn(
          "'\(variable.written)' stands for itself; a variable is written \(variable.meant)", at: node.place, spot.path)
      }
      let support = key.support(with: listeners)
      if spot.isLater || support.grants(value.description) { return value }
      let word = support == .later() ? "" : Suggestion.quote(value.description) + " is "
      report("\(word)not in \(Version.name)", at: support == .later() ? spot.key : node.place, spot.path)
    } catch let fault as ValueFault {
      report(fault.message, at: node.place, spot.path, suggestion: fault.suggestion)
    } catch let fault as Expansion.Fault {
      report(fault.message, at: node.place, spot.path)
    } catch {
      preconditionFailure("an error of no known type: \(error)")
    }
    return nil
  }

  /// `text` is a secret, or names its file; `isExpanded` when it came from the environment.
  mutating func noteSecret(_ text: String, isExpanded: Bool, at place: ConfigProblem.Place, _ path: String) {
    if let file = expansion.secretFile(text) {
      checkPermissions(file, isSecret: true, at: place, path)
    } else if !isExpanded, inlineSecret == nil {
      inlineSecret = (place, path)
    }
  }

  /// Whether others may write a file that the configuration rests on, or read one that is secret.
  mutating func checkPermissions(_ file: String, isSecret: Bool, at place: ConfigProblem.Place, _ path: String) {
    guard looksAtFiles, let facts = expansion.surroundings.facts(file) else { return }
    let name = Suggestion.plain(file)
    if facts.othersMayWrite { warn("\(name): \(facts.writable(name))", at: place, path) }
    if isSecret, facts.anybodyMayRead {
      warn("\(name): anybody may read this secret (mode \(facts.shownMode)); 'chmod o-r \(name)'", at: place, path)
    }
  }

  /// A list's items; a single value is a list of one, and nothing a list of none.
  private func list(_ node: YAMLNode) -> [YAMLNode] {
    if case .sequence(let items) = node.content { return items }
    return node.isNull ? [] : [node]
  }

  // MARK: mappings

  struct Entry {
    let name: String
    let place: ConfigProblem.Place
    let value: YAMLNode
    /// Written without quotes.
    let isPlain: Bool

    /// Stands in one line with the key before it, so in { }, and has no value: perhaps the rest of a text with a comma.
    let mayBeText: Bool
  }

  /// Each key once, with what `<<` brings in after them.
  mutating func entries(of node: YAMLNode, at spot: Spot, sample: String) -> [Entry] {
    guard case .mapping(let pairs) = node.content else {
      report("expected keys and values, such as '\(sample)', not \(node.kind)", at: node.place, spot.path)
      return []
    }
    var lines: [String: Int] = [:]
    var entries: [Entry] = []
    var merged: [YAMLNode] = []
    for pair in pairs {
      guard case .scalar(let scalar) = pair.key.content else {
        report("expected a key, not \(pair.key.kind)", at: pair.key.place, spot.path)
        continue
      }
      let name = scalar.text
      if name == "<<", scalar.isPlain {
        merged += list(pair.value)
      } else if let line = lines[name] {
        report("\(Suggestion.quote(name)) is said twice, first in line \(line)", at: pair.key.place, spot.path)
      } else {
        lines[name] = pair.key.place.line
        // A key stands in one line.
        let isPlain = scalar.isPlain && scalar.firstColumn != nil
        let mayBeText = pair.value.isNull && entries.last?.place.line == pair.key.place.line
        entries.append(
          Entry(name: name, place: pair.key.place, value: pair.value, isPlain: isPlain, mayBeText: mayBeText))
      }
    }
    for source in merged {
      for entry in self.entries(of: source, at: spot, sample: sample) where lines[entry.name] == nil {
        lines[entry.name] = entry.place.line
        entries.append(entry)
      }
    }
    return entries
  }
}
