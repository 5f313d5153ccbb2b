// A client between accept and session: what a listener hands over, once, to the lane of the link.

import ByteStreams
import StreamBrokerBluetooth
import StreamTLS
import StreamWebSocket
import Synchronization

public struct Arrival: ~Copyable, Sendable {
  /// What log and status say of him.
  public struct Label: Sendable {
    /// Nil where clients have none, as on the doors of this machine.
    public let address: SocketAddress?
    /// Who connected to a unix socket.
    public var process: PeerProcess?
    /// The address of who connected over Bluetooth.
    public var device: String?
    /// The listener's URL.
    public let listener: String
    /// The most he may do, as the listener's URL says, and what is said of the user.
    public internal(set) var role = Config.Listen.Role.writer
    public internal(set) var identity = Identity.notAsked
    /// What guards his connection: "TLS 1.3".
    public internal(set) var tls: String?
    /// What he was asked for there; nil without TLS.
    var shown: ShownToTLS?
    /// Whether what he reads is a WebSocket's messages, where lines for people have no place.
    var isWebSocket = false
    /// Whether its route is `link: per-client`; known once it has a place.
    var hasOwnLink = false
    /// Whether a web page could have connected: by TCP, plain or inside TLS, with nothing of HTTP in front of the bytes.
    var isRawTCP = false
    /// Which of the route's listeners let him in; the same across reloads.
    var door = 0

    /// What there is to call him by: "127.0.0.1:51234", "uid 1000, pid 4711", "00:0A:3A:22:68:73".
    public var client: String? { address?.description ?? process?.description ?? device }
  }

  var label: Label
  let descriptor: Descriptor
  let kind: DescriptorStream.Kind
  /// The place that a client of a pty has.
  private let seat: PtySeat?
  private var isRFCOMM = false
  /// What the handshake left.
  private let tls: TLSSession?
  /// What is to be answered to one who asked for a WebSocket.
  private let greeting: WebSocketGreeting?

  init(_ descriptor: consuming Descriptor, kind: DescriptorStream.Kind, label: Label, seat: PtySeat? = nil) {
    self.init(descriptor, kind: kind, label: label, seat: seat, tls: nil, greeting: nil)
  }

  /// One who came over Bluetooth.
  init(rfcomm descriptor: consuming Descriptor, label: Label) {
    self.init(descriptor, kind: .socket, label: label)
    isRFCOMM = true
  }

  init(
    _ descriptor: consuming Descriptor, kind: DescriptorStream.Kind, label: Label, seat: PtySeat? = nil,
    tls: consuming TLSSession?, greeting: WebSocketGreeting?
  ) {
    self.label = label
    self.label.isWebSocket = greeting != nil
    if case .tcp = kind { self.label.isRawTCP = greeting == nil }
    self.greeting = greeting
    self.tls = tls
    self.kind = kind
    self.descriptor = descriptor
    self.seat = seat
  }

  /// The client's stream, on the lane it will stay on; one who asked for a WebSocket is told that he has it. What came behind
  /// his greeting may be inside, where no event tells of it: take a turn at once.
  consuming func stream(on poller: Poller) -> any ByteStream {
    let greeting = greeting
    let stream = bareStream(on: poller)
    guard let greeting else { return stream }
    return WebSocketStream(
      over: PrefacedStream.send(greeting.response, through: stream), as: .server, greeting.settings,
      early: greeting.early, on: poller)
  }

  /// The stream of one who does not get in. What he is told, `notice` says in a line, and it is his last.
  consuming func refusedStream(
    on poller: Poller, _ word: Ending.Word, notice: [UInt8]
  ) -> (stream: any ByteStream, text: [UInt8]) {
    seat?.refuse()
    let text = greeting?.refusal(word, String(decoding: notice, as: UTF8.self)) ?? notice
    return (bareStream(on: poller), text)
  }

  private consuming func bareStream(on poller: Poller) -> any ByteStream {
    if isRFCOMM { return RFCOMMClient(descriptor).stream(on: poller) }
    if let seat { return PtyClientStream(descriptor, on: poller) { seat.tell($0) } }
    guard let session = tls else { return DescriptorStream(descriptor, kind: kind, on: poller) }
    return TLSStream(session, over: descriptor, kind: kind, on: poller)
  }
}

/// Carries an arrival through a closure on its way to a lane. Whoever takes first owns it.
final class ArrivalParcel: Sendable {
  private let content: Mutex<Arrival?>
  init(_ arrival: consuming Arrival) { content = Mutex(arrival) }
  func take() -> Arrival? { content.withLock { $0.take() } }
}
