// `baudway schema`: the JSON Schema of the configuration, as Deploy/config.schema.json holds it. For packagers and editors;
// people need not see it among the commands.

import ArgumentParser
import GatewayKit

struct Schema: ParsableCommand {
  static let configuration = CommandConfiguration(
    abstract: "Prints the JSON Schema of the configuration, for editors.", shouldDisplay: false)

  func run() throws { try put(ConfigSchema.text().utf8) }
}
