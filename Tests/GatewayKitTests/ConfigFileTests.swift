// What golden files can't show: odd bytes, files and secrets, sizes, damage, and the values themselves.

import ByteStreams
import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import GatewayKit

@Suite("A config file")
struct ConfigFileTests {
  private func read(_ text: String, environment: [String: String] = [:]) throws(ConfigProblems) -> Config {
    try ConfigFile.read(Array(text.utf8), environment: environment)
  }

  private func problems(_ bytes: [UInt8]) -> String {
    do throws(ConfigProblems) {
      _ = try ConfigFile.read(bytes)
      return ""
    } catch { return error.description }
  }

  private let good = "routes: { gps: { listen: 'tcp://:4001', endpoint: 'sim://echo' } }\n"

  @Test("is read into values with all defaults")
  func values() throws {
    let route = try #require(try read(good).routes.first)
    #expect(route.name == "gps" && route.link == .shared)
    #expect(route.listen.map(\.host) == [nil] && route.listen.map(\.port) == [4001])
    #expect(route.endpoint == (try EndpointURL("sim://echo")))
    let clients = Config.Clients(
      max: 8, whenFull: .refuse, writers: .all, takeover: .refuse, slow: .automatic, buffer: 65536, backlog: 0,
      idleTimeout: nil, halfClose: .seconds(5), keepalive: true, notices: true, refuseHttp: true, perAddress: 7,
      allow: nil, deny: [],
      banner: nil)
    #expect(route.clients == clients)
    let device = Config.Device(
      open: .onDemand, linger: .zero, absent: .hold, retry: .milliseconds(250) ... .seconds(30),
      connectTimeout: .seconds(10), drain: .seconds(5), flush: .connect, onOpen: [], onClose: [])
    #expect(route.packets == nil)
    #expect(route.device == device)
    #expect(route.worstCaseMemory == 9 * 65536)
  }

  @Test("keeps the order of its routes, and allows proxies many clients")
  func order() throws {
    let config = try read(
      "routes: { z: { listen: 'tcp://:1', endpoint: 'tcp://h:2' }, a: { listen: 'tcp://:3', endpoint: 'sim://echo' } }")
    #expect(config.routes.map(\.name) == ["z", "a"])
    #expect(config.routes.map(\.clients.max) == [1000, 8] && config.routes[0].link == .perClient)
  }

  @Test("means the same whether a default is written or not, so that a reload changes nothing")
  func sameness() throws {
    let long = "{ url: 'tty://any:115200/dev/x', parity: none }"
    let short = "tty:///dev/x"
    let configs = try [long, short].map { try read("routes: { a: { listen: 'tcp://:1', endpoint: \($0) } }") }
    #expect(configs[0] == configs[1])
  }

