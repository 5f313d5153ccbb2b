// `baudway complete`: prints candidates for the last word of a command line. The scripts in Deploy/completions call it;
// so it is not in the list of commands.

import CommandArguments
import GatewayKit

struct Complete: Command {
  static let help = CommandHelp("complete", "Prints candidates for a shell's completion.", isHidden: true)

  @Argument(help: "The command line without 'baudway', up to the word that is being typed; after --.", name: "word")
  var words: [String]

  func run() throws { try put(Baudway.program.completions(of: words).map { $0 + "\n" }.joined().utf8) }
}

extension DeviceList {
  /// Serial ports of this machine.
  static func urls() -> [Candidate] { survey().serialURLs.map { Candidate($0.url, note: $0.summary) } }
  /// Bluetooth adapters, by name.
  static func foundAdapters() -> [Candidate] { survey().adapterNames.map { Candidate($0) } }
}
