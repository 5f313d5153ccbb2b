// A listener of a route: its address, bound now or as soon as it can be, and how an accepted descriptor becomes an
// arrival. A kind of listener is a folder beside this file and one line in Listeners.swift.

import ByteStreams

protocol Listener: AnyObject {
  /// Binds and accepts, and keeps trying while the address can't be bound.
  func start()
  /// Accepts no more. What has arrived is not touched.
  func stop()
}

/// What a listener needs of its route.
struct ListenerContext {
  let route: String
  let poller: Poller
  let status: StatusSink
  let sendsNotices: Bool
  /// Whether clients share a link, and so may hold up each other.
  let isShared: Bool
  /// Whether the kernel looks after idle clients.
  let keepsAlive: Bool
  let arrived: (consuming Arrival) -> Void
}