  @Test("identifies a port by its real path, through any symbolic link")
  func oneDevice() throws {
    let folder = "/tmp/baudway-\(getpid())-ports"
    try #require(mkdir(folder, 0o700) == 0)
    defer { rmdir(folder) }
    for name in ["one", "two"] { try #require(symlink("/dev/null", "\(folder)/\(name)") == 0) }
    defer { for name in ["one", "two"] { unlink("\(folder)/\(name)") } }
    let text = """
      routes:
        a: { listen: 'tcp://:1', endpoint: 'tty://\(folder)/one' }
        b: { listen: 'tcp://:2', endpoint: 'tty://\(folder)/two' }
      """
    let taken = "tty:///dev/null is taken by routes.a.endpoint (line 2); one device can have one route"
    #expect(problems(Array(text.utf8)).hasSuffix(": routes.b.endpoint: \(taken)"))
  }

  /// A machine with two adapters, each with several names.
  private struct TwoAdapters: Connector {
    static let grammar = EndpointSchemes.tty
    static let isLine = true
    let realDevice: String?

    init(_ url: EndpointURL) {
      let names = [
        "usb/0403:6001": "ttyUSB0", "usb/0403:6001/A50285BI": "ttyUSB0", "/dev/serial/by-id/a": "ttyUSB0",
        "/dev/serial/by-path/b": "ttyUSB0", "/dev/ttyUSB0": "ttyUSB0", "usb/10c4:ea60": "ttyUSB1",
        "/dev/serial/by-id/c": "ttyUSB1",
      ]
      realDevice = names[url.host == "usb" ? "usb\(url.path)" : url.path].map { "tty:///dev/\($0)" }
    }

    func open(
      _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
    ) -> any Opening { CompletedOpening() }
  }

  @Test(
    "identifies a port by the real device that its connector finds, in either order of the names",
    arguments: [
      ("usb/0403:6001", "/dev/serial/by-id/a", true), ("/dev/serial/by-id/a", "/dev/serial/by-path/b", true),
      ("/dev/ttyUSB0", "usb/0403:6001/A50285BI", true), ("usb/0403:6001", "usb/0403:6001/A50285BI", true),
      ("usb/0403:6001", "usb/10c4:ea60", false), ("/dev/serial/by-id/a", "/dev/serial/by-id/c", false),
      ("/dev/serial/by-id/away", "usb/10c4:ea60", false), ("usb/1234:0001", "usb/1234:0001", true),
    ])
  func sameDevice(one: String, other: String, isSame: Bool) throws {
    for (first, second) in [(one, other), (other, one)] {
      let text = """
        routes:
          a: { listen: 'tcp://:1', endpoint: 'tty://\(first)' }
          b: { listen: 'tcp://:2', endpoint: 'tty://\(second)' }
        """
      var problem: ConfigProblems?
      do throws(ConfigProblems) {
        _ = try ConfigFile.read(Array(text.utf8), broker: Broker([TwoAdapters.self]))
      } catch { problem = error }
      let said = problem.map { "\($0)" } ?? ""
      #expect(said.contains("is taken by routes.a.endpoint (line 2); one device can have one route") == isSame)
      #expect(said.isEmpty == !isSame, "\(said)")
    }
  }

  @Test("with odd bytes is reported with the byte and its place")
  func bytes() {
    #expect(problems(Array("a:\n  b\0".utf8)) == "config.yaml:2:4: control character \\0")
    #expect(problems(Array("ä: \u{1B}".utf8)) == "config.yaml:1:4: control character \\u{1B}")
    #expect(problems([0x61, 0x3A, 0x0A, 0x20, 0xC3, 0x28]) == "config.yaml:2:2: bytes that are not UTF-8")
    let others: [[UInt8]] = [
      [0xFF, 0xFE, 0x61, 0x00], [0xFE, 0xFF], [0x61, 0x00, 0x3A, 0x00], [0x00, 0x61, 0x00, 0x3A],
    ]
    for bytes in others {
      #expect(problems(bytes) == "config.yaml:1:1: the file is UTF-16; save it as UTF-8", "\(bytes)")
    }
    #expect(problems([0xFF, 0x61]) == "config.yaml:1:1: bytes that are not UTF-8")
    #expect(problems(Array("a: \"x\\0y\"".utf8)) == "config.yaml:1:4: NUL in a text")
    #expect(problems([]).hasPrefix("config.yaml:1:1: no routes"))
    for text in [good, "version: 1\n" + good] { #expect(problems(Array(("\u{FEFF}" + text).utf8)) == "") }
    #expect(problems(Array("\u{FEFF}versoin: 1\n\(good)".utf8)).hasPrefix("config.yaml:1:1: unknown key 'versoin'"))
    #expect(problems(Array("a: \u{FEFF}".utf8)) == "config.yaml:1:4: control character \\u{FEFF}")
    #expect(problems(Array(good.replacing("\n", with: "\r\n").utf8)) == "")
  }

  @Test("never puts control characters into a message")
  func messages() {
    let said = problems(Array("\"a\\e[31m\\nb\": 1\nroutes: { \"x\\r\": { listen: \"\\e\", \"\\n\": 1 } }".utf8))
    #expect(said.contains("unknown key 'a\\u{1B}[31m\\nb'") && said.contains("routes.x\\r.listen: control character"))
    #expect(!said.replacing("\n", with: "").unicodeScalars.contains { Suggestion.isControl($0) })
  }

  @Test("of more than 1 MiB is not read, and a hostile file is refused quickly")
  func sizes() {
    #expect(problems([UInt8](repeating: 0x23, count: (1 << 20) + 1)) == "config.yaml:1:1: larger than 1MiB")
    let clock = ContinuousClock()
    let spent = clock.measure {
      #expect(problems([UInt8](repeating: UInt8(ascii: "["), count: 1 << 20)).contains("nested deeper than 32 levels"))
      #expect(problems(Array(String(repeating: "a: {", count: 1 << 18).utf8)).contains("nested deeper than 32 levels"))
      let keys = (0..<20000).map { "k\($0): 1\n" }.joined()
      #expect(problems(Array(keys.utf8)).hasSuffix("\nand 19900 more"))
    }
    #expect(spent < .seconds(30))
  }

  @Test("that can't be read leads to advice on what to do")
  func unreadable() {
    func said(_ path: String) -> String? {
      do throws(ConfigProblems) {
        _ = try ConfigFile.load(path: path, environment: [:])
        return nil
      } catch { return error.description }
    }
    #expect(
      said("/nonexistent/c.yaml")
        == "/nonexistent/c.yaml: cannot read it: No such file or directory (ENOENT); check its name")
    #expect(said("/tmp")?.hasPrefix("/tmp: cannot read it: Is a directory (EISDIR)") == true)
    #expect(
      said("/dev/zero")
        == "/dev/zero: cannot read it: No such device or address (ENXIO); it is a FIFO, a socket or a device, and only files and "
        + "pipes such as /dev/stdin are read")
  }

