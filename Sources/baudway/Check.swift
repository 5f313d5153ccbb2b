// `baudway check`: everything that is wrong with a configuration, or what it comes to with every default filled in.

import ArgumentParser
import GatewayKit

struct Check: ParsableCommand {
  static let configuration = CommandConfiguration(
    abstract: "Validates a configuration and prints its routes with every default filled in.",
    discussion: """
      Exit code 78 and one line per problem if there are any. Certificates that it names are read, too; nothing is started. What \
      is odd and may be meant is a warning on standard error, and no reason for another exit code.
      """)

  @OptionGroup var file: ConfigArgument

  func run() throws {
    let (config, warnings) = try file.examine()
    for warning in warnings { say("\(warning)") }
    raiseDescriptorLimit()  // as `serve` does
    try put((config.table + config.costs(within: .current())).utf8)
  }
}
