// `baudway status`: prints what the running gateway does now, as tables or as JSON; live with --watch.

import CommandArguments
import ByteStreams
import GatewayKit
import Glibc

struct Status: Command {
  static let help = CommandHelp(
    "status", "Shows routes, links, listeners and clients of the running gateway.",
    discussion: "\(GatewayOptions.explanation) Exit code 69 when no gateway answers.")

  let choice = GatewayChoice()
  @Flag(help: "One object of JSON, in one line.")
  var json
  @Flag(help: "Update every second, with rates, until Ctrl-C.")
  var watch

  func run() throws {
    let gateway = try choice.gateway()
    if watch { return try StatusWatch(gateway, asJSON: json).run() }
    let answer = try gateway.ask(.status, within: .seconds(10))
    if json {
      try put(answer + [UInt8(ascii: "\n")])
      return
    }
    guard let snapshot = Snapshot.read(answer) else {
      say("baudway: this version does not understand the gateway's answer; use the gateway's version of baudway")
      throw ExitCode(EX_PROTOCOL)
    }
    try put((StatusTable(snapshot, hasColours: hasColours()).lines.joined(separator: "\n") + "\n").utf8)
  }
}
