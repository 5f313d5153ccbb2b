// Endpoint and listener URLs. The first line of an input is the URL; each further line `name=value` is a parameter
// given beside it.

import GatewayKit
import StreamBroker

enum URLProperty {
  private static let broker = Broker(Schemes.standard)
  private static let tables = [EndpointSchemes.all, ListenerSchemes.all, [trial]]

  /// A scheme with a parameter of each kind that a URL can have, including a secret.
  private static let trial: SchemeGrammar = {
    let kinds: [(String, ValueKind)] = [
      ("text", .text), ("password", .secret), ("path", .path), ("file", .file(limit: 107)),
      ("integer", .integer(0...99)),
      ("mode", .mode), ("size", .size(0...Int.max)), ("duration", .duration(.zero ... .seconds(86400))),
      ("durations", .durations(.zero ... .seconds(3600))), ("flag", .flag), ("words", .words(["one", "two"])),
      ("uuid", .uuid), ("network", .network), ("idle", .prefixed("idle", .duration(.zero ... .seconds(60)))),
      ("either", .either(.words(["off"]), .size(1...4096))),
      ("recipe", .resetRecipe),
    ]
    return SchemeGrammar(
      "trial", example: "trial://host", authority: .network(ports: 1...65535, defaultPort: 1), path: .any,
      parameters: kinds.map { SchemeGrammar.Parameter($0.0, $0.1, isRepeatable: $0.0 == "text", "") })
  }()

  typealias Parsed = (url: EndpointURL?, problems: [URLProblem])
  typealias Beside = [(name: String, value: String)]

  static func check(_ input: [UInt8]) throws(Broken) {
    let lines = String(decoding: input, as: UTF8.self).split(separator: "\n", omittingEmptySubsequences: false)
      .map(String.init)
    let beside = lines.dropFirst().prefix(16).map { line in
      let cut = line.firstIndex(of: "=") ?? line.endIndex
      return (name: String(line[..<cut]), value: String(line[cut...].dropFirst()))
    }
    // Tables that do not have this scheme all give the same error.
    let scheme = lines[0].prefix { $0 != ":" }.lowercased()
    let all = tables.filter { table in table.contains { $0.scheme == scheme } }
    for table in all.isEmpty ? [EndpointSchemes.all] : all {
      let parsed = EndpointURL.parse(lines[0], beside: beside, schemes: table)
      try check(parsed, of: lines[0], beside)
      if let url = parsed.url {
        try checkWarnings(of: url, lines[0])
        try check(url, table)
      }
    }
    if scheme == trial.scheme { try checkSecret(lines[0], beside) }
  }

  /// Positions are within the input, and messages are one line of readable length.
  private static func check(_ parsed: Parsed, of text: String, _ beside: Beside) throws(Broken) {
    try hold((parsed.url == nil) == !parsed.problems.isEmpty, "a URL exactly when there are no problems")
    let length = text.unicodeScalars.count
    var last = 0
    for problem in parsed.problems {
      try hold((0...length).contains(problem.offset), "offset \(problem.offset) of \(length): \(problem)")
      try hold(problem.offset >= last, "problems in the order of their places")
      last = problem.offset
      try hold(!problem.message.isEmpty && problem.message.utf8.count < 600, "a message to be read: \(problem)")
      try holdsOneLine(problem.message, "message")
      try holdsOneLine(problem.suggestion, "suggestion")
      guard let item = problem.beside else { continue }
      try hold(beside.indices.contains(item.index) && problem.offset == 0, "a problem of a parameter that is there")
    }
  }

  private static func checkWarnings(of url: EndpointURL, _ text: String) throws(Broken) {
    for warning in url.warnings {
      try hold((0...text.unicodeScalars.count).contains(warning.offset), "offset \(warning.offset): \(warning)")
      try hold(!warning.message.isEmpty && warning.message.utf8.count < 600, "a message to be read: \(warning)")
      try holdsOneLine(warning.message, "warning")
    }
  }

  // MARK: - Accepted URLs

  private static func check(_ url: EndpointURL, _ table: [SchemeGrammar]) throws(Broken) {
    let canonical = url.description
    try holdsOneLine(canonical, "canonical text")
    for setting in url.settings {
      if case .secret = setting.value { return }  // masked, so it can't be read back; `checkSecret` checks it
    }
    let parsed = EndpointURL.parse(canonical, schemes: table)
    guard let again = parsed.url else {
      throw Broken("\(canonical.debugDescription) of \(url.text.debugDescription) is refused: \(parsed.problems)")
    }
    try hold(again.warnings.isEmpty, "\(canonical) has warnings: \(again.warnings)")
    try hold(again == url && again.hashValue == url.hashValue, "\(canonical) of \(url.text) means something else")
    try hold(again.description.utf8.elementsEqual(canonical.utf8), "\(canonical) is not canonical: \(again)")
    try hold(again.host == url.host && again.path == url.path, "\(canonical): host or path of \(url.text) is lost")
    try hold(again.settings == url.settings, "\(canonical): settings of \(url.text) are lost")
    try hold(again.device == url.device, "\(canonical): another device")
    for setting in url.settingsInForce {
      guard let kind = url.grammar.parameter(setting.name)?.kind else { throw Broken("a setting without a parameter") }
      try hold((try? kind.read(setting.value.description)) == setting.value, "\(setting) does not read back")
    }
    try checkUses(of: url, and: again)
  }

  /// What other code makes of a URL.
  private static func checkUses(of url: EndpointURL, and again: EndpointURL) throws(Broken) {
    try hold(again.differsInLineOnly(from: url), "equal URLs differ")
    try hold(again.outputs(changedFrom: url).isEmpty, "equal URLs change outputs")
    try hold(NodeOwnership(url) == NodeOwnership(again), "equal URLs give nodes to others")
    guard broker.schemes.contains(url.scheme) else { return }
    try hold(fault(url) == fault(again), "one of two equal URLs is refused")
  }

  private static func fault(_ url: EndpointURL) -> String? {
    do throws(URLProblem) {
      _ = try broker.connector(url)
      return nil
    } catch {
      return error.description
    }
  }

  // MARK: - Secrets

  /// What is printed of a URL and its problems must not depend on a secret in it.
  private static func checkSecret(_ text: String, _ beside: Beside) throws(Broken) {
    let secret = beside.last?.value ?? text
    guard !secret.isEmpty else { return }
    let rest = beside.filter { $0.name != "password" }
    let one = EndpointURL.parse(text, beside: rest + [("password", secret)], schemes: [trial])
    let other = EndpointURL.parse(text, beside: rest + [("password", "another")], schemes: [trial])
    try hold(one.problems == other.problems, "problems depend on a secret: \(one.problems)")
    guard let url = one.url, let second = other.url else { return }
    try hold(url.secret("password")?.reveal() == secret, "the secret is lost")
    try hold(shown(url) == shown(second), "\(shown(url)) depends on a secret")
  }

  private static func shown(_ url: EndpointURL) -> String {
    "\(url) \(url.target) \(url.settings) \(url.settingsInForce) \(url.settings.map { String(reflecting: $0) })"
  }
}
