// What happens in the gateway, as typed values made where it happens. One observer face for all who listen: the log
// today, metrics and event streams by adding a listener. Never a byte of payload.

import ByteStreams
import StreamBroker

public enum StatusEvent: Sendable {
  case started(routes: Int)
  /// `listener` is what the configuration says, `bound` the address it got.
  case listening(route: String, listener: String, bound: String)
  case listenerWaits(route: String, listener: String, SystemError, retry: Duration)
  case outOfDescriptors(route: String, listener: String, SystemError)
  case sessionOpened(route: String, number: UInt64, Arrival.Label)
  case sessionEnded(route: String, number: UInt64, Arrival.Label, SessionReport)
  /// `retry` is the pause before the next try, where there is one.
  case link(route: String, endpoint: String, LinkStatus, retry: Duration?)
  case routeStopped(String)
  /// The configuration is about to be read again; `reloaded` or `reloadFailed` follows.
  case reloading
  case reloaded(added: Int, removed: Int, changed: Int, routes: Int)
  case reloadFailed(problems: [String])
  /// Keys of the configuration that were changed, but are read at the start only.
  case takesRestart(keys: [String])
  case controlFailed(SystemError, path: String)
  case stopping
  case stopped
}

/// The account of a session.
public struct SessionReport: Sendable {
  public let ending: Ending
  /// Bytes of the client's that the endpoint took, and of the endpoint's that the client took.
  public let up: UInt64
  public let down: UInt64
  /// Bytes of either that were given up.
  public let dropped: UInt64
  public let nanoseconds: UInt64
  /// False for a client who was turned away: no `sessionOpened` went before.
  public let wasOpened: Bool

  init(
    ending: Ending, up: UInt64 = 0, down: UInt64 = 0, dropped: UInt64 = 0, nanoseconds: UInt64 = 0,
    wasOpened: Bool = false
  ) {
    self.ending = ending
    self.up = up
    self.down = down
    self.dropped = dropped
    self.nanoseconds = nanoseconds
    self.wasOpened = wasOpened
  }
}

/// Where events go, from any lane. `observe` must be quick and must not block.
public struct StatusSink: Sendable {
  let observers: [@Sendable (StatusEvent) -> Void]

  public init(_ observers: [@Sendable (StatusEvent) -> Void]) { self.observers = observers }

  public func tell(_ event: @autoclosure () -> StatusEvent) {
    guard !observers.isEmpty else { return }
    let event = event()
    for observe in observers { observe(event) }
  }
}
