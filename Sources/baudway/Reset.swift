// `baudway reset`: resets the board behind a route by a reset recipe.

import CommandArguments
import GatewayKit
import Glibc
import StreamBroker

struct Reset: Command {
  static let help = CommandHelp(
    "reset", "Resets the board behind a route of the running gateway, by a sequence on DTR and RTS.",
    discussion: """
      Without a recipe it uses the route's 'device.reset'. Clients stay connected; what they send meanwhile waits. It opens no port: the \
      link must be open. Exit code 1 when nothing was reset, 64 when there is no such route.

      Recipes: \(ResetRecipe.expected).

      \(GatewayOptions.explanation)
      """)

  @Argument(help: "The route.", completion: .found(RunningGateway.routes))
  var route: String
  @Argument(help: "The recipe.", completion: .words(ResetRecipe.names))
  var recipe: String?
  let choice = GatewayOptions()
  @Flag(help: "One object of JSON, in one line.")
  var json

  func validate() throws { _ = try wanted() }

  private func wanted() throws -> ResetRecipe? {
    do {
      return try recipe.map { try ResetRecipe($0) }
    } catch let fault as ValueFault {
      throw UsageError(fault.text)
    }
  }

  func run() throws {
    // The longest recipe takes 5 s.
    try LinkRequest(action: .reset(wanted()), route: route, choice: choice, json: json).carryOut(
      within: .seconds(20), failure: "was not reset"
    ) { "was reset by \($0)" }
  }
}
