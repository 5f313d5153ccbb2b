// config.yaml → Config, or all its problems. The one door to everything in this folder.

import ByteStreams
import Glibc
import StreamBroker

public enum ConfigFile {
  /// Larger files are not read.
  public static let limit = 1 << 20

  /// Reads the file at `path` and what it refers to; blocks. `broker` knows which endpoints can be opened.
  public static func load(
    path: String, environment: [String: String], broker: Broker = Gateway.broker
  ) throws(ConfigProblems) -> Config {
    try read(content(path), file: path, directory: folder(of: path), environment: environment, broker: broker)
  }

  /// The same, with what is odd and may be meant all the same; reads the certificates that the file names, too, and finds the
  /// mistakes in them. For `check`.
  public static func examine(
    path: String, environment: [String: String], broker: Broker = Gateway.broker
  ) throws(ConfigProblems) -> (config: Config, warnings: [ConfigProblem]) {
    let surroundings = Surroundings(environment: environment, directory: folder(of: path))
    let root = try parse(content(path), file: path)
    return try ConfigBuilder.examine(root, ConfigReader(file: path, broker: broker, in: surroundings), opensFiles: true)
  }

  /// Where the file says the control socket is, for those who only want to ask the gateway: also when it has mistakes, as far
  /// as it can be read at all, else nil.
  public static func controlSocket(path: String, environment: [String: String]) -> Config.Control.Socket? {
    guard let bytes = try? content(path), let root = try? YAMLParser.parse(bytes), !root.isNull else { return nil }
    let surroundings = Surroundings(environment: environment, directory: folder(of: path))
    return ConfigBuilder.controlSocket(root, ConfigReader(file: path, broker: Gateway.broker, in: surroundings))
  }

  private static func content(_ path: String) throws(ConfigProblems) -> [UInt8] {
    do throws(SystemError) {
      return try FileBytes.read(path, limit: limit)
    } catch {
      throw ConfigProblems([
        ConfigProblem(file: path, place: nil, path: "", message: message(error), suggestion: nil)
      ])
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
    do throws(YAMLFault) {
      if bytes.count > limit { throw YAMLFault("larger than \(Units.text(bytes: limit))", at: .start) }
      let root = try YAMLParser.parse(bytes)
      return root.flatMap { $0.isNull ? nil : $0 } ?? YAMLNode(content: .mapping([]), place: .start, weight: 1)
    } catch {
      throw ConfigProblems([
        ConfigProblem(file: file, place: error.place, path: "", message: error.message, suggestion: nil)
      ])
    }
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
