// `include`: further files with routes and users. They are read as if their entries were in the main file, so everything
// else knows of them only that a place has a file.

import Glibc
import StreamBroker
import StreamBrokerCore

struct IncludedFiles {
  /// The main file, then those included, in the order in which they are read. Locations count in it.
  private(set) var all: [(name: String, facts: FileFacts?)]
  /// The tree of all files.
  private(set) var root: YAMLNode
  /// What is to be watched besides the main file, for NodeWatch: the files' paths, with `*` for any ending.
  private(set) var watched: [String] = []
  /// Folders from which files are taken by their names: a user that may write to one can add to the configuration.
  private(set) var folders: [(name: String, facts: FileFacts?)] = []

  /// The most files, and the most bytes of them all together.
  static let most = 1000
  static let sections = ["routes", "users"]

  private var problems: [ConfigProblem] = []
  private var bytesLeft: Int

  /// Blocks. Throws all problems of the files as such; their entries are looked at later, by ConfigReader.
  init(
    _ bytes: [UInt8], _ facts: FileFacts?, file: String, in environment: ConfigEnvironment, broker: Broker
  ) throws(ConfigProblems) {
    root = try ConfigFile.parse(bytes, file: file)
    all = [(file, facts)]
    bytesLeft = ConfigFile.limit - bytes.count
    guard case .mapping(let entries) = root.content, let include = entries.first(where: { $0.name == "include" }) else {
      return
    }
    // Only this key; what is wrong with it is reported when the whole tree is read.
    var reader = ConfigReader(files: [file], broker: broker, in: environment)
    let section = reader.read(YAMLNode(content: .mapping([include]), location: root.location, weight: root.weight))
    guard case .list(let patterns)? = section.settings["include"]?.value else { return }
    var seen: Set<String> = []
    for case .text(let pattern) in patterns {
      for path in paths(pattern, at: include.key.location, environment) where seen.insert(path).inserted {
        read(path, at: include.key.location, environment)
      }
    }
    if !problems.isEmpty { throw ConfigProblems(problems) }
  }

  /// The files that a pattern names, sorted by the bytes of their names. A name without a wildcard is that file, which
  /// has to exist.
  private mutating func paths(
    _ pattern: String, at location: ConfigProblem.SourceLocation, _ environment: ConfigEnvironment
  ) -> [String] {
    let path = environment.resolved(pattern)
    let slash = path.lastIndex(of: "/")
    let folder = slash.map { $0 == path.startIndex ? "/" : String(path[..<$0]) } ?? "."
    let name = slash.map { String(path[path.index(after: $0)...]) } ?? path
    func isWildcard(_ letter: Character) -> Bool { "*?[".contains(letter) }
    guard !folder.contains(where: isWildcard) else {
      refuse(
        "a wildcard in the name of a folder: \(Suggestion.quote(pattern)); use it in the name of the file", at: location
      )
      return []
    }
    let prefix = slash == nil ? "" : folder == "/" ? "/" : folder + "/"
    guard name.contains(where: isWildcard) else {
      watched.append(path)
      return [path]
    }
    watched.append(prefix + name.prefix { !isWildcard($0) } + "*")
    folders.append((folder, environment.folderFacts(folder)))
    let names = environment.names(folder).filter { fnmatch(name, $0, FNM_PERIOD) == 0 }
    return names.sorted { Array($0.utf8).lexicographicallyPrecedes(Array($1.utf8)) }.map { prefix + $0 }
  }

  private mutating func read(
    _ path: String, at location: ConfigProblem.SourceLocation, _ environment: ConfigEnvironment
  ) {
    guard all.count <= Self.most else {
      if all.count == Self.most + 1 { refuse("names more than \(Self.most) files", at: location) }
      return
    }
    let number = all.count
    let facts = environment.facts(path)
    all.append((path, facts))
    switch environment.content(path, ConfigFile.limit) {
    case .failure(let error):
      refuse(ConfigFile.message(error, ifMissing: "'include' names it in \(all[0].name)"), in: path)
    case .success(let bytes):
      bytesLeft -= bytes.count
      guard bytesLeft >= 0 else {
        if bytesLeft + bytes.count >= 0 {
          refuse("the files have more than \(Units.text(bytes: ConfigFile.limit)) together", at: location)
        }
        return
      }
      do throws(YAMLFault) {
        if let tree = try YAMLParser.parse(bytes, file: number), !tree.isNull { add(tree, path) }
      } catch {
        problems.append(ConfigProblem(error, path))
      }
    }
  }

  /// Puts the entries of a file's sections below those of the main file.
  private mutating func add(_ tree: YAMLNode, _ path: String) {
    guard case .mapping(let entries) = tree.content else {
      return problems.append(
        ConfigProblem(YAMLFault("expected 'routes:' or 'users:', not \(tree.kind)", at: tree.location), path))
    }
    for entry in entries {
      guard let name = entry.name, Self.sections.contains(name) else {
        let what = Suggestion.quote(entry.name ?? entry.key.kind)
        problems.append(
          ConfigProblem(
            YAMLFault(
              "\(what) can't be here: an included file has 'routes' and 'users', everything else is in \(all[0].name)",
              at: entry.key.location), path))
        continue
      }
      guard !entry.value.isNull else { continue }
      guard case .mapping(let new) = entry.value.content else {
        problems.append(
          ConfigProblem(
            YAMLFault("expected names with what they have, not \(entry.value.kind)", at: entry.value.location), path))
        continue
      }
      root = root.adding(new, to: entry)
    }
  }

  private mutating func refuse(_ message: String, at location: ConfigProblem.SourceLocation) {
    problems.append(
      ConfigProblem(file: all[0].name, location: location, path: "include", message: message, suggestion: nil))
  }

  private mutating func refuse(_ message: String, in path: String) {
    problems.append(ConfigProblem(file: path, location: nil, path: "", message: message, suggestion: nil))
  }
}

extension YAMLNode.Entry {
  fileprivate var name: String? {
    guard case .scalar(let scalar) = key.content else { return nil }
    return scalar.text
  }
}

extension YAMLNode {
  /// With entries added to the mapping that `section` is in another file. If that is no mapping here, which is reported
  /// later, nothing is added.
  fileprivate func adding(_ new: [Entry], to section: Entry) -> YAMLNode {
    guard case .mapping(var entries) = content else { return self }
    if let place = entries.firstIndex(where: { $0.name == section.name }) {
      let old = entries[place].value
      let known: [Entry]
      if case .mapping(let some) = old.content { known = some } else if old.isNull { known = [] } else { return self }
      let value = YAMLNode(content: .mapping(known + new), location: old.location, weight: old.weight)
      entries[place] = Entry(key: entries[place].key, value: value)
    } else {
      entries.append(section)
    }
    return YAMLNode(content: .mapping(entries), location: location, weight: weight)
  }
}
