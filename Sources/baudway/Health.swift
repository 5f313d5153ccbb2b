// `baudway health`: for HEALTHCHECK and probes. Asks the running gateway; exit code 0 if it serves on all addresses.

import ArgumentParser
import GatewayKit

struct Health: ParsableCommand {
  static let configuration = CommandConfiguration(
    abstract: "Asks the running gateway whether every address was bound; exit code 0 or 1.",
    discussion: """
      Takes the same configuration file as the gateway, which says where its control socket is. A unix or pty listener whose \
      file somebody has removed makes it anew at that.
      """)

  @OptionGroup var file: ConfigArgument
  @OptionGroup var control: ControlOption

  func run() throws {
    do {
      let answer = try RunningGateway(control, config: file.config).ask(.health, within: .seconds(2))
      try put(answer + [UInt8(ascii: "\n")])
      guard answer.starts(with: #"{"healthy":true"#.utf8) else { throw ExitCode(1) }
    } catch is ExitCode {
      throw ExitCode(1)  // a probe knows no other
    }
  }
}
