// Config files: any bytes, in a made-up environment. The result is either a config that reads back unchanged after it
// is written, or problems with places in the file.

import StreamBroker

@testable import ByteStreams
@testable import GatewayKit

enum ConfigProperty {
  /// The content of every secret's file; it must never be printed.
  private static let sentinel = "Tr0ub4dor-sentinel"

  static let environment: ConfigEnvironment = {
    var world = ConfigEnvironment(
      variables: [
        "PORT": "4001", "BAUD": "9600", "EMPTY": "", "URL": "tcp://[::1]:9", "ODD": "a\u{1b}\n\"'{${PORT}",
      ],
      directory: "/nowhere")
    world.content = { path, limit in
      switch path {
      case "/nowhere/secret": .success(Array((sentinel + "\n").utf8))
      case "/nowhere/bytes": .success([0xFF, 0xFE, 0x00])
      case "/nowhere/empty": .success([])
      case "/nowhere/more.yaml":
        .success(
          Array(
            "users: {x: {password: 'file:secret'}}\nroutes: {gps: {listen: 'tcp://:7', endpoint: 'sim://nmea'}}".utf8))
      case "/nowhere/none.yaml": .success(Array("routes: {a: {listen: 'tcp://:8'}}\nlog: {}".utf8))
      default: .failure(SystemError("open", path.utf8.count % 2 == 0 ? 2 : 13))
      }
    }
    world.names = { $0 == "/nowhere" ? ["more.yaml", "none.yaml", "gone.yaml"] : [] }
    world.folderFacts = { _ in nil }
    world.addresses = { SocketAddress(numeric: $0, port: 0).map { [$0] } ?? [] }
    world.interfaces = { [] }
    world.lacksUser = { $0 != "root" }
    world.lacksGroup = { $0 != "dialout" }
    return world
  }()

  /// The connectors of this build; they check their URLs without access to the file system.
  static let broker = Broker(Schemes.standard.map { paper($0) })

  private static func paper<Real: Connector>(_ type: Real.Type) -> any Connector.Type { Paper<Real>.self }

  /// The config that runs before a reload.
  private static let before: Config = {
    let text = """
      routes:
        a: { listen: 'tcp://127.0.0.1:4001', endpoint: 'tty:///dev/ttyUSB0?baud=9600' }
        b: { listen: [ 'tcp://:4002', 'unix:///run/b.sock' ], endpoint: 'tcp://host:1', link: per-client }
        gps: { listen: 'tcp://[::1]:4003', endpoint: 'sim://nmea' }
      """
    guard case .success(let config) = read(Array(text.utf8)) else { preconditionFailure("the fixed config is wrong") }
    return config
  }()

  static func check(_ input: [UInt8]) throws(Broken) {
    switch read(input) {
    case .success(let config): try check(config)
    case .failure(let problems): try check(problems, of: input)
    }
    // The commands also look for the control socket in broken files.
    if let root = try? YAMLParser.parse(input), !root.isNull {
      let reader = ConfigReader(files: ["config.yaml"], broker: broker, in: environment)
      _ = ConfigBuilder.controlSocket(root, reader)
    }
  }

  private static func read(_ bytes: [UInt8]) -> Result<Config, ConfigProblems> {
    do throws(ConfigProblems) {
      return .success(try ConfigFile.read(bytes, file: "config.yaml", in: environment, broker: broker))
    } catch {
      return .failure(error)
    }
  }

  // MARK: - Problems

  private static func check(_ problems: ConfigProblems, of input: [UInt8]) throws(Broken) {
    try hold((1...100).contains(problems.list.count), "\(problems.list.count) problems")
    let widths = widths(of: input)
    var last = ConfigProblem.SourceLocation.start
    for problem in problems.list {
      let isOfMain = problem.file == "config.yaml"
      guard let place = problem.location else {
        try hold(!isOfMain, "a problem without a place: \(problem)")
        continue
      }
      try hold(place >= last, "problems in the order of their places")
      last = place
      try hold(
        !isOfMain || widths.indices.contains(place.line - 1) && (1...widths[place.line - 1] + 1).contains(place.column),
        "a place outside the file: \(problem)")
      try hold(!problem.message.isEmpty && problem.description.utf8.count < 8000, "a message to be read: \(problem)")
      try holdsOneLine(problem.description, "problem")
      try hold(!contains(problem.description, sentinel), "a secret is printed: \(problem)")
    }
  }

