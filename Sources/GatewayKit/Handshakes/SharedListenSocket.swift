// A bound address of the handshake server with its route bindings: one, or those of several routes that share the port.
// Accepts connections, and finds the binding once the client has sent its server name or path.

import ByteStreams
import Glibc
import StreamBroker
import StreamTLS
import StreamWebSocket

final class SharedListenSocket: TCPAcceptorOwner {
  /// Bindings with equal values can share a port.
  struct Address: Hashable {
    enum Layer { case plain, http, tls }
    /// Nil for all addresses.
    let host: String?
    let port: Int
    let layer: Layer
    let isProxied: Bool

    init(_ listen: Config.Listen) {
      host = listen.host
      port = listen.port
      layer = listen.usesTLS ? .tls : listen.usesHTTP ? .http : .plain
      isProxied = listen.isProxied
    }

    var canBeShared: Bool { port != 0 && layer != .plain }
  }

  let address: Address
  private(set) var bindings = RouteBindingTable()
  private unowned let handshakeServer: HandshakeServer  // owns this object
  /// The binding whose address is bound; all bindings have the same address.
  private var firstBinding: RouteBinding
  private lazy var acceptor = TCPAcceptor(of: self, on: handshakeServer.poller)
  // Contexts by TLS settings, and the context in use of each binding: it stays in use until a new one has been built.
  private var keepers: [TLSServerSettings: CertificateReloader] = [:]
  private var contexts: [UInt64: TLSServerContext] = [:]
  /// Bindings that were reported as listening.
  private var opened: Set<UInt64> = []
  // Options that clients' sockets inherit from the listen socket when they connect, before it is known which binding
  // they ask for. They never change, so `adjust` knows what any client has, and sets what its binding needs instead.
  private let keepsAlive: Bool
  private let limitsUnsent: Bool

  /// What a listener waits for if its certificate files are not usable. The file itself is reported once, separately.
  static let certificate = "certificate"

  init(_ address: Address, _ binding: RouteBinding, handshakeServer: HandshakeServer) {
    self.address = address
    self.handshakeServer = handshakeServer
    firstBinding = binding
    keepsAlive = binding.keepsAlive
    limitsUnsent = binding.isShared
    bindings.set(binding)
  }

  // MARK: - Its address

  /// Listens once a binding is ready: bindings whose certificate is not loaded wait for it.
  func start() {
    for binding in bindings { keep(binding) }
    acceptor.start()
  }

  /// Binds again at once, if it waits for its address.
  func tryAgain() { if acceptor.isWaiting { acceptor.start() } }

  var listenSocket: TCPListenSocket {
    TCPListenSocket(
      listen: firstBinding.listen, inherited: firstBinding.inherited, ownConnections: handshakeServer.ownConnections,
      keepsAlive: keepsAlive, limitsUnsent: limitsUnsent)
  }

  var isReady: Bool { bindings.contains(where: isReady) }
  /// No line for refused clients: a client would not read it before the handshake.
  var refusalLine: String? { nil }

  func accepted(_ descriptor: consuming Descriptor, from peer: SocketAddress?, at url: String) {
    handshakeServer.receive(descriptor, peer, at: self)
  }

  func happened(_ event: TCPAcceptor.Event) {
    switch event {
    case .listening: for binding in bindings { publishListening(binding) }
    case .waiting(let failure, _): for binding in bindings where isReady(binding) { publishWaiting(binding, failure) }
    case .lost(let name, let failure, let retry):
      for binding in bindings where opened.remove(binding.number) != nil {
        let (route, target) = (binding.route, binding.listen.target)
        handshakeServer.status.publish(
          .listenerClosed(route: route, listener: target, bound: bound(as: binding, at: name)))
        handshakeServer.status.publish(.listenerWaits(route: route, listener: target, failure, retry: retry))
      }
    case .outOfDescriptors(let error):
      let listener = bound(as: firstBinding) ?? firstBinding.listen.target
      handshakeServer.status.publish(.outOfDescriptors(route: onlyBinding?.route ?? "", listener: listener, error))
    }
  }

  // MARK: - Its bindings

  func add(_ binding: RouteBinding) {
    bindings.set(binding)
    keep(binding)
    if acceptor.name != nil {
      publishListening(binding)
    } else if let failure = acceptor.failure, isReady(binding) {
      publishWaiting(binding, failure)
    }
    // If this binding is not ready, nothing has changed for the others. Checking all of them for each of thousands
    // would take seconds.
    if isReady(binding) { acceptor.start() }
  }

  func change(_ binding: RouteBinding) {
    guard bindings[binding.number] != nil else { return }
    bindings.set(binding)
    keep(binding)
    dropKeepers()
  }

  func remove(_ number: UInt64) {
    guard let binding = bindings[number] else { return }
    let bound = bound(as: binding)
    if bindings.count == 1 { acceptor.stop() }  // connections already in the backlog are still accepted
    bindings.remove(number)
    if let first = bindings.first { firstBinding = first }
    contexts[number] = nil
    opened.remove(number)
    dropKeepers()
    handshakeServer.status.publish(.listenerClosed(route: binding.route, listener: binding.listen.target, bound: bound))
  }

  func close() { precondition(bindings.isEmpty && acceptor.name == nil) }

