// `baudway release` and `baudway reopen`: give the port of a route up, so that another program can use it, and take it back.

import CommandArguments
import GatewayKit
import Glibc
import StreamBroker

struct Release: Command {
  static let help = CommandHelp(
    "release", "Closes the port of a route of the running gateway, so that another program can use it.",
    discussion: """
      It returns once the port is closed. The port stays closed until `baudway reopen`, or until the gateway is started again; the route's \
      listeners stay open, and clients are treated as with an absent device ('device.absent'). Exit code 1 when the port was not released, \
      64 when there is no such route.

      \(GatewayOptions.explanation)
      """)

  @Argument(help: "The route.", completion: .found(RunningGateway.routes))
  var route: String
  let choice = GatewayOptions()
  @Flag(help: "One object of JSON, in one line.")
  var json

  func run() throws {
    // What clients have sent goes out first, and drivers close slowly.
    try LinkRequest(action: .release, route: route, choice: choice, json: json).carryOut(
      within: .seconds(60), failure: "was not released"
    ) { _ in "was released" }
  }
}

struct Reopen: Command {
  static let help = CommandHelp(
    "reopen", "Ends `baudway release`: the running gateway opens the port of a route again once it is needed.",
    discussion: """
      A port that was not released stays as it is. Exit code 1 when each client of the route has a link of its own, 64 when there is no such \
      route.

      \(GatewayOptions.explanation)
      """)

  @Argument(help: "The route.", completion: .found(RunningGateway.routes))
  var route: String
  let choice = GatewayOptions()
  @Flag(help: "One object of JSON, in one line.")
  var json

  func run() throws {
    try LinkRequest(action: .reopen, route: route, choice: choice, json: json).carryOut(
      within: .seconds(5), failure: "was not reopened"
    ) { "is \($0)" }
  }
}

/// Asks the gateway for something that concerns a route's link.
struct LinkRequest {
  let action: LinkAction
  let route: String
  let choice: GatewayOptions
  let json: Bool

  /// Prints the answer, or why it was not done, and throws the right exit code.
  func carryOut(within limit: Duration, failure: String, done: (String) -> String) throws {
    let answer = try choice.gateway().ask(.link(route: route, action), within: limit)
    if json { try put(answer + [UInt8(ascii: "\n")]) }
    switch LinkAnswer(answer, to: action) {
    case .done(let result): if !json { try put("\(route) \(done(result))\n".utf8) }
    case .refused(let reason):
      if !json { say("baudway: \(route) \(failure): \(reason)") }
      throw ExitCode(1)
    case .failed(let reason):
      if !json { say("baudway: \(reason)") }
      throw ExitCode(EX_USAGE)
    }
  }
}
