// `baudway reload`: the running gateway reads its file again; waits until it is carried out, and prints what changed.

import ArgumentParser
import GatewayKit
import Glibc

struct Reload: ParsableCommand {
  static let configuration = CommandConfiguration(
    abstract: "Makes the running gateway read its configuration again, and prints what changed.",
    discussion: """
      Waits until it is carried out. A file with mistakes changes nothing: all of them are printed, and the exit code is 78; \
      it is that, too, when all is taken on but a certificate, and the one before is shown still. The \
      gateway reads the file it was started with; the one given here only says where its control socket is.
      """)

  @OptionGroup var file: ConfigArgument
  @OptionGroup var control: ControlOption
  @Flag(help: "One object of JSON, in one line.")
  var json = false

  func run() throws {
    let gateway = try RunningGateway(control, config: file.config)
    let answer: [UInt8]
    do {
      answer = try gateway.ask(.reload, within: .seconds(70))  // the gateway itself gives up after a minute
    } catch is ExitCode where gateway.problems?.list.contains(where: { $0.place != nil }) ?? false {
      throw ExitCode(EX_CONFIG)  // they were printed; no gateway would take this file
    }
    if json { try put(answer + [UInt8(ascii: "\n")]) }
    switch ReloadAnswer(answer) {
    case .carriedOut(let lines): if !json { try put((lines.joined(separator: "\n") + "\n").utf8) }
    case .incomplete(let lines, let faults):
      if !json {
        try put((lines.joined(separator: "\n") + "\n").utf8)
        for fault in faults { say("baudway: not taken, what was shown before is shown still: \(fault)") }
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
