// A listener of a route: its address, bound now or as soon as it can be, and how an accepted descriptor becomes an
// arrival. A kind of listener is a folder beside this file and one line in Listeners.swift.

import ByteStreams

protocol Listener: AnyObject {
  /// Binds and accepts, and keeps trying while the address can't be bound.
  func start()
  /// Hands over whoever has connected already and accepts no more. `done` is called once the address is free again, at once
  /// or when files are removed.
  func stop(then done: @escaping () -> Void)
  /// The context has other values now, and the address stays. For what was set on a socket; the rest is read when it is used.
  func contextChanged()
}

extension Listener {
  func contextChanged() {}
}

/// What a listener needs of its route. Reload changes it under a listener that stays bound.
final class ListenerContext {
  let route: String
  let poller: Poller
  let status: StatusSink
  /// Whether clients share a link, and so may hold up each other.
  let isShared: Bool
  /// Of the route's listeners, this one's number; never used twice.
  let door: Int
  var sendsNotices: Bool
  /// Whether the kernel looks after idle clients.
  var keepsAlive: Bool
  var role: Config.Listen.Role
  /// Sockets that are bound already.
  let inherited: InheritedSockets
  private let admit: (consuming Arrival) -> Void

  init(
    route: String, poller: Poller, status: StatusSink, isShared: Bool, door: Int, sendsNotices: Bool, keepsAlive: Bool,
    role: Config.Listen.Role, inherited: InheritedSockets, admit: @escaping (consuming Arrival) -> Void
  ) {
    self.route = route
    self.poller = poller
    self.status = status
    self.isShared = isShared
    self.door = door
    self.sendsNotices = sendsNotices
    self.keepsAlive = keepsAlive
    self.role = role
    self.inherited = inherited
    self.admit = admit
  }

  /// A client is here. Whether he gets in is the route's matter.
  func arrived(_ arrival: consuming Arrival) {
    arrival.label.role = role
    arrival.label.door = door
    admit(arrival)
  }
}
