// `baudway health`: for HEALTHCHECK and probes. Asks the running gateway; exit code 0 if it serves on all addresses,
// else 1.

import CommandArguments
import GatewayKit
import Glibc

struct Health: Command {
  static let help = CommandHelp(
    "health", "Asks the running gateway whether every address is bound; exit code 0 or 1.",
    discussion: """
      A unix or pty listener whose file was removed creates it again on this request.

      \(GatewayOptions.explanation)
      """)

  let choice = GatewayChoice()

  func run() throws {
    do {
      let answer = try choice.gateway().ask(.health, within: .seconds(2))
      try put(answer + [UInt8(ascii: "\n")])
      guard answer.starts(with: #"{"healthy":true"#.utf8) else { throw ExitCode(1) }
    } catch let code as ExitCode where code.code != EX_USAGE {
      throw ExitCode(1)  // probes know only 0 and 1
    }
  }
}
