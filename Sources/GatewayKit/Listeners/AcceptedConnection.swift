// A client between accept and session. A listener hands it over, once, to the lane of its link.

import ByteStreams
import Glibc
import StreamBrokerBluetooth
import StreamTLS
import StreamWebSocket
import Synchronization

package struct AcceptedConnection: ~Copyable, Sendable {
  /// How log and status show the client.
  package struct Label: Sendable {
    /// Nil where clients have no address, as at unix and pty listeners.
    package let address: SocketAddress?
    /// The listener's URL.
    package let listener: String
    // The lower of the listener's and the user's role.
    package internal(set) var role = Config.Listen.Role.writer
    /// Nil for a client of which nothing else is known, as nearly all are.
    private var details: Details?
    /// Whether the client receives WebSocket messages: then no notice lines are mixed in.
    var isWebSocket = false
    /// Whether it is a terminal of the admin listener's page: then its oldest output is dropped when it is slow.
    var isTerminal = false
    /// Whether its route is `link: per-client`; known once it has a slot.
    var hasOwnLink = false
    /// Whether a web page could have connected: TCP, plain or in TLS, without an HTTP request before the bytes.
    var isRawTCP = false
    /// The route's listener that accepted the client; the same number across reloads.
    var listenerNumber = 0

    init(
      address: SocketAddress?, process: PeerProcess? = nil, device: String? = nil, listener: String,
      role: Config.Listen.Role = .writer
    ) {
      self.address = address
      self.listener = listener
      self.role = role
      if process != nil || device != nil { details = Details(Details.Facts(process: process, device: device)) }
    }

    /// The process that connected to a unix socket.
    package var process: PeerProcess? { details?.facts.process }
    /// The address of a device that connected over Bluetooth.
    package var device: String? { details?.facts.device }
    /// The user, if the client logged in.
    package internal(set) var identity: Identity {
      get { details?.facts.identity ?? .notAsked }
      set { change { $0.identity = newValue } }
    }
    /// The TLS version: "TLS 1.3".
    package internal(set) var tls: String? {
      get { details?.facts.tls }
      set { change { $0.tls = newValue } }
    }
    /// The certificate that TLS asked for and got; nil without TLS.
    var shown: TLSAdmission? {
      get { details?.facts.shown }
      set { change { $0.shown = newValue } }
    }

    private mutating func change(_ change: (inout Details.Facts) -> Void) {
      var facts = details?.facts ?? Details.Facts()
      change(&facts)
      details = Details(facts)
    }

    /// An object, because a label is copied for each event and kept for each session.
    private final class Details: Sendable {
      struct Facts {
        var process: PeerProcess?
        var device: String?
        var identity = Identity.notAsked
        var tls: String?
        var shown: TLSAdmission?
      }
      let facts: Facts
      init(_ facts: Facts) { self.facts = facts }
    }

    /// Whether it loses bytes before another client waits for it, or ends because of it: a terminal, which somebody may
    /// have left open, unless its link is its own.
    var yields: Bool { isTerminal && !hasOwnLink }

    /// The client for logs: "127.0.0.1:51234", "uid 1000, pid 4711", "00:0A:3A:22:68:73".
    package var client: String? { address?.description ?? process?.description ?? device }
  }

  var label: Label
  let descriptor: Descriptor
  let kind: DescriptorStream.Kind
  /// The socket's other side; its client may be further away, behind a proxy. Nil without an address.
  let peer: SocketAddress?
  /// For a client of a pty.
  private let seat: PtyClientExit?
  private var isRFCOMM = false
  /// The session after a TLS handshake.
  private let tls: TLSSession?
  /// The answer still due to a client that asked for a WebSocket.
  private var acceptance: WebSocketAcceptance?
  /// For a client that speaks telnet.
  private let telnet: TelnetAcceptance?

  /// Whether a link of this process may have connected.
  var mayBeOwn: Bool { if case .tcp = kind { true } else { label.process.map { $0.process == getpid() } ?? false } }

  /// A client without a proxy.
  init(_ descriptor: consuming Descriptor, kind: DescriptorStream.Kind, label: Label, seat: PtyClientExit? = nil) {
    self.init(descriptor, kind: kind, from: label.address, label: label, seat: seat, tls: nil, acceptance: nil)
  }

  /// A client that connected over Bluetooth.
  init(rfcomm descriptor: consuming Descriptor, label: Label) {
    self.init(descriptor, kind: .socket, label: label)
    isRFCOMM = true
  }

  init(
    _ descriptor: consuming Descriptor, kind: DescriptorStream.Kind, from peer: SocketAddress?, label: Label,
    seat: PtyClientExit? = nil, tls: consuming TLSSession?, acceptance: WebSocketAcceptance?,
    telnet: TelnetAcceptance? = nil
  ) {
    self.label = label
    self.label.isWebSocket = acceptance != nil
    if case .tcp = kind { self.label.isRawTCP = acceptance == nil }
    self.acceptance = acceptance
    self.telnet = telnet
    self.tls = tls
    self.kind = kind
    self.peer = peer
    self.descriptor = descriptor
    self.seat = seat
  }

  /// The client of the admin listener joins a route by a WebSocket.
  mutating func becomeTerminal(_ acceptance: WebSocketAcceptance, role: Config.Listen.Role) {
    self.acceptance = acceptance
    label.isWebSocket = true
    label.isRawTCP = false
    label.isTerminal = true
    label.role = role
  }

  /// The client's stream, on the lane where it stays; a WebSocket's upgrade response is sent. Bytes that arrived after
  /// the handshake may already be inside, and no event reports those: take a turn at once.
  consuming func stream(on poller: Poller) -> any ByteStream {
    let (acceptance, telnet) = (acceptance, telnet)
    let stream = bareStream(on: poller)
    if let telnet { return telnet.stream(over: stream, on: poller) }
    guard let acceptance else { return stream }
    return WebSocketStream(
      over: PrefacedStream.send(acceptance.response, through: stream), as: .server, acceptance.settings,
      early: acceptance.early, on: poller)
  }

  /// The stream of a client that its route refuses, and the last text to send on it: `notice`, or the same as an HTTP
  /// response.
  consuming func refusedStream(
    on poller: Poller, _ word: Ending.Word, notice: [UInt8]
  ) -> (stream: any ByteStream, text: [UInt8]) {
    seat?.refuse()
    let text = acceptance?.refusal(word, String(decoding: notice, as: UTF8.self)) ?? notice
    return (bareStream(on: poller), text)
  }

  private consuming func bareStream(on poller: Poller) -> any ByteStream {
    if isRFCOMM { return RFCOMMClient(descriptor).stream(on: poller) }
    if let seat { return PtyClientStream(descriptor, offered: seat.offered, on: poller) { seat.report($0) } }
    guard let session = tls else { return DescriptorStream(descriptor, kind: kind, on: poller) }
    return TLSStream(session, over: descriptor, kind: kind, on: poller)
  }
}

/// Carries an accepted connection through a closure to another lane. The first call of `take` owns it.
final class AcceptedConnectionParcel: Sendable {
  private let content: Mutex<AcceptedConnection?>
  init(_ accepted: consuming AcceptedConnection) { content = Mutex(accepted) }
  func take() -> AcceptedConnection? { content.withLock { $0.take() } }
}
