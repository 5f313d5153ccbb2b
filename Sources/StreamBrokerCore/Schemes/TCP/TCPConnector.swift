// tcp://host:port. A name may have many addresses: all are tried, as in RFC 8305. A numeric address needs no look-up,
// and starts to connect before `open` returns.

import ByteStreams
import Glibc

/// Connects to TCP servers: `tcp://host:4001`, `tcp://[::1]:4001`. Tries all addresses of a name (RFC 8305).
public struct TCPConnector: Connector {
  public static let grammar = EndpointSchemes.tcp
  public static let isLine = false

  private let host: String
  private let port: UInt16
  private let numeric: SocketAddress?

  public init(_ url: EndpointURL) throws(URLProblem) {
    // The scheme's grammar requires a port from 1 to 65535.
    self.init(host: url.host, port: UInt16(clamping: url.port ?? 0))
  }

  package init(host: String, port: UInt16) {
    self.host = host
    self.port = port
    numeric = SocketAddress(numeric: host, port: port)
  }

  public func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    let opening = TCPOpening(on: poller, reporting: request.report, to: request.dial, done)
    if let numeric {
      opening.start([numeric])
      return opening
    }
    // Only a numeric IPv6 address has a colon: its interface is unknown.
    if host.contains(":"), let zone = host.split(separator: "%").dropFirst().first {
      opening.fail(
        OpenFailure("connect [\(host)]", nil, advice: "this machine has no interface \(Suggestion.quote(String(zone)))")
      )
      return opening
    }
    request.report?(.lookUp(host))
    let (host, port) = (host, port)
    opening.lookup = NameLookup.start(host, on: poller) { answer in
      switch answer {
      case .success(let found):
        opening.start(found.map { $0.with(port: port) })
      case .failure(let failure):
        let advice = [failure.cause == nil ? failure.text : nil, failure.advice].compactMap { $0 }
        opening.fail(
          OpenFailure("look up \(host)", failure.cause, advice: advice.isEmpty ? nil : advice.joined(separator: "; ")))
      }
    }
    return opening
  }
}

/// One opening: carries out the steps of `HappyEyeballs`. Kept by the poller, the timers and the caller, which may
/// cancel it.
final class TCPOpening: Opening {
  private let poller: Poller
  private let report: ((OpeningStep) -> Void)?
  private let dial: (any DialObserver)?
  private var done: ((Result<any ByteStream, OpenFailure>) -> Void)?
  private var order = HappyEyeballs([])
  private var attempts: [Attempt?] = []  // by address index, up to the latest attempt
  private var failures: [(SocketAddress, SystemError)] = []
  private var delay: Timers.Token?
  var lookup: NameLookup.Token?

  init(
    on poller: Poller, reporting report: ((OpeningStep) -> Void)? = nil, to dial: (any DialObserver)? = nil,
    _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) {
    self.poller = poller
    self.report = report
    self.dial = dial
    self.done = done
  }

  func start(_ addresses: [SocketAddress]) {
    guard done != nil else { return }  // cancelled while the name was looked up
    order = HappyEyeballs(addresses)
    handle(.started)
  }

  func cancel() {
    done = nil
    if let lookup { NameLookup.cancel(lookup) }
    lookup = nil
    closeAll()
  }

  private func handle(_ event: HappyEyeballs.Event) {
    for step in order.handle(event) {
      switch step {
      case .attempt(let index): attempt(index)
      case .waitDelay:
        poller.timers.cancel(delay)
        delay = poller.timers.after(HappyEyeballs.attemptDelay) { [self] in handle(.delayPassed) }
      case .win(let index): win(index)
      case .giveUp: giveUp()
      }
    }
  }

  private func attempt(_ index: Int) {
    let address = order.addresses[index]
    precondition(index == attempts.count)
    attempts.append(nil)
    report?(.connect("\(address)"))
    guard done != nil else { return }  // the observer has cancelled the opening
    do {
      let socket = try Descriptor.socket(address.family)
      // The stream sets keepalive later.
      try SocketOptions.applyStream(to: socket.raw, keepalive: false, limitsUnsent: false)
      let (isConnected, own) = try connect(socket.raw, to: address)
      let attempt = Attempt(socket, own) { [self] in settled(index) }
      attempts[index] = attempt
      if isConnected { return settled(index, isConnected: true) }
      // Only now: epoll reports a socket that has not started to connect as hung up.
      try poller.add(attempt.raw, handler: attempt, for: .writable)
      attempt.isInPoller = true
    } catch {
      failed(index, error)
    }
  }

  /// Returns whether it is connected already, and the address that the socket got.
  private func connect(
    _ socket: Int32, to address: SocketAddress
  ) throws(SystemError) -> (isConnected: Bool, own: SocketAddress?) {
    let number = dial?.willConnect(to: address.port)
    var own: SocketAddress?
    defer {
      if let dial, let number {
        dial.connects(number, to: address.port) { ConnectionEnds(dialled: socket, own, to: address) }
      }
    }
    let isConnected = try call(socket, address)
    own = try? SocketAddress.local(of: socket)
    return (isConnected, own)
  }

