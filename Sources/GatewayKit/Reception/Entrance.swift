// A bound address of the reception, and the ways that lead from it: one, or several routes' that share the port. Accepts, and
// says which way a client means once he has said enough.

import ByteStreams
import Glibc
import StreamBroker
import StreamTLS
import StreamWebSocket

final class Entrance {
  /// What ways must agree in to share a port.
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
      layer =
        switch listen.scheme {
        case "tls", "wss": .tls
        case "ws": .http
        default: .plain
        }
      isProxied = listen.isProxied
    }

    var canBeShared: Bool { port != 0 && layer != .plain }
  }

  let address: Address
  private(set) var ways = WayTable()
  private unowned let reception: Reception  // which keeps it
  /// Whose address it is; the same for all its ways.
  private var firstWay: Way
  private var loops: [AcceptLoop] = []
  /// "127.0.0.1:4001"; nil until it is bound.
  private var name: String?
  private var failure: SystemError?
  private var timer: Timers.Token?
  private var rebindPause = RebindPause()
  // What TLS shows, by what was asked for; and what each way has of it, which stays until something better is there.
  private var keepers: [TLSServerSettings: TLSKeeper] = [:]
  private var contexts: [UInt64: TLSServerContext] = [:]
  /// Ways that clients can come by, and were said to.
  private var opened: Set<UInt64> = []

  private static let retry = Duration.seconds(1)
  /// What a listener waits for whose files are of no use. The file is reported by itself, once.
  static let certificate = "certificate"

  init(_ address: Address, _ way: Way, reception: Reception) {
    self.address = address
    self.reception = reception
    firstWay = way
    ways.set(way)
  }

  private var binding: TCPBinding {
    TCPBinding(
      listen: firstWay.listen, inherited: firstWay.inherited, keepsAlive: keepsAlive, limitsUnsent: limitsUnsent)
  }
  // What clients inherit from the socket; for a way that wants it otherwise it is set as they leave.
  private var keepsAlive: Bool { ways.keepsAlive }
  private var limitsUnsent: Bool { ways.limitsUnsent }

  // MARK: - Its address

  /// Once somebody can be let in: a way whose certificate is not there yet waits for it.
  func start() {
    for way in ways { keep(way) }
    bind()
  }

  private func bind() {
    reception.poller.timers.cancel(timer)
    timer = nil
    guard loops.isEmpty, ways.contains(where: isReady) else { return }
    do throws(SystemError) {
      try binding.open { socket throws(SystemError) in try accept(from: socket) }
      failure = nil
      for way in ways { tellListening(way) }
    } catch {
      closeLoops()
      if error != failure { for way in ways where isReady(way) { tellWaiting(way, binding.failure(error)) } }
      failure = error
      timer = reception.poller.timers.after(Self.retry) { [weak self] in self?.bind() }
    }
  }

  /// For one who waits for his address.
  func tryAgain() {
    guard timer != nil, name == nil else { return }
    reception.poller.timers.cancel(timer)
    timer = nil
    bind()
  }

  private func accept(from socket: consuming Descriptor) throws(SystemError) {
    let name = try binding.name(of: socket.raw)
    loops.append(
      try AcceptLoop(
        socket, on: reception.poller, farewell: nil,
        outOfDescriptors: { [unowned self] error in  // its loops stop before it goes
          let route = onlyWay?.route ?? ""
          reception.status.tell(.outOfDescriptors(route: route, listener: bound(as: firstWay) ?? name, error))
        },
        lost: { [unowned self] in lost($0) },
        accepted: { [unowned self] descriptor, peer in reception.receive(descriptor, peer, at: self) }))
    self.name = name
  }

  private func lost(_ error: SystemError) {
    let bound = ways.map { ($0, self.bound(as: $0)) }
    closeLoops()
    failure = error
    let pause = rebindPause.next(at: reception.poller.timers.now)
    for (way, bound) in bound where opened.remove(way.number) != nil {
      reception.status.tell(.listenerClosed(route: way.route, listener: way.listen.place, bound: bound))
      reception.status.tell(
        .listenerWaits(route: way.route, listener: way.listen.place, .lost(error), retry: pause))
    }
    timer = reception.poller.timers.after(pause) { [weak self] in self?.bind() }
  }

  private func closeLoops() {
    guard !loops.isEmpty else { return }
    let isInherited = binding.isInherited
    for loop in loops { loop.stop(isSocketShared: isInherited) }
    loops = []
    name = nil
  }

  // MARK: - Its ways

  func add(_ way: Way) {
    ways.set(way)
    keep(way)
    if name != nil {
      tellListening(way)
    } else if let failure, isReady(way) {
      tellWaiting(way, binding.failure(failure))
    }
    // Else nothing has changed for the others, and looking at all of them at each of thousands takes seconds.
    if isReady(way) { bind() }
  }

  func change(_ way: Way) {
    guard ways[way.number] != nil else { return }
    ways.set(way)
    keep(way)
    dropKeepers()
    for loop in loops { loop.withSocket { try? binding.setKeepalive(of: $0) } }
  }

  func remove(_ number: UInt64) {
    guard let way = ways[number] else { return }
    let bound = bound(as: way)
    if ways.count == 1 {  // who has connected already is received still
      reception.poller.timers.cancel(timer)
      timer = nil
      closeLoops()
    }
    ways.remove(number)
    if let first = ways.first { firstWay = first }
    contexts[number] = nil
    opened.remove(number)
    dropKeepers()
    reception.status.tell(.listenerClosed(route: way.route, listener: way.listen.place, bound: bound))
  }

  func close() { precondition(ways.isEmpty && loops.isEmpty) }

  /// What clients of a way are told to have come by; nil while nobody can.
  func bound(as way: Way) -> String? {
    name.map { "\(way.listen.scheme)://\($0)\(way.listen.url.path)\(way.listen.nameShown)" }
  }

  private func tellListening(_ way: Way) {
    guard isReady(way), let bound = bound(as: way), opened.insert(way.number).inserted else { return }
    reception.status.tell(.listening(route: way.route, listener: way.listen.place, bound: bound))
  }

  private func tellWaiting(_ way: Way, _ failure: OpenFailure) {
    reception.status.tell(
      .listenerWaits(route: way.route, listener: way.listen.place, failure, retry: Self.retry))
  }

  /// The way that everybody takes who comes; nil where there is a choice.
  var onlyWay: Way? { ways.count == 1 ? ways.first : nil }

  // MARK: - What TLS shows

  private func isReady(_ way: Way) -> Bool { way.tls == nil || contexts[way.number] != nil }

  var firstContext: TLSServerContext? { ways.lazy.compactMap { self.contexts[$0.number] }.first { _ in true } }

  /// The names under which web pages may reach `way`. Put together when one asks, which is once for each connection of a browser.
  func hostNames(of way: Way) -> HostNames {
    HostNames(
      reception.machineNames + (contexts[way.number]?.certificateNames ?? []) + (way.websocket?.hosts ?? []))
  }

  /// What a client is shown who asks for `name`; nil when he is in the wrong place.
  func context(for name: String?) -> TLSServerContext? {
    ways.first(for: name) { contexts[$0] != nil }.flatMap { contexts[$0.number] }
  }

  /// Sees to it that the way has what it shows, as soon as that can be had.
  private func keep(_ way: Way) {
    guard let settings = way.tls else { return }
    if let keeper = keepers[settings] {
      if keeper.context != nil || keeper.fault != nil { took(keeper, for: [way.number]) }
      return
    }
    keepers[settings] = TLSKeeper(
      settings, replacing: contexts[way.number], on: reception.poller, report: reception.news
    ) { [weak self] in self?.tookNews(of: settings) }
  }

  private func tookNews(of settings: TLSServerSettings) {
    if let keeper = keepers[settings] { took(keeper, for: ways.numbers(with: settings)) }
  }

  private func took(_ keeper: TLSKeeper, for numbers: [UInt64]) {
    for way in numbers.compactMap({ ways[$0] }) {
      if let context = keeper.context {
        if contexts[way.number] !== context, keeper.settings.clientAuth != .none { way.trusts(context) }
        contexts[way.number] = context
        tellListening(way)
      } else if let fault = keeper.fault, contexts[way.number] == nil {
        tellWaiting(way, OpenFailure(Self.certificate, nil, advice: fault.description))
      }
    }
    if keeper.fault != nil || !(keeper.context?.warnings ?? []).isEmpty || !reception.news.isQuiet {
      reception.tellNews()
    }
    if keeper.context != nil { bind() }
  }

  /// What is wrong with files that are asked for, what is odd in those that are shown, and whether some are being read.
  var certificates: (faults: [TLSSettingsFault], doubts: [String], areRead: Bool) {
    (
      keepers.values.compactMap(\.fault), keepers.values.flatMap { $0.context?.warnings ?? [] },
      keepers.values.allSatisfy { !$0.isLoading }
    )
  }

  /// Those that no way asks for any more.
  private func dropKeepers() {
    for (settings, keeper) in keepers where !ways.contains(settings) {
      keeper.cancel()
      keepers[settings] = nil
    }
    if !reception.news.isQuiet { reception.tellNews() }
  }

  /// Looks at all files again.
  func renewCertificates() { for keeper in keepers.values { keeper.renew() } }

  /// Sets what a client of `way` did not inherit as his route wants it. On a socket that has gone it fails; reading tells.
  func adjust(_ socket: Int32, for way: Way) {
    if keepsAlive && !way.keepsAlive { try? SocketOptions.set(socket, SOL_SOCKET, SO_KEEPALIVE, 0) }
    if limitsUnsent && !way.isShared { try? SocketOptions.set(socket, Int32(IPPROTO_TCP), TCP_NOTSENT_LOWAT, 0) }
  }
}

extension Config.Listen {
  /// The name (SNI) that leads here, in lower case.
  var serverName: String? { url.string("server-name")?.lowercased() }
  /// Whether its clients come through a proxy that says who they are.
  var isProxied: Bool { url.string("proxy-protocol") == "required" }
  /// Whether its clients say something before they are let in.
  func sharesEntrance(with other: Config.Listen) -> Bool {
    guard isGreeted, other.isGreeted else { return false }
    let address = Entrance.Address(self)
    return address.canBeShared && address == Entrance.Address(other)
  }
  var isGreeted: Bool { isProxied || ["tls", "ws", "wss"].contains(scheme) }
}
