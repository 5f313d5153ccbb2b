// `baudway kick`: ends sessions of a route, and prints their numbers.

import CommandArguments
import GatewayKit
import Glibc

struct Kick: Command {
  static let help = CommandHelp(
    "kick", "Ends sessions of a route of the running gateway.",
    discussion: """
      `baudway status` shows session numbers. The sessions end with the word 'kicked'; bytes kept for them are dropped. Exit code 1 when \
      there is no such session, 64 when there is no such route.

      \(GatewayOptions.explanation)
      """)

  @Argument(help: "The route.", completion: .found(RunningGateway.routes))
  var route: String
  @Argument(help: "Session numbers.", name: "session", completion: .found(RunningGateway.sessions))
  var sessions: [UInt64]
  @Flag(help: "All sessions of the route.")
  var all
  let choice = GatewayOptions()
  @Flag(help: "One object of JSON, in one line.")
  var json

  func validate() throws {
    if sessions.isEmpty && !all {
      throw UsageError("name the sessions (baudway status shows their numbers), or use --all")
    }
    if !sessions.isEmpty && all { throw UsageError("use either session numbers or --all") }
  }

  // A request has at most 1 KiB, and a number at most 20 digits.
  private static let mostAtOnce = 30

  func run() throws {
    let gateway = try choice.gateway()
    var ended: [UInt64] = []
    var rest = sessions[...]
    do {
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
    } catch {
      if !ended.isEmpty { try show(ended) }  // earlier requests have ended these
      throw error
    }
    try show(ended)
    let missing = Set(sessions).subtracting(ended).sorted()
    if !missing.isEmpty {
      say("baudway: \(route) has no session \(missing.map(String.init).joined(separator: ", "))")
      throw ExitCode(1)
    }
  }

  private func show(_ ended: [UInt64]) throws {
    if json {
      try put((#"{"kicked":["# + ended.map(String.init).joined(separator: ",") + "]}\n").utf8)
    } else {
      for number in ended { try put("session \(number) of \(route) ended\n".utf8) }
      if all && ended.isEmpty { try put("\(route) has no clients\n".utf8) }
    }
  }
}