  private func call(_ socket: Int32, _ address: SocketAddress) throws(SystemError) -> Bool {
    if address.withSockaddr({ Glibc.connect(socket, $0, $1) }) == 0 { return true }
    guard errno == EINPROGRESS else { throw SystemError("connect") }
    guard address.isLoopback else { return false }
    // Over loopback the result is known by now, but connect(2) did not wait for it. A second call saves two calls of
    // epoll and a turn.
    if address.withSockaddr({ Glibc.connect(socket, $0, $1) }) == 0 { return true }
    guard errno == EALREADY else { throw SystemError("connect") }
    return false
  }

  private func settled(_ index: Int, isConnected: Bool = false) {
    guard let attempt = attempts[index] else { return }
    if let error = attempt.error(at: order.addresses[index], isConnected: isConnected) {
      failed(index, error)
    } else {
      handle(.connected(index))
    }
  }

  private func failed(_ index: Int, _ error: SystemError) {
    attempts[index].take()?.close(poller)
    failures.append((order.addresses[index], error))
    handle(.failed(index))
  }

  private func win(_ index: Int) {
    guard let done, let attempt = attempts[index].take() else { return }
    self.done = nil
    closeAll()
    guard let descriptor = attempt.take(poller) else { return }
    done(.success(DescriptorStream(descriptor, kind: .tcp(wasDialled: true), on: poller)))
  }

  private func giveUp() {
    guard let first = failures.first else {
      return fail(OpenFailure("connect", nil, advice: "the name has no address"))
    }
    var advice = [Self.advice(first.1)].compactMap(\.self)
    let others = failures.dropFirst().map { "\($0): \($1.text) (\($1.name))" }
    if !others.isEmpty { advice.append("also tried " + others.joined(separator: ", ")) }
    fail(
      OpenFailure(
        "connect \(first.0)", first.1,
        advice: advice.isEmpty ? nil : advice.joined(separator: "; ")))
  }

  /// For an error that a mistake in the configuration or of this machine causes; nil if its own text says enough.
  static func advice(_ error: SystemError) -> String? {
    switch error.errno {
    case EINVAL: "a link-local address needs its interface, as in [fe80::1%eth0]"
    case ENETUNREACH:
      "this machine has no route to that network; is the interface up, and does it have such an address?"
    case EHOSTUNREACH, EHOSTDOWN:
      "nobody answers for that address; is the device on, in this network, and let through by firewalls?"
    case ENETDOWN: "the interface to that network is down; switch it on"
    case EADDRNOTAVAIL, EADDRINUSE: "this machine has no address or free port to connect from"
    case EACCES: "that is no address of a single host, or a rule of this machine forbids it"
    case EPERM: "a firewall rule of this machine forbids it"
    case EAFNOSUPPORT: "this machine has no IPv6"
    case ENODEV, ENXIO: "this machine has no such interface"
    case EMFILE, ENFILE: "the limit of open files is reached; raise LimitNOFILE= or fs.file-max"
    case ENOBUFS, ENOMEM: "this machine has no memory left for connections"
    default: nil
    }
  }

  func fail(_ failure: OpenFailure) {
    guard let done else { return }
    self.done = nil
    closeAll()
    done(.failure(failure))
  }

  private func closeAll() {
    poller.timers.cancel(delay)
    delay = nil
    for index in attempts.indices { attempts[index].take()?.close(poller) }
  }
}

/// A socket that is connecting.
private final class Attempt: PollHandler {
  let raw: Int32
  var isInPoller = false
  private var descriptor: Descriptor?
  /// The socket's own address.
  private let own: SocketAddress?
  private let settled: () -> Void

  init(_ descriptor: consuming Descriptor, _ own: SocketAddress?, _ settled: @escaping () -> Void) {
    raw = descriptor.raw
    self.own = own
    self.descriptor = consume descriptor
    self.settled = settled
  }

  func ready(_ events: PollEvents) { settled() }

  /// The error, now that the attempt is decided; nil if it is connected. A connection to itself counts as refused.
  func error(at address: SocketAddress, isConnected: Bool) -> SystemError? {
    if !isConnected, let error = SocketOptions.takeError(of: raw, "connect") { return error }
    return SocketAddress.isOwnPeer(raw, at: own, dialled: address.port) ? SystemError("connect", ECONNREFUSED) : nil
  }

  func close(_ poller: Poller) { _ = take(poller) }

  func take(_ poller: Poller) -> Descriptor? {
    if isInPoller { poller.remove(raw) }
    isInPoller = false
    return descriptor.take()
  }
}
