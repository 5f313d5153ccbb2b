// A configuration of ser2net becomes one of Baudway: routes that `check` accepts, and a comment for each thing that has
// no equivalent. What ser2net refuses to a client is never allowed: such a connection becomes a comment.

import ByteStreams
import StreamBroker

package struct Ser2netImport {
  /// The configuration; ends in a line feed.
  package let text: String
  package let routes: Int
  package let connections: Int
  /// What has no equivalent, in the order of the file; nil when everything has one.
  package let lost: ConfigProblems?

  package var lostCount: Int { lost.map { $0.list.count + $0.more } ?? 0 }

  /// Reads the file at `path`; blocks. Throws why no route can be made.
  package static func convert(
    path: String, environment variables: [String: String], broker: Broker = Gateway.broker
  ) throws(ConfigProblems) -> Ser2netImport {
    let bytes: [UInt8]
    do throws(SystemError) { bytes = try FileBytes.read(path, limit: ConfigFile.limit) } catch {
      throw problem("cannot read it: \(error.text) (\(error.name))", in: path)
    }
    return try convert(
      bytes, file: path, in: ConfigEnvironment(variables: variables, directory: "."), broker: broker)
  }

  static func convert(
    _ bytes: [UInt8], file: String, in environment: ConfigEnvironment, broker: Broker
  ) throws(ConfigProblems) -> Ser2netImport {
    let found: Ser2netFile?
    do throws(YAMLFault) { found = try Ser2netFile.read(bytes) } catch {
      throw problem(error.message, in: file, at: error.location)
    }
    guard let source = found else {
      throw problem("not a configuration of ser2net: it has no connection", in: file)
    }
    var draft = ImportDraft(source, file: file)
    try draft.settle(in: environment, broker: broker)
    let lost = draft.lost
    let routes = draft.routes.count(where: \.isLive)
    let connections = source.connections.count
    let list =
      lost.isEmpty
      ? nil : ConfigProblems(Array(lost.prefix(ConfigProblems.limit)), more: max(0, lost.count - ConfigProblems.limit))
    guard routes > 0 else {
      let last = ConfigProblem(
        file: file, location: nil, path: "",
        message: connections == 0
          ? "it has no connection; are all of them comments?"
          : "no route can be made of its \(ImportDraft.count(connections, "connection"))",
        suggestion: nil)
      throw ConfigProblems([last] + (list?.list ?? []), more: list?.more ?? 0)
    }
    let text = draft.text
    guard text.utf8.count <= ConfigFile.limit else {
      throw problem("the result is larger than \(Units.text(bytes: ConfigFile.limit)); split the file", in: file)
    }
    return Ser2netImport(text: text, routes: routes, connections: connections, lost: list)
  }

  private static func problem(
    _ message: String, in file: String, at location: ConfigProblem.SourceLocation? = nil
  ) -> ConfigProblems {
    ConfigProblems([ConfigProblem(file: file, location: location, path: "", message: message, suggestion: nil)])
  }
}
