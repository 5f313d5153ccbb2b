// config.yaml → Config, or all its problems. The one door to everything in this folder.

import ByteStreams
import Glibc
import StreamBroker

public enum ConfigFile {
  /// Larger files are not read.
  public static let limit = 1 << 20

  /// Reads the file at `path` and what it refers to; blocks. `broker` knows which endpoints can be opened. With `refusingWritable` a file
  /// that others may write is a mistake.
  public static func load(
    path: String, environment: [String: String], broker: Broker = Gateway.broker, refusingWritable: Bool = false
  ) throws(ConfigProblems) -> Config {
    let (bytes, facts) = try content(path)
    if refusingWritable, let facts, facts.othersMayWrite {
      throw problem(
        "\(facts.writable(path)), for who writes it would run what they like as root (or serve with --unsafe-permissions)",
        path)
    }
    return try read(bytes, file: path, directory: folder(of: path), environment: environment, broker: broker)
  }

  /// What whoever starts the gateway as root had better know of the file.
  public static func doubts(path: String) -> [String] {
    guard let facts = FileFacts(path: path) else { return [] }
    return doubts(facts, path, isRoot: true).map { "\(path): warning: \($0)" }
  }

  private static func doubts(_ facts: FileFacts, _ path: String, isRoot: Bool) -> [String] {
    (facts.othersMayWrite ? [facts.writable(path)] : []) + (isRoot && facts.owner != 0 ? [facts.foreign(path)] : [])
  }

  private static func problem(_ message: String, _ path: String) -> ConfigProblems {
    ConfigProblems([ConfigProblem(file: path, place: nil, path: "", message: message, suggestion: nil)])
  }

  /// The same, with what is odd and may be meant all the same; reads the certificates that the file names, too, and finds the
  /// mistakes in them. For `check`.
  public static func examine(
    path: String, environment: [String: String], broker: Broker = Gateway.broker
  ) throws(ConfigProblems) -> (config: Config, warnings: [ConfigProblem]) {
    let surroundings = Surroundings(environment: environment, directory: folder(of: path))
    let (bytes, facts) = try content(path)
    return try examine(bytes, facts, file: path, in: surroundings, broker: broker)
  }

  static func examine(
    _ bytes: [UInt8], _ facts: FileFacts?, file: String, in surroundings: Surroundings, broker: Broker
  ) throws(ConfigProblems) -> (config: Config, warnings: [ConfigProblem]) {
    var reader = ConfigReader(file: file, broker: broker, in: surroundings)
    for doubt in facts.map({ doubts($0, file, isRoot: surroundings.isRoot) }) ?? [] { reader.warn(doubt, at: nil, "") }
    return try ConfigBuilder.examine(
      parse(bytes, file: file), reader, opensFiles: true, isReadable: facts?.anybodyMayRead ?? false)
  }

  /// Where the file says the control socket is, for those who only want to ask the gateway: also when it has mistakes, as far
  /// as it can be read at all, else nil.
  public static func controlSocket(path: String, environment: [String: String]) -> Config.Control.Socket? {
    guard let bytes = try? content(path).bytes, let root = try? YAMLParser.parse(bytes), !root.isNull else {
      return nil
    }
    let surroundings = Surroundings(environment: environment, directory: folder(of: path))
    return ConfigBuilder.controlSocket(root, ConfigReader(file: path, broker: Gateway.broker, in: surroundings))
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

  /// Reads the content of a config file. `file` names it in problems; `directory` is where its `file:` paths and those of
  /// certificates begin; `listeners` are the schemes that can be listened on.
  public static func read(
    _ bytes: [UInt8], file: String = "config.yaml", directory: String = ".", environment: [String: String] = [:],
    broker: Broker = Gateway.broker, listeners: Set<String> = ListenerSchemes.built
  ) throws(ConfigProblems) -> Config {
    let surroundings = Surroundings(environment: environment, directory: directory)
    return try read(bytes, file: file, in: surroundings, broker: broker, listeners: listeners)
  }

  static func read(
    _ bytes: [UInt8], file: String, in surroundings: Surroundings, broker: Broker,
    listeners: Set<String> = ListenerSchemes.built
  ) throws(ConfigProblems) -> Config {
    let reader = ConfigReader(file: file, broker: broker, listeners: listeners, in: surroundings)
    return try ConfigBuilder.build(parse(bytes, file: file), reader)
  }

  private static func parse(_ bytes: [UInt8], file: String) throws(ConfigProblems) -> YAMLNode {
    let tree: Result<YAMLNode?, YAMLFault>
    do throws(YAMLFault) {
      if bytes.count > limit { throw YAMLFault("larger than \(Units.text(bytes: limit))", at: .start) }
      tree = .success(try YAMLParser.parse(bytes))
    } catch {
      tree = .failure(error)
    }
    // Another program's configuration is answered as a whole.
    let foreign = Ser2net.remarks(tree, bytes)
    if !foreign.isEmpty { throw problems(foreign, file) }
    do throws(YAMLFault) {
      let root = try tree.get()
      return root.flatMap { $0.isNull ? nil : $0 } ?? YAMLNode(content: .mapping([]), place: .start, weight: 1)
    } catch {
      throw problems([error], file)
    }
  }

  private static func problems(_ faults: [YAMLFault], _ file: String) -> ConfigProblems {
    let list = faults.map { ConfigProblem(file: file, place: $0.place, path: "", message: $0.message, suggestion: nil) }
    return ConfigProblems(Array(list.prefix(ConfigProblems.limit)), more: max(0, list.count - ConfigProblems.limit))
  }

  private static func message(_ error: SystemError) -> String {
    let advice =
      switch error.errno {
      case ENOENT: "; name the file that is meant, as in 'baudway check /etc/baudway/config.yaml'"
      case EACCES: "; give the user that runs baudway the right to read it"
      case EFBIG: "; a config file has at most \(Units.text(bytes: limit))"
      case EISDIR: "; name the file in it"
      case ENXIO: "; it is a FIFO, a socket or a device, and only files and pipes such as /dev/stdin are read"
      case ETIMEDOUT: "; whoever writes to the pipe has to close it"
      default: ""
      }
    return "cannot read it: \(error.text) (\(error.name))\(advice)"
  }
}
