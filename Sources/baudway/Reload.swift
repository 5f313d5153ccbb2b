// `baudway reload`: makes the running gateway read its file again, waits for the result, and prints what changed.

import CommandArguments
import GatewayKit
import Glibc

struct Reload: Command {
  static let help = CommandHelp(
    "reload", "Makes the running gateway read its configuration again, and prints what changed.",
    discussion: """
      Waits until the reload is complete. A file with mistakes changes nothing: all mistakes are printed, and the exit code is 78. \
      It is also 78 if only a certificate was refused: all else is applied, and the previous certificate stays in use. The \
      gateway reads the file it was started with; the file given here is only used to find its control socket.

      \(GatewayOptions.explanation)
      """)

  let choice = GatewayChoice()
  @Flag(help: "One object of JSON, in one line.")
  var json

  func run() throws {
    let gateway = try choice.gateway()
    let answer: [UInt8]
    do {
      answer = try gateway.ask(.reload, within: .seconds(70))  // the gateway itself gives up after a minute
    } catch is ExitCode where gateway.problems?.list.contains(where: { $0.location != nil }) ?? false {
      throw ExitCode(EX_CONFIG)  // they were printed; every gateway would refuse this file
    }
    if json { try put(answer + [UInt8(ascii: "\n")]) }
    switch ReloadAnswer(answer) {
    case .carriedOut(let lines): if !json { try put((lines.joined(separator: "\n") + "\n").utf8) }
    case .incomplete(let lines, let faults):
      if !json {
        try put((lines.joined(separator: "\n") + "\n").utf8)
        for fault in faults { say("baudway: not applied, the previous certificate stays in use: \(fault)") }
      }
      throw ExitCode(EX_CONFIG)
    case .refused(let problems):
      if !json { say(problems.joined(separator: "\n")) }
      throw ExitCode(EX_CONFIG)
    case .failed(let reason):
      if !json { say("baudway: \(reason)") }
      throw ExitCode(EX_UNAVAILABLE)
    }
  }
}