  private static func contains(_ text: String, _ word: String) -> Bool {
    text.utf8.count >= word.utf8.count && text.firstRange(of: word) != nil
  }

  /// Characters of each line, with the line breaks of YAML 1.1: CR LF, CR, LF, NEL, LS and PS.
  private static func widths(of input: [UInt8]) -> [Int] {
    var widths = [0]
    var isAfterReturn = false
    for scalar in String(decoding: input, as: UTF8.self).unicodeScalars {
      switch scalar {
      case "\n" where isAfterReturn: break
      case "\r", "\n", "\u{85}", "\u{2028}", "\u{2029}": widths.append(0)
      default: widths[widths.count - 1] += 1
      }
      isAfterReturn = scalar == "\r"
    }
    return widths
  }

  // MARK: - A config

  private static func check(_ config: Config) throws(Broken) {
    var config = config
    // The table masks secrets; everything else reads back.
    for index in config.users.indices where config.users[index].password != nil || !config.users[index].tokens.isEmpty {
      try hold(!contains(config.table, sentinel), "a secret is printed")
      config.users[index].password = nil
      config.users[index].tokens = []
      config.users[index].certificates.append("CN=masked")
    }
    for (index, route) in config.routes.enumerated() {
      for path in [\Config.Route.access, \.terminals] where route[keyPath: path] != .open {
        config.routes[index][keyPath: path] = Access(config.users, route: route.name, only: route[keyPath: path].only)
      }
    }
    try hold(Set(config.routes.map(\.name)).count == config.routes.count, "two routes of one name")
    let table = config.table
    try hold(!contains(table, sentinel), "a secret is printed")
    let again: Config
    switch read(Array(table.utf8)) {
    case .success(let config): again = config
    case .failure(let problems): throw Broken("its table is refused: \(problems)\n\(table)")
    }
    try hold(again == config, "its table means something else:\n\(table)")
    try hold(again.table == table, "its table is not canonical:\n\(again.table)")
    let none = ReloadPlan(from: config, to: again)
    try hold(
      none.report.untouched == config.routes.count && none.stopped.isEmpty && none.updated.isEmpty
        && none.started.isEmpty && none.report.settings.isEmpty, "something changes where nothing does")
    try checkReload(to: config)
    for route in config.routes {
      try hold(!route.listen.isEmpty && route.worstCaseMemory > 0, "a route without a way in, or without memory")
    }
  }

  /// A reload covers every route, and ends in every order of events that this plays.
  private static func checkReload(to config: Config) throws(Broken) {
    let plan = ReloadPlan(from: before, to: config)
    let report = plan.report
    let names = Set(config.routes.map(\.name))
    try hold(
      report.added.count + report.changed.count + report.untouched == names.count, "a new route that is forgotten")
    try hold(Set(report.removed) == Set(before.routes.map(\.name)).subtracting(names), "an old route that is forgotten")
    try hold(report.changed.allSatisfy { !$0.keys.isEmpty }, "a change of nothing: \(report.changed)")
    var reloading = ReloadSequence(plan, from: before.routes)
    var left = 4 * (config.routes.count + before.routes.count) + 4
    while !reloading.isOver {
      try hold(left > 0, "a reload that does not end")
      left -= 1
      for step in reloading.steps() {
        reloading.letGo(step.name)
        reloading.over(step.name)
      }
    }
  }
}

/// A connector that only checks a URL.
private struct Paper<Real: Connector>: Connector {
  static var grammar: SchemeGrammar { Real.grammar }
  static var isLine: Bool { Real.isLine }

  init(_ url: EndpointURL) throws(URLProblem) { _ = try Real(url) }

  func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    preconditionFailure("nothing is opened while a config is read")
  }
}
