// What an administrator can ask of a route's shared link: `baudway reset`, `release` and `reopen`, and the same by the API.

import StreamBroker

package enum LinkAction: Hashable, Sendable {
  /// Carries out a reset recipe at the port; nil for the route's own.
  case reset(ResetRecipe?)
  /// Gives the port up.
  case release
  case reopen

  /// The word for requests and the log.
  package var name: String {
    switch self {
    case .reset: "reset"
    case .release: "release"
    case .reopen: "reopen"
    }
  }

  var recipe: ResetRecipe? { if case .reset(let recipe) = self { recipe } else { nil } }

  /// For the log.
  var detail: String? {
    recipe?.text
  }

  /// The key of an answer that says whether it was done, and that of the result's text.
  private var keys: (isDone: String, result: String?) {
    switch self {
    case .reset: ("reset", "recipe")
    case .release: ("released", nil)
    case .reopen: ("reopened", "link")
    }
  }

  /// Whether the answer says that it was done; nil if it is not one to this.
  func isDone(_ answer: JSONValue) -> Bool? { answer[keys.isDone]?.flag }
  /// What it says more.
  func result(_ answer: JSONValue) -> String { keys.result.flatMap { answer[$0]?.text } ?? "" }

  /// The answer to a program.
  func answer(_ result: Result<String, LinkRefusal>, on route: String) -> JSONValue {
    switch result {
    case .success(let text):
      .object([
        keys.isDone: .bool(true), "route": .text(route), keys.result ?? "": keys.result.map { _ in .text(text) },
      ])
    case .failure(let refusal):
      .object([keys.isDone: .bool(false), "route": .text(route), "error": .text(refusal.message)])
    }
  }
}

extension LinkRefusal {
  fileprivate static let noSharedLink = LinkRefusal(
    "each client of this route has a link of its own; only a shared link has a port")
}

extension Route {
  /// Begins a live recording.
  func capture(_ buffer: CaptureBuffer, to writer: LiveCaptureWriter) -> Result<CaptureSubject, LinkRefusal> {
    guard let link = group.sharedLink else { return .failure(.noSharedLink) }
    group.recording.beginLive(buffer, to: writer, of: link)
    return .success(CaptureSubject(route: settings.name, endpoint: settings.endpoint))
  }

  func endCapture(_ writer: LiveCaptureWriter) { group.recording.endLive(writer, of: group.sharedLink) }

  /// The answer says more about what was done: the recipe's name, the link's state.
  func carryOut(_ action: LinkAction, then done: @escaping (Result<String, LinkRefusal>) -> Void) {
    guard let link = group.sharedLink else {
      return done(.failure(.noSharedLink))
    }
    switch action {
    case .reset(let recipe):
      guard let recipe = recipe ?? settings.device.reset else {
        return done(
          .failure(LinkRefusal("the route has no 'device.reset'; name a recipe: \(ResetRecipe.expected)")))
      }
      link.reset(by: recipe) { result in done(result.map { recipe.name }) }
    case .release: link.release(then: done)
    case .reopen:
      link.reopen()
      done(.success(link.status.word))
    }
  }
}
