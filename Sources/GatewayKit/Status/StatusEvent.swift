// What happens in the gateway, as typed values made where it happens; never a byte of payload. StatusSink is the one
// observer face: the log, the board, and whatever door comes later (server-sent events, metrics) only listen to it.

import ByteStreams
import StreamBroker
import StreamTLS

public enum StatusEvent: Sendable {
  case started(routes: Int)
  /// A route is about to start, or goes on with other settings; `listeners` are its addresses as the configuration says
  /// them. What it tells of each follows.
  case routeConfigured(route: String, listeners: [String])
  /// `listener` is what the configuration says, `bound` the address it got.
  case listening(route: String, listener: String, bound: String)
  case listenerWaits(route: String, listener: String, OpenFailure, retry: Duration)
  /// It listens, and some can't find or reach it, for these reasons; with none, for nothing keeps them any more.
  case listenerLimited(route: String, listener: String, [OpenFailure])
  /// It accepts no more; `bound` is nil when it never did.
  case listenerClosed(route: String, listener: String, bound: String?)
  /// A socket that the process was started with is of no use, and was closed. `name` is its starter's.
  case inheritedUnused(socket: String, name: String?, InheritedSockets.Fault)
  case outOfDescriptors(route: String, listener: String, SystemError)
  /// So many clients wait for a place.
  case queue(route: String, waiting: Int)
  /// A client has a place.
  case sessionOpened(route: String, number: UInt64, Arrival.Label)
  /// Told once of everybody who was accepted: of those who were turned away, or left the queue, without `sessionOpened` before.
  /// `route` is empty for one who ended before he had said which of the routes that share a port he wants.
  case sessionEnded(route: String, number: UInt64, Arrival.Label, SessionReport)
  /// Somebody asked a port for something that is not there, and got an answer; no route's session.
  case requestRefused(Arrival.Label, any Error)
  /// The pen of a route with one writer has gone from one session to another; nil is nobody.
  case writerChanged(route: String, from: UInt64?, to: UInt64?)
  /// A session that goes on has lost `bytes` since this was last told of it, at most once a second; `total` since it began.
  case dropped(route: String, number: UInt64, bytes: UInt64, total: UInt64)
  /// `retry` is the pause before the next try, where there is one.
  case link(route: String, endpoint: String, LinkStatus, retry: Duration?)
  /// The link of one client, whose session has this number.
  case clientLink(route: String, number: UInt64, endpoint: String, LinkStatus)
  /// What the device behind an open link says of itself; told again when it says more.
  case deviceKnown(route: String, endpoint: String, DeviceFacts)
  /// Bytes that are in no session's account were thrown away: sent to the device and not gone out when the link closed, or
  /// said by it and heard by nobody.
  case linkDropped(route: String, endpoint: String, bytes: UInt64)
  /// A line that the endpoint said beside its bytes, as a program does on standard error; 20 a second at most.
  case endpointSaid(route: String, endpoint: String, EndpointRemark)
  /// A Bluetooth device was paired, and will be known from now on; its bond stands in the file at `path`.
  case bondKept(device: String, path: String)
  /// Bonds are neither used nor kept, and why.
  case bondTrouble(String)
  /// A device that called an `rfcomm://` listener wanted to be paired and was not, and why.
  case pairingRefused(device: String, reason: String)
  /// A mistake of ours, found in time: something of the route was given up, and the rest goes on. Sessions and links that it costs
  /// say so themselves.
  case internalFault(route: String, InternalFault)
  case routeStopped(String)
  /// What TLS shows was read anew, and connections from now on get it.
  case certificatesRenewed(files: [String])
  /// A file is of no use: what was shown before is shown still, and where there is nothing listeners wait. Told once for all of them.
  case certificatesRefused(TLSSettingsFault)
  /// It is odd, and shown all the same: it has expired.
  case certificateDoubtful(String)
  /// All that is wrong at present with files of certificates; empty when nothing is any more.
  case certificateFaults([String])
  /// The configuration is about to be read again; `reloaded` or `reloadFailed` follows.
  case reloading
  case reloaded(ReloadReport)
  case reloadFailed(problems: [String])
  /// Changes of the file are not seen; a signal or a command still reloads it.
  case watchFailed(SystemError, path: String)
  case controlFailed(OpenFailure, path: String)
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

/// What a reload changed.
public struct ReloadReport: Hashable, Sendable {
  /// A route that stays, under its name, and the keys that are different now: "clients.max", "endpoint.baud".
  public struct Change: Hashable, Sendable {
    public let route: String
    public let keys: [String]
  }

  public var added: [String] = []
  public var removed: [String] = []
  public var changed: [Change] = []
  /// Routes that nothing was done to.
  public var untouched = 0
  /// Keys beside the routes that are different now: "log.level", "control.socket".
  public var settings: [String] = []
  /// What is wrong with files of certificates that it names: what was shown before is shown still.
  public var certificateFaults: [String] = []
  /// What is logged from now on, if that is different.
  public var log: Config.Log?

  public var routes: Int { added.count + changed.count + untouched }
  public var isEmpty: Bool { added.isEmpty && removed.isEmpty && changed.isEmpty && settings.isEmpty }
}
