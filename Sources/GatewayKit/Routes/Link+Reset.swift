// `baudway reset`: carries out a reset recipe at the open port of a shared link. It opens nothing.

import ByteStreams
import StreamBroker

/// Why a link did not do what an administrator asked, or not all: what happened, and what to do.
struct LinkRefusal: Error, Hashable, Sendable {
  let message: String
  init(_ message: String) { self.message = message }

  /// The port refused a step.
  init(_ error: SystemError) {
    self.init(error.isUnsupported ? "the port has no DTR and RTS (\(error))" : "the port refused: \(error)")
  }

  static let noLine = LinkRefusal("this endpoint has no DTR and RTS; only serial ports have them")
  static let elsewhere = LinkRefusal("the port is on another machine; reset it at the gateway there")
}

extension Link {
  func reset(by recipe: ResetRecipe, then done: @escaping (Result<Void, LinkRefusal>) -> Void) {
    if let portRefusal { return done(.failure(portRefusal)) }
    hub.reset(by: recipe, then: done)
  }

  /// Changes settings and outputs of the open port. A setting holds until the link closes or a reload sets another; a client
  /// that sets another leaves this one. Calls `done` with the settings in force.
  func change(by ask: LineAsk, then done: @escaping (Result<LineSettings, LinkRefusal>) -> Void) {
    if let portRefusal { return done(.failure(portRefusal)) }
    hub.change(by: ask, then: done)
  }

  /// Why nothing can be done at the port now; nil while the link is open.
  private var portRefusal: LinkRefusal? {
    switch status {
    case .open: nil
    case .waiting(let why): LinkRefusal("the link is not open: \(why)")
    case .opening, .draining: LinkRefusal("the link is \(status.word); try again once it is open")
    case .closed: LinkRefusal("the link is closed; connect a client, or set 'device.open' to always")
    }
  }

  func lineWasReset(by recipe: ResetRecipe, for session: UInt64?, _ result: Result<Void, SystemError>) {
    delegate.link(self, wasResetBy: recipe, for: session, result)
  }
}
