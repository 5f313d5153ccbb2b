// Events in the gateway, as typed values made where they happen; never a byte of payload. They go through StatusSink to
// all observers: the log, the board, systemd, and later ones (server-sent events, metrics).

import ByteStreams
import StreamBroker
import StreamTLS

package enum StatusEvent: Sendable {
  case started(routes: Int)
  /// A route starts, or gets other settings; `listeners` are its addresses in the configuration. Events about each
  /// follow.
  case routeConfigured(route: String, listeners: [String])
  /// `listener` is the address in the configuration, `bound` the actual one.
  case listening(route: String, listener: String, bound: String)
  case listenerWaits(route: String, listener: String, OpenFailure, retry: Duration)
  /// The listener works, but some clients can't find or reach it for these reasons. Empty when nothing limits it any
  /// more.
  case listenerLimited(route: String, listener: String, [OpenFailure])
  /// The listener accepts no more; `bound` is nil when it never did.
  case listenerClosed(route: String, listener: String, bound: String?)
  /// A socket that the process inherited could not be used and was closed. `name` is its name from the starter.
  case inheritedUnused(socket: String, name: String?, InheritedSockets.Fault)
  case outOfDescriptors(route: String, listener: String, SystemError)
  /// The number of clients that wait for a slot has changed.
  case queue(route: String, waiting: Int)
  /// A client has got a slot.
  case sessionOpened(route: String, number: UInt64, AcceptedConnection.Label)
  /// Reported once for each accepted client. A client that was refused, or left the queue, has no `sessionOpened`
  /// before. `route` is empty for a client that ended before it named one of the routes that share a port.
  case sessionEnded(route: String, number: UInt64, AcceptedConnection.Label, SessionReport)
  /// A request asked a port for something that is not there, and got an answer; it belongs to no route.
  case requestRefused(AcceptedConnection.Label, any Error)
  /// A WebSocket client offers sub-protocols, and none is ours.
  case subprotocolUnknown(route: String, AcceptedConnection.Label, String)
  /// The writer role of a route with one writer has moved from one session to another; nil = no session.
  case writerChanged(route: String, from: UInt64?, to: UInt64?)
  /// A session has asked for a change of the line: "115200 8N1", "dtr on". It was carried out, or refused for this
  /// reason.
  case lineAsked(route: String, number: UInt64, request: String, refusal: String?)
  /// A running session has lost `bytes` since the last report, and `total` since it began. At most once a second.
  case dropped(route: String, number: UInt64, bytes: UInt64, total: UInt64)
  /// A reset recipe was carried out: a session's sequence was recognised, or by `baudway reset` (nil). The error is that
  /// of the step that failed.
  case lineReset(route: String, number: UInt64?, recipe: String, SystemError?)
  /// `retry` is the pause before the next try, if there is one.
  case link(route: String, endpoint: String, LinkStatus, retry: Duration?)
  /// A per-client link; `number` is its session's.
  case clientLink(route: String, number: UInt64, endpoint: String, LinkStatus)
  /// What the device of an open link reports about itself; sent again when it reports more.
  case deviceKnown(route: String, endpoint: String, DeviceFacts)
  /// Other programs have the serial port open, too: they may read bytes that are for us.
  case portShared(route: String, endpoint: String, with: String)
  /// Bytes were dropped that no session counts: the port had not sent them when the link closed or was flushed.
  case linkDropped(route: String, endpoint: String, bytes: UInt64)
  /// A line from the endpoint outside its byte stream, such as a program's standard error; 20 a second at most.
  case endpointReason(route: String, endpoint: String, EndpointRemark)
  /// A recording has begun a file.
  case captureBegun(route: String, path: String)
  /// A recording has stopped: the file could not be made or written. It begins again at the next reload, and with
  /// `rotate-every` at the next time of that.
  case captureStopped(route: String, path: String, SystemError)
  /// Something is missing in a recording: the disk was too slow, or the recording had stopped by an error. At most once
  /// in 10 s.
  case captureDrops(route: String, path: String, CaptureLoss, SystemError?)
  /// A Bluetooth device was paired; its bond is in the file at `path`.
  case bondKept(device: String, path: String)
  /// Bonds are neither used nor kept, for this reason.
  case bondTrouble(String)
  /// A device that connected to an `rfcomm://` listener asked to pair and was refused, for this reason.
  case pairingRefused(device: String, reason: String)
  /// A mistake of ours was detected: a part of the route was given up, the rest goes on. Sessions and links that end
  /// because of it have their own events.
  case internalFault(route: String, InternalFault)
  case routeStopped(String)
  /// Certificates were read again; new connections use them.
  case certificatesRenewed(files: [String])
  /// A certificate's file can't be used. Listeners keep the old certificate; those without one wait. Reported once for
  /// all of them.
  case certificatesRefused(TLSSettingsFault)
  /// A certificate is about to expire, has expired or is not valid yet; it is used all the same.
  case certificateDoubtful(String)
  /// All current faults of certificate files; empty when there are none any more.
  case certificateFaults([String])
  /// The configuration is about to be read again; `reloaded` or `reloadFailed` follows.
  case reloading
  case reloaded(ReloadReport)
  case reloadFailed(problems: [String])
  /// A setting of the file, which was just read, may be a mistake; it is used all the same.
  case configurationDoubtful(ConfigProblem)
  /// The kernel does not report changes of the file, so it is looked at each second.
  case watchFailed(SystemError, path: String)
  /// A limit of the kernel is reached. Ports, certificates and the configuration that it does not watch are looked at
  /// each second.
  case watchesRefused(InotifyRefusal)
  /// Everything is watched again.
  case watchesRestored
  case controlFailed(OpenFailure, path: String)
  /// A client of the admin listener has asked for a change. It was made, or not for this reason.
  case administered(AdminAction, user: String?, client: String?, error: String?)
  case stopping
  case stopped
}

/// The final report of a session.
package struct SessionReport: Sendable {
  package let ending: Ending
  /// Bytes of the client taken by the endpoint, and of the endpoint taken by the client.
  package let up: UInt64
  package let down: UInt64
  /// Bytes of either direction that were dropped.
  package let dropped: UInt64
  package let nanoseconds: UInt64
  /// False for a refused client, which had no `sessionOpened`.
  package let wasOpened: Bool

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
package struct ReloadReport: Hashable, Sendable {
  /// A route that exists before and after the reload, and its changed keys: "clients.max", "endpoint.baud".
  package struct Change: Hashable, Sendable {
    package let route: String
    package let keys: [String]
  }

  package var added: [String] = []
  package var removed: [String] = []
  package var changed: [Change] = []
  /// Routes that did not change.
  package var untouched = 0
  /// Changed keys outside the routes: "log.level", "control.socket".
  package var settings: [String] = []
  /// Faults of its certificate files; the old certificates stay in use.
  package var certificateFaults: [String] = []
  /// The new settings of the log, if they changed.
  package var log: Config.Log?
  /// While this reload was being carried out, the configuration was read once more and had mistakes. That is reported by
  /// an event of its own, before this one.
  package var newerWasRefused = false

  package var routes: Int { added.count + changed.count + untouched }
  package var isEmpty: Bool { added.isEmpty && removed.isEmpty && changed.isEmpty && settings.isEmpty }
}
