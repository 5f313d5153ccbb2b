// `baudway status`: what the running gateway does at this moment, as tables for people or JSON for programs; live with
// --watch.

import ArgumentParser
import ByteStreams
import GatewayKit
import Glibc

struct Status: ParsableCommand {
  static let configuration = CommandConfiguration(
    abstract: "Shows routes, links, listeners and clients of the running gateway.",
    discussion: """
      Takes the same configuration file as the gateway, which says where its control socket is. Exit code 69 when no gateway \
      answers there.
      """)

  @OptionGroup var file: ConfigArgument
  @OptionGroup var control: ControlOption
  @Flag(help: "One object of JSON, in one line.")
  var json = false
  @Flag(help: "Again each second, with rates, until Ctrl-C.")
  var watch = false

  func run() throws {
    let gateway = try RunningGateway(control, config: file.config)
    if watch { return try StatusWatch(gateway, asJSON: json).run() }
    let answer = try gateway.ask(.status, within: .seconds(10))
    if json {
      try put(answer + [UInt8(ascii: "\n")])
      return
    }
    guard let snapshot = Snapshot.read(answer) else {
      say("baudway: the gateway answers in a way this version does not understand")
      throw ExitCode(EX_PROTOCOL)
    }
    try put((StatusTable(snapshot, hasColours: hasColours()).lines.joined(separator: "\n") + "\n").utf8)
  }
}
