// Files that `include` names, in a made-up folder.

import StreamBroker
import Synchronization
import Testing

@testable import ByteStreams
@testable import GatewayKit

private final class ReadFiles: Sendable {
  let names = Mutex<[String]>([])
}

@Suite("Included files")
struct IncludedFilesTests {
  private let route = "{ listen: 'tcp://:%', endpoint: 'sim://echo' }"

  private func route(_ port: Int) -> String { route.replacing("%", with: "\(port)") }

  /// `files` by their paths in /etc/b, where the main file is.
  private func read(
    _ main: String, _ files: [String: String] = [:]
  ) -> (config: Config?, problems: [String], read: [String]) {
    let log = ReadFiles()
    var world = ConfigEnvironment(variables: ["DIR": "conf.d"], directory: "/etc/b")
    world.names = { folder in
      files.keys.map { "/etc/b/\($0)" }.filter { $0.hasPrefix(folder + "/") }.map {
        String($0.dropFirst(folder.count + 1))
      }
      .filter { !$0.contains("/") }.sorted(by: >)
    }
    world.content = { path, limit in
      log.names.withLock { $0.append(path) }
      guard let text = files.first(where: { "/etc/b/\($0.key)" == path })?.value else {
        return .failure(SystemError("open", 2))
      }
      return text.utf8.count > limit ? .failure(SystemError("read", 27)) : .success(Array(text.utf8))
    }
    world.facts = { _ in nil }
    world.folderFacts = { _ in nil }
    do throws(ConfigProblems) {
      let config = try ConfigFile.read(Array(main.utf8), file: "main", in: world, broker: Gateway.broker)
      return (config, [], log.names.withLock(\.self))
    } catch {
      return (nil, error.list.map(\.description), log.names.withLock(\.self))
    }
  }

  @Test("are read in the order of their names, each once, and add routes and users")
  func order() {
    let result = read(
      "include: [ '${DIR}/*.yaml', conf.d/b.yaml, /etc/b/z ]\nroutes: { m: \(route(1)) }",
      [
        "conf.d/b.yaml": "routes: { b: \(route(3)) }", "conf.d/a.yaml": "routes: { a: \(route(2)) }",
        "conf.d/.c.yaml": "x", "conf.d/c.yml": "x", "conf.d/d.yaml": "", "conf.d/e.yaml": "users:\nroutes: ~\n",
        "z": "users: { ada: { token: 0123456789abcdef } }\nroutes: { z: \(route(4)) }",
      ])
    #expect(result.problems == [])
    #expect(result.config?.routes.map(\.name) == ["m", "a", "b", "z"] && result.config?.users.map(\.name) == ["ada"])
    #expect(
      result.read == ["conf.d/a.yaml", "conf.d/b.yaml", "conf.d/d.yaml", "conf.d/e.yaml", "z"].map { "/etc/b/\($0)" })
  }

  @Test("may have all routes, and may be none at all")
  func alone() {
    #expect(read("include: '*'", ["a": "routes: { a: \(route(1)) }"]).config?.routes.map(\.name) == ["a"])
    #expect(read("include: conf.d/*\nroutes: { m: \(route(1)) }").config?.routes.map(\.name) == ["m"])
    #expect(read("include: []\nroutes: { m: \(route(1)) }").problems == [])
    #expect(read("include:\nroutes: { m: \(route(1)) }").problems == [])
  }

  @Test("know in what each mistake is, in one message with places in two files too")
  func places() {
    let result = read(
      "include: '*'\nroutes:\n  m: \(route(1))\n  a: \(route(2))",
      ["x": "\nroutes:\n  a: \(route(3))\n  b: \(route(1))\n  c: { listen: x }"])
    #expect(
      result.problems == [
        "/etc/b/x:3:3: routes: 'a' is given twice, first in main:4",
        "/etc/b/x:4:16: routes.b.listen: port 1 is taken by routes.m.listen (tcp://:1, main:3)",
        "/etc/b/x:5:3: routes.c: needs 'endpoint', such as 'endpoint: tty:///dev/ttyUSB0?baud=115200'",
      ] + result.problems.dropFirst(3))
    #expect(result.problems.count == 4 && result.problems[3].hasPrefix("/etc/b/x:5:16: routes.c.listen: "))
    let users = read(
      "include: '*'\nusers: { ada: { token: 0123456789abcdef } }\nroutes: { m: \(route(1)) }",
      ["x": "users: { ada: { token: 0123456789abcdeg } }"])
    #expect(users.problems == ["/etc/b/x:1:10: users: 'ada' is given twice, first in main:2"])
  }

  @Test("are refused for anything but routes and users; all such mistakes are reported at once")
  func others() {
    let result = read(
      "include: [ '*', gone, 'conf*/x' ]\nlog: { level: no }\nroutes: { m: \(route(1)) }",
      ["a": "log: {}\nversion: 1", "b": "[ routes ]", "c": "routes: [ x ]", "d": "routes: {", "e": "include: '*'"])
    #expect(
      result.problems.sorted() == [
        "/etc/b/a:1:1: 'log' can't be here: an included file has 'routes' and 'users', everything else is in main",
        "/etc/b/a:2:1: 'version' can't be here: an included file has 'routes' and 'users', everything else is in main",
        "/etc/b/b:1:1: expected 'routes:' or 'users:', not a list",
        "/etc/b/c:1:9: expected names with what they have, not a list",
        "/etc/b/d:1:10: did not find expected node content while parsing a flow node that begins in line 1",
        "/etc/b/e:1:1: 'include' can't be here: an included file has 'routes' and 'users', everything else is in main",
        "/etc/b/gone: cannot read it: No such file or directory (ENOENT); 'include' names it in main",
        "main:1:1: include: a wildcard in the name of a folder: '/etc/b/conf*/x'; use it in the name of the file",
      ])
  }

  @Test("are bounded in number, and in size together with the main file")
  func bounds() {
    let many = Dictionary(uniqueKeysWithValues: (0...1000).map { ("conf.d/\($0)", "") })
    let result = read("include: conf.d/*\nroutes: { m: \(route(1)) }", many)
    #expect(result.problems == ["main:1:1: include: names more than 1000 files"] && result.read.count == 1000)
    let text = "#" + String(repeating: "x", count: 600_000)
    let large = read(
      "include: conf.d/*\nroutes: { m: \(route(1)) }", ["conf.d/a": text, "conf.d/b": text, "conf.d/c": text])
    #expect(large.problems == ["main:1:1: include: the files have more than 1MiB together"])
  }
}
