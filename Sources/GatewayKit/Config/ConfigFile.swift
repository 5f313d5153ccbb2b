// config.yaml → Config, or all its problems. The entry point of this folder.

import ByteStreams
import Glibc
import StreamBroker

package enum ConfigFile {
  /// The largest file that is read, in bytes.
  package static let limit = 1 << 20

  /// Reads the file at `path` and what it refers to; blocks. `broker` knows which endpoints can be opened.
  /// `refusingWritable` refuses a file that its group or others may write. Also returns the warnings for which no
  /// certificate must be read.
  package static func load(
    path: String, environment variables: [String: String], broker: Broker = Gateway.broker,
    refusingWritable: Bool = false
  ) throws(ConfigProblems) -> (config: Config, warnings: [ConfigProblem]) {
    let (bytes, facts) = try content(path)
    if refusingWritable { try refuseWritable(facts, path) }
    let environment = ConfigEnvironment(variables: variables, directory: folder(of: path))
    let files = try IncludedFiles(bytes, facts, file: path, in: environment, broker: broker)
    if refusingWritable {
      for file in files.all.dropFirst() + files.folders { try refuseWritable(file.facts, file.name) }
    }
    let reader = ConfigReader(files: files.all.map(\.name), broker: broker, in: environment)
    var result = try ConfigBuilder.examine(files.root, reader, opensFiles: false)
    result.config.includes = files.watched
    return result
  }

  private static func refuseWritable(_ facts: FileFacts?, _ path: String) throws(ConfigProblems) {
    guard let facts, facts.othersMayWrite else { return }
    throw problem(
      "\(facts.writable(path)), because its contents can start programs as root (or serve with --unsafe-permissions)",
      path)
  }

  /// Warnings about owner and permissions of the file, for a gateway that starts as root.
  package static func doubts(path: String) -> [String] {
    guard let facts = FileFacts(path: path) else { return [] }
    return doubts(facts, path, isRoot: true).map { "\(path): warning: \($0)" }
  }

  private static func doubts(_ facts: FileFacts, _ path: String, isRoot: Bool) -> [String] {
    (facts.othersMayWrite ? [facts.writable(path)] : []) + (isRoot && facts.owner != 0 ? [facts.foreign(path)] : [])
  }

  private static func problem(_ message: String, _ path: String) -> ConfigProblems {
    ConfigProblems([ConfigProblem(file: path, location: nil, path: "", message: message, suggestion: nil)])
  }

  /// For `check`: returns warnings as well, and reads the certificates that the file names to find mistakes in them.
  package static func examine(
    path: String, environment variables: [String: String], broker: Broker = Gateway.broker
  ) throws(ConfigProblems) -> (config: Config, warnings: [ConfigProblem]) {
    let environment = ConfigEnvironment(variables: variables, directory: folder(of: path))
    let (bytes, facts) = try content(path)
    return try examine(bytes, facts, file: path, in: environment, broker: broker)
  }

  static func examine(
    _ bytes: [UInt8], _ facts: FileFacts?, file: String, in environment: ConfigEnvironment, broker: Broker
  ) throws(ConfigProblems) -> (config: Config, warnings: [ConfigProblem]) {
    let files = try IncludedFiles(bytes, facts, file: file, in: environment, broker: broker)
    let readable = files.all.indices.filter { files.all[$0].facts?.anybodyMayRead ?? false }
    var reader = ConfigReader(
      files: files.all.map(\.name), readable: Set(readable), broker: broker, in: environment)
    for file in files.all + files.folders {
      for doubt in file.facts.map({ doubts($0, file.name, isRoot: environment.isRoot) }) ?? [] {
        reader.warn(doubt, of: file.name)
      }
    }
    // A pattern without a match is none; a folder that is not there may be misspelt or not mounted.
    for folder in files.folders where folder.facts == nil {
      reader.warn("'include' names this folder, which is not there or can't be looked at", of: folder.name)
    }
    return try ConfigBuilder.examine(files.root, reader, opensFiles: true)
  }

  /// The setting of the control socket, for commands that only ask the gateway. The file may have mistakes; nil if it
  /// cannot be read or parsed, or is empty.
  package static func controlSocket(path: String, environment variables: [String: String]) -> Config.Control.Socket? {
    guard let bytes = try? content(path).bytes, let root = try? YAMLParser.parse(bytes), !root.isNull else {
      return nil
    }
    let environment = ConfigEnvironment(variables: variables, directory: folder(of: path))
    return ConfigBuilder.controlSocket(root, ConfigReader(files: [path], broker: Gateway.broker, in: environment))
  }

  private static func content(_ path: String) throws(ConfigProblems) -> (bytes: [UInt8], facts: FileFacts?) {
    do throws(SystemError) {
      return try FileBytes.readWithFacts(path, limit: limit)
    } catch {
      throw problem(message(error), path)
    }
  }

  private static func folder(of path: String) -> String {
    path.lastIndex(of: "/").map { $0 == path.startIndex ? "/" : String(path[..<$0]) } ?? "."
  }

  /// Reads the content of a config file. `file` names it in problems; relative paths start in `directory`; `listeners`
  /// are the schemes that this build can listen on.
  package static func read(
    _ bytes: [UInt8], file: String = "config.yaml", directory: String = ".",
    environment variables: [String: String] = [:],
    broker: Broker = Gateway.broker, listeners: Set<String> = ListenerSchemes.built
  ) throws(ConfigProblems) -> Config {
    let environment = ConfigEnvironment(variables: variables, directory: directory)
    return try read(bytes, file: file, in: environment, broker: broker, listeners: listeners)
  }

  static func read(
    _ bytes: [UInt8], file: String, in environment: ConfigEnvironment, broker: Broker,
    listeners: Set<String> = ListenerSchemes.built
  ) throws(ConfigProblems) -> Config {
    let files = try IncludedFiles(bytes, nil, file: file, in: environment, broker: broker)
    let reader = ConfigReader(
      files: files.all.map(\.name), broker: broker, listeners: listeners, in: environment)
    return try ConfigBuilder.build(files.root, reader)
  }

  /// The tree of the main file. An empty file is an empty mapping.
  static func parse(_ bytes: [UInt8], file: String) throws(ConfigProblems) -> YAMLNode {
    let tree: Result<YAMLNode?, YAMLFault>
    do throws(YAMLFault) {
      if bytes.count > limit { throw YAMLFault("larger than \(Units.text(bytes: limit))", at: .start) }
      tree = .success(try YAMLParser.parse(bytes))
    } catch {
      tree = .failure(error)
    }
    // A configuration of ser2net gets a report of its own instead of YAML's faults.
    if let foreign = Ser2net.remark(tree, bytes, file: file) { throw problem(foreign, file) }
    do throws(YAMLFault) {
      let root = try tree.get()
      return root.flatMap { $0.isNull ? nil : $0 } ?? YAMLNode(content: .mapping([]), location: .start, weight: 1)
    } catch {
      throw problem(error, file)
    }
  }

  private static func problem(_ fault: YAMLFault, _ file: String) -> ConfigProblems {
    ConfigProblems([ConfigProblem(fault, file)])
  }

  static func message(_ error: SystemError, ifMissing: String = "check its name") -> String {
    let advice =
      switch error.errno {
      case ENOENT: "; \(ifMissing)"
      case EACCES: "; give the user that runs baudway the right to read it"
      case EFBIG: "; a config file has at most \(Units.text(bytes: limit))"
      case EISDIR: "; name the file in this directory"
      case ENXIO: "; it is a FIFO, a socket or a device, and only files and pipes such as /dev/stdin are read"
      case ETIMEDOUT: "; the program that writes to the pipe must close it"
      default: ""
      }
    return "cannot read it: \(error.text) (\(error.name))\(advice)"
  }
}
