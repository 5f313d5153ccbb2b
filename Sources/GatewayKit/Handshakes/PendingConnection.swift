// A client whose handshake is not finished. Its input is untrusted: one deadline of the handshake server covers all
// steps, and it holds no more memory than the longest handshake needs. It ends once: handed over, or with an ending.

import ByteStreams
import CLinux
import Glibc
import StreamBroker
import StreamTLS
import StreamWebSocket

final class PendingConnection: PollHandler {
  let number: UInt64
  let listenSocket: SharedListenSocket
  unowned let handshakeServer: HandshakeServer  // owns this object
  private let began: UInt64
  var poller: Poller { handshakeServer.poller }

  private var descriptor: Descriptor?
  let raw: Int32
  private var isInPoller = false
  /// The socket's peer; `client` is the address after a PROXY header, once that is known.
  private let peer: SocketAddress?
  private(set) var client: SocketAddress?
  /// The connection is a proxy's health check. The check can include TLS and HTTP, so the handshake is carried out;
  /// then the connection is closed without a session.
  private(set) var isCheck = false
  /// The binding that the client asks for, once that is known.
  var binding: RouteBinding?
  // The authenticated identity, and the role that it allows at most.
  var identity = Identity.notAsked
  var role = Config.Listen.Role.writer

  // State of TLS.
  var handshake: TLSHandshake?
  var session: TLSSession?
  var facts: TLSFacts?
  var certificate: ClientCertificate?

  // State of HTTP.
  var parser = HTTPRequestParser()
  var acceptance: WebSocketAcceptance?
  var attempt: LogIns.Attempt?
  /// What it asks of the admin listener.
  var adminRequest: AdminRequest?

  // State of telnet.
  var prompt: TelnetPrompt?
  var telnet: TelnetAcceptance?
  var sniffTimer: Timers.Token?

  enum Stage {
    case proxyHeader(ProxyReader)
    /// The limit of unfinished handshakes of its address is reached.
    case waiting
    case handshake
    case request
    /// Its first bytes show whether it speaks telnet.
    case sniff
    /// It types its name and password.
    case prompt
    /// Its credentials are being checked.
    case logIn
    case over
  }
  var stage = Stage.waiting

  init(
    _ number: UInt64, _ descriptor: consuming Descriptor, _ peer: SocketAddress?, at listenSocket: SharedListenSocket,
    in handshakeServer: HandshakeServer
  ) {
    self.number = number
    raw = descriptor.raw
    self.descriptor = consume descriptor
    self.peer = peer
    self.listenSocket = listenSocket
    self.handshakeServer = handshakeServer
    began = handshakeServer.poller.timers.now
    if listenSocket.address.layer == .plain { binding = listenSocket.onlyBinding }
  }

  func begin() {
    guard listenSocket.address.isProxied else { return identify(peer) }
    guard let peer, handshakeServer.rules.proxies.contains(where: { $0.contains(peer) }) else {
      return end(Ending(.denied, HandshakeFault.notAProxy))
    }
    stage = .proxyHeader(ProxyReader())
    readHeader()
  }

  func ready(_ events: PollEvents) {
    switch stage {
    case .proxyHeader: readHeader()
    case .waiting: end(Ending(.clientLost, HandshakeFault.left(step)))  // a hang-up; nothing else is waited for
    case .handshake: shakeHands()
    case .request: readRequest()
    case .sniff: sniff()
    case .prompt: readPrompt()
    case .logIn: end(Ending(.clientLost, HandshakeFault.left(step)))
    case .over: break
    }
  }

  // MARK: - The PROXY header

  private func readHeader() {
    guard case .proxyHeader(var reader) = stage else { return }
    do {
      while reader.header == nil {
        guard try readOn(&reader) else {
          stage = .proxyHeader(reader)
          return wait(for: .readable)
        }
      }
      isCheck = reader.header?.isCheck ?? false
      identify(reader.header?.source ?? peer)
    } catch let fault as ProxyFault {
      end(Ending(.protocolError, fault))
    } catch let fault as HandshakeFault {
      end(Ending(.clientLeft, fault))
    } catch {
      end(Ending(.clientLost, error))
    }
  }

  /// Peeks first, then reads only the header: the bytes after it belong to TLS, HTTP or the session. False when nothing
  /// has arrived yet.
  private func readOn(_ reader: inout ProxyReader) throws -> Bool {
    try withUnsafeTemporaryAllocation(byteCount: 512, alignment: 1) { scratch in
      let count = try receive(into: scratch, Int32(MSG_PEEK))
      guard count >= 0 else { return false }
      guard count > 0 else { throw HandshakeFault.left(step) }
      let taken = try reader.take(UnsafeRawBufferPointer(rebasing: scratch[..<count]))
      _ = try receive(into: UnsafeMutableRawBufferPointer(rebasing: scratch[..<taken]))
      return true
    }
  }

  /// recv(2): 0 at end of input, -1 when nothing has arrived.
  func receive(into run: UnsafeMutableRawBufferPointer, _ flags: Int32 = 0) throws(SystemError) -> Int {
    while true {
      let count = recv(raw, run.baseAddress, run.count, flags)
      if count >= 0 { return count }
      switch errno {
      case EINTR: continue
      case EAGAIN: return -1
      default: throw SystemError("read")
      }
    }
  }

  // MARK: - The client's address

  private func identify(_ address: SocketAddress?) {
    client = address
    stage = .waiting
    guard let address else { return goOn() }
    guard handshakeServer.rates.admits(address, at: poller.timers.now) else {
      return end(.tooFast(label(binding)))
    }
    switch handshakeServer.admit(self, from: address) {
    case .proceed: goOn()
    case .wait: wait(for: [])
    case .refuse: end(Ending(.full, HandshakeFault.tooMany(of: address.host)))
    }
  }