  @Test("reads secrets from files next to it, and shows none")
  func secrets() throws {
    var template = Array("/tmp/config-test-XXXXXX".utf8CString)
    let folder = try #require(mkdtemp(&template).map { String(cString: $0) })
    defer { for name in ["/secret", "/empty", "/c.yaml", ""] { remove(folder + name) } }
    try writeText("$6$salt$\(String(repeating: "h", count: 86))\n", to: folder + "/secret")
    try writeText("\n", to: folder + "/empty")
    try writeText(
      "users: { a: { password: 'file:secret' }, b: { password: 'file:empty' }, c: { password: [hunter2] } }\n" + good,
      to: folder + "/c.yaml")
    let problems = #expect(throws: ConfigProblems.self) {
      try ConfigFile.load(path: folder + "/c.yaml", environment: [:])
    }
    #expect(
      problems?.list.map { "\($0.path): \($0.message)" } == [
        "users.b.password: the secret's file 'empty' is empty",
        "users.c.password: expected a secret, not a list; write for example 'password: text'",
      ])
  }

  @Test("reads secrets of endpoints from files next to it, as a URL parameter or as a key")
  func endpointSecrets() throws {
    let folder = try TemporaryFolder()
    try writeText("geheim\n", to: folder / "pw")
    try writeText("two words\n", to: folder / "bad")
    func endpoint(_ text: String) throws -> EndpointURL {
      let text = "routes: { a: { listen: 'tcp://:1', endpoint: \(text) } }"
      let config = try ConfigFile.read(Array(text.utf8), directory: folder.path)
      return try #require(config.routes.first).endpoint
    }
    for text in [
      "{ url: 'ws://h/x', user: ada, password: 'file:pw' }", "'ws://h/x?user=ada&password=file:pw'",
    ] { #expect(try endpoint(text).secret("password")?.reveal() == "geheim") }
    #expect(try endpoint("'ws://h/x?token=file:pw'").secret("token")?.reveal() == "geheim")
    #expect(try endpoint("'ws://h/x?token=plain'").secret("token")?.reveal() == "plain")
    for (text, words) in [
      ("{ url: 'ws://h/x', token: 'file:none' }", "token: cannot read the secret's file 'none'"),
      ("'ws://h/x?token=file:none'", "token: cannot read the secret's file 'none'"),
      (
        "'ws://h/x?token=file:~/none'",
        "token: cannot read the secret's file '~/none': No such file or directory (ENOENT); '~' is not expanded here"
      ),
      ("'ws://h/x?token=file:bad'", "token: a bearer token must be ASCII"),
    ] {
      let problems = #expect(throws: ConfigProblems.self) { try endpoint(text) }
      #expect(problems?.list.count == 1 && problems?.list.first?.message.hasPrefix(words) == true)
    }
    // A URL on the command line is taken literally: no secret file is read.
    #expect(try EndpointURL("ws://h/x?token=file:pw").secret("token")?.reveal() == "file:pw")
  }

  @Test("expands environment variables, up to a limit")
  func environment() throws {
    let text = "routes: { a: { listen: 'tcp://:${P}', endpoint: '${E:-sim://echo}' } }"
    #expect(try read(text, environment: ["P": "7", "E": ""]).routes[0].listen[0].port == 7)
    #expect(try read(text, environment: ["P": "7", "E": "sim://sink"]).routes[0].endpoint.host == "sink")
    let long = ["X": String(repeating: "x", count: 100_000)]
    let many = "proxies: [ \(Array(repeating: "'${X}'", count: 50).joined(separator: ", ")) ]\n" + good
    let problems = #expect(throws: ConfigProblems.self) { try read(many, environment: long) }
    #expect(problems?.list.contains { $0.message == "environment variables add more than 1MiB" } == true)
  }

  @Test("with any damage is read without a crash", arguments: ConfigGoldenTests.names)
  func damage(name: String) throws {
    let bytes = try readBytes(#filePath.replacing("ConfigFileTests.swift", with: "Golden/\(name)"))
    var random = SeededRandom()
    let odd = Array("{}[]:,-'\"#&*!|>%@`?<$~\n\t 0\u{0}".utf8) + [0xC3, 0xFF]
    for _ in 0..<60 {
      var damaged = bytes
      for _ in 0..<Int.random(in: 1...4, using: &random) {
        let place = damaged.indices.randomElement(using: &random) ?? 0
        switch Int.random(in: 0..<4, using: &random) {
        case 0: damaged.insert(odd.randomElement(using: &random)!, at: place)
        case 1 where !damaged.isEmpty: damaged.remove(at: place)
        case 2 where !damaged.isEmpty: damaged[place] = odd.randomElement(using: &random)!
        default:
          damaged.insert(
            contentsOf: damaged[place...].prefix(40), at: damaged.indices.randomElement(using: &random) ?? 0)
        }
      }
      do throws(ConfigProblems) {
        let config = try ConfigFile.read(damaged)
        #expect(throws: Never.self) { try read(config.table) }
      } catch {
        let text = String(decoding: damaged, as: UTF8.self)
        #expect(
          !error.list.isEmpty && error.list.allSatisfy { $0.location.map { $0 >= .init(line: 1, column: 1) } ?? false },
          "\(text)")
      }
    }
  }
}
