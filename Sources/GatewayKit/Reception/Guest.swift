// A client who is being greeted. Whatever he says is hostile until he is through: he has one deadline for all of it, the
// reception's, owns no more than the longest greeting, and ends once: handed over, or with an ending of his own.

import ByteStreams
import CLinux
import Glibc
import StreamBroker
import StreamTLS
import StreamWebSocket

/// Why somebody did not get through a greeting.
enum GreetingFault: CountedRefusal, Equatable, CustomStringConvertible {
  case tooSlow(String, Duration)
  case left(String)
  case notAProxy
  case tooMany(of: String)
  case tooFast(from: String)
  case crowded(String)
  case tooManyInAll
  case notLetIn(isUser: Bool)
  case noCertificate
  case unnamed
  case noSuchPath(String)
  case noRequest(HTTPFault)
  case refused(HTTPRefusal)

  var description: String {
    switch self {
    case .tooSlow(let step, let limit): "no \(step) within \(limit.components.seconds) s of connecting"
    case .left(let step): "gone before the \(step) was over"
    case .notAProxy: "not among the networks under 'proxies'"
    case .tooMany(let address): "too many clients of \(address) are being greeted"
    case .crowded(let step): "no \(step) so far, and others of its address wait"
    case .tooManyInAll: "too many handshakes are unfinished ('limits.handshakes')"
    case .tooFast(let address): "too many clients of \(address) in a second"
    case .notLetIn(let isUser): isUser ? "this user is not let in here" : "no user has this certificate"
    case .noCertificate: "no certificate that says who it is"
    case .unnamed: "nothing that says who it is"
    case .noSuchPath(let path): "no route has the path \(Suggestion.quote(path))"
    case .noRequest(let fault): HTTPRefusal(fault).text
    case .refused(let refusal): "answered \(refusal.status.rawValue): \(refusal.text)"
    }
  }
}

extension GreetingFault {
  var counter: String? {
    switch self {
    case .noSuchPath: "no-such-path"
    case .refused(let refusal) where refusal.cause == .foreignOrigin: "web-origin"
    case .refused(let refusal) where refusal.cause == .foreignHost: "web-host"
    default: nil
    }
  }
}

extension Ending {
  /// For one whose address sends more clients in a second than it may.
  static func tooFast(_ label: Arrival.Label) -> Ending {
    Ending(.denied, GreetingFault.tooFast(from: label.address?.host ?? "one address"))
  }
}

final class Guest: PollHandler {
  let number: UInt64
  let entrance: Entrance
  unowned let reception: Reception  // which keeps him
  private let began = monotonicNanoseconds()
  private var poller: Poller { reception.poller }

  private var descriptor: Descriptor?
  let raw: Int32
  private var isInPoller = false
  /// Who is connected; and who is said to be, once that is known.
  private let peer: SocketAddress?
  private(set) var client: SocketAddress?
  /// A proxy that looks whether we are well. It is greeted, as its check may go as far as that, and let go: nobody's session.
  private(set) var isCheck = false
  /// Where he wants to go, once that is known.
  var way: Way?
  /// Who he has proved to be, and the most he may do by that.
  var identity = Identity.notAsked
  var role = Config.Listen.Role.writer

  // Of TLS.
  var handshake: TLSHandshake?
  var session: TLSSession?
  var facts: TLSFacts?
  var certificate: ClientCertificate?

  // Of HTTP.
  var parser = HTTPRequestParser()
  var greeting: WebSocketGreeting?
  var attempt: LogIns.Attempt?

  enum Stage {
    case proxyHeader(ProxyReader)
    /// Others of his address are being greeted, as many as may.
    case waiting
    case handshake
    case request
    /// He has said who he is; whether that is so takes a while.
    case logIn
    case over
  }
  var stage = Stage.waiting

  init(
    _ number: UInt64, _ descriptor: consuming Descriptor, _ peer: SocketAddress?, at entrance: Entrance,
    in reception: Reception
  ) {
    self.number = number
    raw = descriptor.raw
    self.descriptor = consume descriptor
    self.peer = peer
    self.entrance = entrance
    self.reception = reception
    if entrance.address.layer == .plain { way = entrance.onlyWay }
  }

  func begin() {
    guard entrance.address.isProxied else { return identify(peer) }
    guard let peer, reception.rules.proxies.contains(where: { $0.contains(peer) }) else {
      return end(Ending(.denied, GreetingFault.notAProxy))
    }
    stage = .proxyHeader(ProxyReader())
    readHeader()
  }

  func ready(_ events: PollEvents) {
    switch stage {
    case .proxyHeader: readHeader()
    case .waiting: end(Ending(.clientLost, GreetingFault.left(step)))  // a hang-up; nothing else is waited for
    case .handshake: shakeHands()
    case .request: readRequest()
    case .logIn: end(Ending(.clientLost, GreetingFault.left(step)))
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
    } catch let fault as GreetingFault {
      end(Ending(.clientLeft, fault))
    } catch {
      end(Ending(.clientLost, error))
    }
  }

