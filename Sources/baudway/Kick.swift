// `baudway kick`: ends sessions of a route, as an operator. Prints whom.

import ArgumentParser
import GatewayKit
import Glibc

struct Kick: ParsableCommand {
  static let configuration = CommandConfiguration(
    abstract: "Ends sessions of a route of the running gateway.",
    discussion: """
      `baudway status` shows their numbers. They end with the word 'kicked'; what was kept for them is dropped. Exit code 1 when \
      there is no such session, 64 when there is no such route.
      """)

  @Argument(help: "The route.")
  var route: String
  @Argument(help: "Numbers of sessions.")
  var sessions: [UInt64] = []
  @Flag(help: "All sessions of the route.")
  var all = false
  @Option(name: .shortAndLong, help: "The configuration file of the gateway.", completion: .file(extensions: ["yaml"]))
  var config = "config.yaml"
  @OptionGroup var control: ControlOption
  @Flag(help: "One object of JSON, in one line.")
  var json = false

  func validate() throws {
    if sessions.isEmpty && !all { throw ValidationError("Say which sessions (baudway status shows them), or --all.") }
    if !sessions.isEmpty && all { throw ValidationError("Either sessions or --all.") }
  }

  // A request has at most 1 KiB, and a number at most 20 digits.
  private static let mostAtOnce = 30

  func run() throws {
    let gateway = try RunningGateway(control, config: config)
    var ended: [UInt64] = []
    var rest = sessions[...]
    repeat {
      let some = Array(rest.prefix(Self.mostAtOnce))
      rest = rest.dropFirst(some.count)
      let answer = try gateway.ask(.kick(route: route, sessions: all ? nil : some), within: .seconds(5))
      switch KickAnswer(answer) {
      case .ended(let numbers): ended += numbers
      case .failed(let reason):
        say("baudway: \(reason)")
        throw ExitCode(EX_USAGE)
      }
    } while !rest.isEmpty
    try report(ended)
  }

  private func report(_ ended: [UInt64]) throws {
    if json {
      try put((#"{"kicked":["# + ended.map(String.init).joined(separator: ",") + "]}\n").utf8)
    } else {
      for number in ended { try put("session \(number) of \(route) ended\n".utf8) }
      if all && ended.isEmpty { try put("\(route) has no clients\n".utf8) }
    }
    let missing = Set(sessions).subtracting(ended).sorted()
    if !missing.isEmpty {
      say("baudway: \(route) has no session \(missing.map(String.init).joined(separator: ", "))")
      throw ExitCode(1)
    }
  }
}
