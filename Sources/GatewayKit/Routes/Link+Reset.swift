// `baudway reset`: carries out a reset recipe at the open port of a shared link. It opens nothing.

import ByteStreams
import StreamBroker

/// Why `baudway reset` did nothing, or not all: what happened, and what to do.
struct ResetRefusal: Error, Hashable, Sendable {
  let message: String
  init(_ message: String) { self.message = message }

  /// The port refused a step.
  init(_ error: SystemError) {
    self.init(error.isUnsupported ? "the port has no DTR and RTS (\(error))" : "the port refused: \(error)")
  }

  static let noLine = ResetRefusal("this endpoint has no DTR and RTS; only serial ports have them")
  static let elsewhere = ResetRefusal("the port is on another machine; reset it at the gateway there")
}

extension Link {
  func reset(by recipe: ResetRecipe, then done: @escaping (Result<Void, ResetRefusal>) -> Void) {
    switch status {
    case .open: hub.reset(by: recipe, then: done)
    case .waiting(let why): done(.failure(ResetRefusal("the link is not open: \(why)")))
    case .opening, .draining: done(.failure(ResetRefusal("the link is \(status.word); try again once it is open")))
    case .closed:
      done(.failure(ResetRefusal("the link is closed; connect a client, or set 'device.open' to always")))
    }
  }

  func lineWasReset(by recipe: ResetRecipe, for session: UInt64?, _ result: Result<Void, SystemError>) {
    delegate.link(self, wasResetBy: recipe, for: session, result)
  }
}

extension Route {
  /// Carries out `recipe`, or the route's own. The answer has its name.
  func reset(
    by recipe: ResetRecipe?, then done: @escaping (Result<String, ResetRefusal>) -> Void
  ) {
    guard let link = group.sharedLink else {
      return done(
        .failure(ResetRefusal("each client of this route has a link of its own; only a shared link has a port")))
    }
    guard let recipe = recipe ?? settings.device.reset else {
      return done(
        .failure(ResetRefusal("the route has no 'device.reset'; name a recipe: \(ResetRecipe.expected)")))
    }
    link.reset(by: recipe) { result in done(result.map { recipe.name }) }
  }
}