  /// What stands behind the header is somebody else's to read, so it is looked at first and taken then. False when nothing is
  /// there yet.
  private func readOn(_ reader: inout ProxyReader) throws -> Bool {
    try withUnsafeTemporaryAllocation(byteCount: 512, alignment: 1) { scratch in
      let count = try receive(into: scratch, Int32(MSG_PEEK))
      guard count >= 0 else { return false }
      guard count > 0 else { throw GreetingFault.left(step) }
      let taken = try reader.take(UnsafeRawBufferPointer(rebasing: scratch[..<count]))
      _ = try receive(into: UnsafeMutableRawBufferPointer(rebasing: scratch[..<taken]))
      return true
    }
  }

  /// 0 at the end, -1 when there is nothing.
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

  // MARK: - Who he is

  private func identify(_ address: SocketAddress?) {
    client = address
    stage = .waiting
    guard let address else { return goOn() }
    guard reception.rates.admits(address) else {
      return end(.tooFast(label(way)))
    }
    switch reception.mayBeGreeted(self, from: address) {
    case .greet: goOn()
    case .wait: wait(for: [])
    case .refuse: end(Ending(.full, GreetingFault.tooMany(of: address.host)))
    }
  }

  /// Somebody of his address has made room for him.
  func mayGoOn() { if case .waiting = stage { goOn() } }

  private func goOn() {
    switch entrance.address.layer {
    case .plain: handOver()
    case .tls: beginTLS()
    case .http: beginRequest()
    }
  }

  // MARK: - The end of it

  private func label(_ way: Way?) -> Arrival.Label {
    let shown = way ?? entrance.ways.first
    let listener = shown.map { entrance.bound(as: $0) ?? $0.listen.place }
    var label = Arrival.Label(address: client ?? peer, listener: listener ?? "")
    label.identity = identity
    label.role = role
    label.tls = facts.map { "TLS \($0.version.rawValue)" }
    label.shown = facts?.asked.map { ShownToTLS($0, hasCertificate: certificate != nil, shown: facts?.shown) }
    return label
  }

  func handOver() {
    if isCheck { return end(Ending(.clientLeft), saying: []) }
    guard let way, let descriptor = takeDescriptor() else { return }
    entrance.adjust(descriptor.raw, for: way)
    let label = label(way)
    leave()
    way.arrived(Arrival(descriptor, kind: Self.kind, label: label, tls: session.take(), greeting: greeting))
  }

  private static let kind = DescriptorStream.Kind.tcp(wasDialled: false)

  func timeIsOver(after limit: Duration) {
    let fault = GreetingFault.tooSlow(step, limit)
    switch stage {
    case .waiting: end(Ending(.full, fault))
    case .logIn: end(Ending(.loginFailed, fault), saying: Self.tooLate)  // it is not he who is slow
    default: end(Ending(.protocolError, fault))
    }
  }

  /// There are too many in all, or too few descriptors, and it is one of the address that has most, or has only come.
  func refuse(_ fault: any CountedRefusal) { end(Ending(.full, fault)) }

  /// It has had its share, and others of its address wait.
  func makeRoom() { end(Ending(.full, GreetingFault.crowded(step))) }

  /// Ends him, with an answer if there is one to give. Without one, not even an empty one, he is not waited for.
  func end(_ ending: Ending, saying answer: [UInt8]? = nil) {
    if case .over = stage { return }
    if way == nil { way = entrance.onlyWay }
    close(saying: answer) { label, spent in
      if let way { return way.ended(label, ending, nanoseconds: spent) }
      let report = SessionReport(ending: ending, nanoseconds: spent)
      reception.status.tell(.sessionEnded(route: "", number: nextSessionNumber(), label, report))
    }
  }

  /// Turns away one who was asking for nothing that is here, and so has been nobody's session.
  func endWithoutSession(_ fault: GreetingFault, saying answer: [UInt8]) {
    if case .over = stage { return }
    close(saying: answer) { label, _ in reception.status.tell(.requestRefused(label, fault)) }
  }

  /// Closes the connection, and has `tell` report that, unless it was a proxy's own check.
  private func close(saying answer: [UInt8]?, tell: (Arrival.Label, _ spent: UInt64) -> Void) {
    let label = label(way)
    let spent = monotonicNanoseconds() &- began
    handshake = nil
    if let attempt { reception.logIns.cancel(attempt) }
    attempt = nil
    if let descriptor = takeDescriptor(), let answer { part(descriptor, answer) }
    leave()
    if !isCheck { tell(label, spent) }
  }

  private func part(_ descriptor: consuming Descriptor, _ answer: [UInt8]) {
    let stream: any ByteStream
    if let session = session.take() {
      stream = TLSStream(session, over: descriptor, kind: Self.kind, on: poller)
    } else {
      stream = DescriptorStream(descriptor, kind: Self.kind, on: poller)
    }
    reception.part(from: PrefacedStream.send(answer, through: stream))
  }

  private func leave() {
    stage = .over
    reception.left(self, from: client)
  }

  /// What he is asked for now.
  var step: String {
    switch stage {
    case .proxyHeader: "PROXY header"
    case .waiting, .over: "place among those who are greeted"
    case .handshake: "TLS handshake"
    case .request: "HTTP request"
    case .logIn: "log-in"
    }
  }

  // MARK: - His descriptor

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
