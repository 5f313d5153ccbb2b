// `baudway check`: everything that is wrong with a configuration, or what it comes to with every default filled in.

import ArgumentParser
import GatewayKit

struct Check: ParsableCommand {
  static let configuration = CommandConfiguration(
    abstract: "Validates a configuration and prints its routes with every default filled in.",
    discussion: "Exit code 78 and one line per problem if there are any; nothing is opened or started.")

  @OptionGroup var file: ConfigArgument

  func run() throws { print(try file.load().table, terminator: "") }
}
