// A client between accept and session: what a listener hands over, once, to the lane of the link.

import ByteStreams
import Synchronization

public struct Arrival: ~Copyable, Sendable {
  /// What log and status say of him.
  public struct Label: Sendable {
    /// Nil where clients have none, as on the doors of this machine.
    public let address: SocketAddress?
    /// Who connected to a unix socket.
    public var process: PeerProcess?
    /// The listener's URL.
    public let listener: String
    /// The most he may do, as the listener's URL says, and what is said of the user.
    public internal(set) var role = Config.Listen.Role.writer
    public internal(set) var identity = Identity.notAsked
    /// Which of the route's listeners let him in; the same across reloads.
    var door = 0

    /// What there is to call him by: "127.0.0.1:51234", "uid 1000, pid 4711".
    public var client: String? { address?.description ?? process?.description }
  }

  var label: Label
  let descriptor: Descriptor
  let kind: DescriptorStream.Kind
  /// The place that a client of a pty has.
  private let seat: PtySeat?

  init(_ descriptor: consuming Descriptor, kind: DescriptorStream.Kind, label: Label, seat: PtySeat? = nil) {
    self.label = label
    self.kind = kind
    self.descriptor = descriptor
    self.seat = seat
  }

  /// The client's stream, on the lane it will stay on.
  consuming func stream(on poller: Poller) -> any ByteStream {
    guard let seat else { return DescriptorStream(descriptor, kind: kind, on: poller) }
    return PtyClientStream(descriptor, on: poller) { seat.tell($0) }
  }

  /// The stream of one who does not get in.
  consuming func refusedStream(on poller: Poller) -> any ByteStream {
    seat?.refuse()
    return stream(on: poller)
  }
}

/// Carries an arrival through a closure on its way to a lane. Whoever takes first owns it.
final class ArrivalParcel: Sendable {
  private let content: Mutex<Arrival?>
  init(_ arrival: consuming Arrival) { content = Mutex(arrival) }
  func take() -> Arrival? { content.withLock { $0.take() } }
}