  /// A handshake of the same address is over, or the limit was raised.
  func mayGoOn() { if case .waiting = stage { goOn() } }

  private func goOn() {
    switch listenSocket.address.layer {
    case .plain: beginPlain()
    case .tls: beginTLS()
    case .http: beginRequest()
    }
  }

  // MARK: - Hand-over and endings

  private func label(_ binding: RouteBinding?) -> AcceptedConnection.Label {
    let shown = binding ?? listenSocket.bindings.first
    let listener = shown.map { listenSocket.bound(as: $0) ?? $0.listen.target }
    var label = AcceptedConnection.Label(address: client ?? peer, listener: listener ?? "")
    label.identity = identity
    label.role = role
    label.tls = facts.map { "TLS \($0.version.rawValue)" }
    label.shown = facts?.asked.map { TLSAdmission($0, hasCertificate: certificate != nil, shown: facts?.shown) }
    return label
  }

  func handOver() {
    if isCheck { return end(Ending(.clientLeft), saying: []) }
    guard let binding, let descriptor = takeDescriptor() else { return }
    listenSocket.adjust(descriptor.raw, for: binding)
    let label = label(binding)
    leave()
    if let adminRequest {
      let accepted = AcceptedConnection(
        descriptor, kind: Self.kind, from: peer, label: label, tls: session.take(), acceptance: nil)
      return binding.arrived(accepted, adminRequest, asTerminal: acceptance)
    }
    binding.arrived(
      AcceptedConnection(
        descriptor, kind: Self.kind, from: peer, label: label, tls: session.take(), acceptance: acceptance,
        telnet: telnet))
  }

  private static let kind = DescriptorStream.Kind.tcp(wasDialled: false)

  func timeIsOver(after limit: Duration) {
    // Someone who types needs longer than a machine.
    if prompt != nil, limit < HandshakeServer.promptTimeout { return }
    let fault = HandshakeFault.tooSlow(step, limit)
    switch stage {
    case .waiting: end(Ending(.full, fault))
    case .prompt: end(Ending(.loginFailed, fault), saying: Self.line("the log-in took too long"))
    case .logIn where prompt != nil: end(Ending(.loginFailed, fault), saying: Self.line("the log-in took too long"))
    case .logIn: end(Ending(.loginFailed, fault), saying: Self.tooLate)  // our check is slow, not the client
    default: end(Ending(.protocolError, fault))
    }
  }

  /// Refuses the client: there are too many handshakes in all, or too few descriptors. It is from the address with most
  /// connections, or the newest client.
  func refuse(_ fault: any CountedRefusal) { end(Ending(.full, fault)) }

  /// Its handshake took longer than its share of the time while others of its address wait.
  func makeRoom() { end(Ending(.full, HandshakeFault.crowded(step))) }

  /// Ends the connection. With an answer, even an empty one, it is closed in order; with nil it is closed at once.
  func end(_ ending: Ending, saying answer: [UInt8]? = nil) {
    if case .over = stage { return }
    if binding == nil { binding = listenSocket.onlyBinding }
    if !isCheck { handshakeServer.counts.noteFailure(ending.word) }
    close(saying: answer) { label, spent in
      if let binding, binding.hasSessions { return binding.ended(label, ending, nanoseconds: spent) }
      let report = SessionReport(ending: ending, nanoseconds: spent)
      handshakeServer.status.publish(.sessionEnded(route: "", number: nextSessionNumber(), label, report))
    }
  }

  /// Refuses a request for something that no route has. This is reported as a refused request, not as a session.
  func endWithoutSession(_ fault: HandshakeFault, saying answer: [UInt8]) {
    if case .over = stage { return }
    close(saying: answer) { label, _ in handshakeServer.status.publish(.requestRefused(label, fault)) }
  }

  /// Closes the connection and calls `report` to report that, unless it is a proxy's health check.
  private func close(saying answer: [UInt8]?, report: (AcceptedConnection.Label, _ spent: UInt64) -> Void) {
    let label = label(binding)
    let spent = poller.timers.now &- began
    handshake = nil
    poller.timers.cancel(sniffTimer)
    if let attempt { handshakeServer.logIns.cancel(attempt) }
    attempt = nil
    if let descriptor = takeDescriptor(), let answer { part(descriptor, answer) }
    leave()
    if !isCheck { report(label, spent) }
  }

  private func part(_ descriptor: consuming Descriptor, _ answer: [UInt8]) {
    let stream: any ByteStream
    if let session = session.take() {
      stream = TLSStream(session, over: descriptor, kind: Self.kind, on: poller)
    } else {
      stream = DescriptorStream(descriptor, kind: Self.kind, on: poller)
    }
    handshakeServer.part(from: PrefacedStream.send(answer, through: stream))
  }

  private func leave() {
    stage = .over
    handshakeServer.left(self, from: client)
  }

  /// What the gateway waits for now, for messages.
  var step: String {
    switch stage {
    case .proxyHeader: "PROXY header"
    case .waiting, .over: "handshake slot"
    case .handshake: "TLS handshake"
    case .request: "HTTP request"
    case .sniff: "first byte"
    case .prompt: "log-in"
    case .logIn: "log-in"
    }
  }

  // MARK: - The descriptor

  func wait(for interest: Readiness) {
    if isInPoller { return poller.change(raw, to: interest) }
    do throws(SystemError) {
      try poller.add(raw, handler: self, for: interest)
      isInPoller = true
    } catch {
      end(Ending(.internal, error))
    }
  }

  private func takeDescriptor() -> Descriptor? {
    if isInPoller { poller.remove(raw) }
    isInPoller = false
    return descriptor.take()
  }
}