  /// The listener's URL as reports show it; nil while it does not listen.
  func bound(as binding: RouteBinding) -> String? {
    acceptor.name.map { bound(as: binding, at: $0) }
  }

  private func bound(as binding: RouteBinding, at name: String) -> String {
    "\(binding.listen.scheme)://\(name)\(binding.listen.url.path)\(binding.listen.nameShown)"
  }

  private func publishListening(_ binding: RouteBinding) {
    guard isReady(binding), let bound = bound(as: binding), opened.insert(binding.number).inserted else { return }
    handshakeServer.status.publish(.listening(route: binding.route, listener: binding.listen.target, bound: bound))
  }

  private func publishWaiting(_ binding: RouteBinding, _ failure: OpenFailure) {
    handshakeServer.status.publish(
      .listenerWaits(route: binding.route, listener: binding.listen.target, failure, retry: BindRetry.pause))
  }

  /// The binding of every client; nil if there are several.
  var onlyBinding: RouteBinding? { bindings.count == 1 ? bindings.first : nil }

  // MARK: - TLS contexts

  private func isReady(_ binding: RouteBinding) -> Bool { binding.tls == nil || contexts[binding.number] != nil }

  var firstContext: TLSServerContext? { bindings.lazy.compactMap { self.contexts[$0.number] }.first { _ in true } }

  /// The names under which web pages may reach `binding`. Computed for each request: a browser sends one per
  /// connection.
  func hostNames(of binding: RouteBinding) -> HostNames {
    HostNames(
      handshakeServer.machineNames + (contexts[binding.number]?.certificateNames ?? [])
        + binding.hosts)
  }

  /// The context for a client that asks for `name`; nil if no binding for that name has one.
  func context(for name: String?) -> TLSServerContext? {
    bindings.first(for: name) { contexts[$0] != nil }.flatMap { contexts[$0.number] }
  }

  /// Gives the binding its TLS context: an existing one with the same settings, or a new one once it is built.
  private func keep(_ binding: RouteBinding) {
    guard let settings = binding.tls else { return }
    if let keeper = keepers[settings] {
      if keeper.context != nil || keeper.fault != nil { took(keeper, for: [binding.number]) }
      return
    }
    keepers[settings] = CertificateReloader(
      settings, replacing: contexts[binding.number], on: handshakeServer.poller, report: handshakeServer.news,
      wallTime: handshakeServer.wallTime
    ) { [weak self] in self?.tookNews(of: settings) }
  }

  private func tookNews(of settings: TLSServerSettings) {
    if let keeper = keepers[settings] { took(keeper, for: bindings.numbers(with: settings)) }
  }

  private func took(_ keeper: CertificateReloader, for numbers: [UInt64]) {
    for binding in numbers.compactMap({ bindings[$0] }) {
      if let context = keeper.context {
        if contexts[binding.number] !== context, keeper.settings.clientAuth != .none { binding.trusts(context) }
        contexts[binding.number] = context
        publishListening(binding)
      } else if let fault = keeper.fault, contexts[binding.number] == nil {
        publishWaiting(binding, OpenFailure(Self.certificate, nil, advice: fault.description))
      }
    }
    if keeper.fault != nil || !keeper.doubts.isEmpty || !handshakeServer.news.isQuiet {
      handshakeServer.reportChanges()
    }
    if keeper.context != nil { acceptor.start() }
  }

  /// Faults of the configured files, warnings about those in use, and whether no file is being read.
  var certificates: (faults: [TLSSettingsFault], doubts: [String], areRead: Bool) {
    (
      keepers.values.compactMap(\.fault), keepers.values.flatMap(\.doubts),
      keepers.values.allSatisfy { !$0.isLoading }
    )
  }

  /// Drops the contexts that no binding uses any more.
  private func dropKeepers() {
    for (settings, keeper) in keepers where !bindings.contains(settings) {
      keeper.cancel()
      keepers[settings] = nil
    }
    if !handshakeServer.news.isQuiet { handshakeServer.reportChanges() }
  }

  /// Reads all files again.
  func renewCertificates() { for keeper in keepers.values { keeper.renew() } }

  /// Sets the socket options of a client of `binding` that differ from the inherited ones. On a closed socket this
  /// fails; the next read reports that.
  func adjust(_ socket: Int32, for binding: RouteBinding) {
    if binding.keepsAlive && !keepsAlive { try? SocketOptions.applyKeepalive(to: socket) }
    if !binding.keepsAlive && keepsAlive { try? SocketOptions.set(socket, SOL_SOCKET, SO_KEEPALIVE, 0) }
    guard binding.isShared != limitsUnsent else { return }
    let lowWater = binding.isShared ? SocketOptions.notSentLowWater : 0
    try? SocketOptions.set(socket, Int32(IPPROTO_TCP), TCP_NOTSENT_LOWAT, lowWater)
  }
}

extension Config.Listen {
  /// The server name (SNI) of this listener, in lower case.
  var serverName: String? { url.string("server-name")?.lowercased() }
  /// Whether one socket serves both listeners, and the handshake shows which one a client asks for.
  func sharesListenSocket(with other: Config.Listen) -> Bool {
    let address = SharedListenSocket.Address(self)
    return address.canBeShared && address == SharedListenSocket.Address(other)
  }
}
