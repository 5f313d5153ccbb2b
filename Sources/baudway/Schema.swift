// `baudway schema`: prints the JSON Schema of the configuration, the same as Deploy/config.schema.json. For packagers
// and editors, so it is not in the list of commands.

import CommandArguments
import GatewayKit

struct Schema: Command {
  static let help = CommandHelp(
    "schema", "Prints the JSON Schema of the configuration, for editors.", isHidden: true)

  @Flag(help: "Print the commands and their parameters instead, for manual pages.")
  var commands

  func run() throws { try put(commands ? (Baudway.program.description + "\n").utf8 : ConfigSchema.text().utf8) }
}
