// Configurations of ser2net: any bytes, in the made-up environment of `config`. The result is either a configuration
// that reads back, or problems with places in the file.

@testable import ByteStreams
@testable import GatewayKit

enum Ser2netProperty {
  static func check(_ input: [UInt8]) throws(Broken) {
    switch convert(input) {
    case .success(let made):
      try check(made, of: input)
      guard case .success(let again) = convert(input), again.text == made.text else {
        throw Broken("another result at the second time")
      }
    case .failure(let problems): try check(problems)
    }
  }

  private static func convert(_ input: [UInt8]) -> Result<Ser2netImport, ConfigProblems> {
    do throws(ConfigProblems) {
      return .success(
        try Ser2netImport.convert(
          input, file: "ser2net.yaml", in: ConfigProperty.environment, broker: ConfigProperty.broker))
    } catch {
      return .failure(error)
    }
  }

  private static func check(_ made: Ser2netImport, of input: [UInt8]) throws(Broken) {
    try hold(made.routes > 0 && made.routes <= made.connections, "\(made.routes) routes of \(made.connections)")
    if let lost = made.lost { try check(lost) }
    // What later versions can listen on or open is replaced, as the import does to judge its result.
    var text = made.text
    for (scheme, other) in [("telnet", "tcp"), ("telnets", "tls")] where !ListenerSchemes.built.contains(scheme) {
      text.replace("\(scheme)://", with: "\(other)://")
    }
    guard !made.text.contains("endpoint: rfc2217"), !made.text.contains("endpoint: 'rfc2217") else { return }
    let config: Config
    do throws(ConfigProblems) {
      config = try ConfigFile.read(
        Array(text.utf8), file: "config.yaml", in: ConfigProperty.environment, broker: ConfigProperty.broker)
    } catch {
      throw Broken("its result is refused: \(error)\n\(made.text)")
    }
    try hold(config.routes.count == made.routes, "\(config.routes.count) routes of \(made.routes)")
  }

  private static func check(_ problems: ConfigProblems) throws(Broken) {
    try hold((1...101).contains(problems.list.count), "\(problems.list.count) problems")
    for problem in problems.list {
      try hold(problem.description.utf8.count < 8000, "a message to be read: \(problem)")
      try holdsOneLine(problem.description, "problem")
    }
  }
}
