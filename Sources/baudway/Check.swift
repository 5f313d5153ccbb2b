// `baudway check`: prints everything wrong with a configuration, or the configuration with every default filled in.

import CommandArguments
import GatewayKit

struct Check: Command {
  static let help = CommandHelp(
    "check", "Validates a configuration and prints its routes with every default filled in.",
    discussion: """
      Prints one line per problem and exits with code 78 if there are any. Also reads the certificates that the file names; starts \
      nothing. A setting that is unusual but may be intended gives a warning on standard error and does not change the exit code.
      """)

  let file = ConfigFileArgument()

  func run() throws {
    let (config, warnings) = try file.examine()
    for warning in warnings { say("\(warning)") }
    raiseDescriptorLimit()  // as `serve` does
    try put((config.table + config.costs(within: .current())).utf8)
  }
}
