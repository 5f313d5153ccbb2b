// A bound address of the reception, and the ways that lead from it: one, or several routes' that share the port. Accepts, and
// says which way a client means once he has said enough.

import ByteStreams
import Glibc
import StreamBroker

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
      host = listen.host == "localhost" ? "127.0.0.1" : listen.host
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
  private(set) var ways: [Way]
  private unowned let reception: Reception  // which keeps it
  private var loops: [AcceptLoop] = []
  /// "127.0.0.1:4001"; nil until it is bound.
  private var name: String?
  private var failure: SystemError?
  private var timer: Timers.Token?

  private static let retry = Duration.seconds(1)

  init(_ address: Address, _ way: Way, reception: Reception) {
    self.address = address
    ways = [way]
    self.reception = reception
  }

  private var binding: TCPBinding {
    TCPBinding(
      listen: ways[0].listen, inherited: ways[0].inherited, keepsAlive: keepsAlive, limitsUnsent: limitsUnsent)
  }
  // What clients inherit from the socket; for a way that wants it otherwise it is set as they leave.
  private var keepsAlive: Bool { ways.contains(where: \.keepsAlive) }
  private var limitsUnsent: Bool { ways.contains(where: \.isShared) }

  // MARK: - Its address

  func start() {
    do throws(SystemError) {
      try binding.open { socket throws(SystemError) in try accept(from: socket) }
      failure = nil
      for way in ways { tellListening(way) }
    } catch {
      closeLoops()
      if error != failure { for way in ways { tellWaiting(way, error) } }
      failure = error
      timer = reception.poller.timers.after(Self.retry) { [weak self] in self?.start() }
    }
  }

  /// For one who waits for his address.
  func tryAgain() {
    guard timer != nil, name == nil else { return }
    reception.poller.timers.cancel(timer)
    timer = nil
    start()
  }

  private func accept(from socket: consuming Descriptor) throws(SystemError) {
    let name = try binding.name(of: socket.raw)
    loops.append(
      try AcceptLoop(
        socket, on: reception.poller, farewell: nil,
        outOfDescriptors: { [unowned self] error in  // its loops stop before it goes
          let route = ways.count == 1 ? ways[0].route : ""
          reception.status.tell(.outOfDescriptors(route: route, listener: bound(as: ways[0]) ?? name, error))
        },
        accepted: { [unowned self] descriptor, peer in reception.receive(descriptor, peer, at: self) }))
    self.name = name
  }

  private func closeLoops() {
    guard !loops.isEmpty else { return }
    let isInherited = binding.isInherited
    for loop in loops { loop.stop(isSocketShared: isInherited) }
    loops = []
    name = nil
  }

  // MARK: - Its ways

  func has(_ number: UInt64) -> Bool { ways.contains { $0.number == number } }

  func add(_ way: Way) {
    ways.append(way)
    if name != nil { tellListening(way) } else if let failure { tellWaiting(way, failure) }
  }

  func change(_ way: Way) {
    guard let index = ways.firstIndex(where: { $0.number == way.number }) else { return }
    ways[index] = way
    for loop in loops { loop.withSocket { try? binding.setKeepalive(of: $0) } }
  }

  func remove(_ number: UInt64) {
    guard let index = ways.firstIndex(where: { $0.number == number }) else { return }
    let way = ways[index]
    let bound = bound(as: way)
    if ways.count == 1 {  // who has connected already is received still
      reception.poller.timers.cancel(timer)
      timer = nil
      closeLoops()
    }
    ways.remove(at: index)
    reception.status.tell(.listenerClosed(route: way.route, listener: way.listen.place, bound: bound))
  }

  func close() { precondition(ways.isEmpty && loops.isEmpty) }

  /// What clients of a way are told to have come by; nil while nobody can.
  func bound(as way: Way) -> String? {
    name.map { "\(way.listen.scheme)://\($0)\(way.listen.url.path)" }
  }

  private func tellListening(_ way: Way) {
    let place = way.listen.place
    reception.status.tell(.listening(route: way.route, listener: place, bound: bound(as: way) ?? place))
  }

  private func tellWaiting(_ way: Way, _ error: SystemError) {
    reception.status.tell(
      .listenerWaits(
        route: way.route, listener: way.listen.place, OpenFailure(error.call, error), retry: Self.retry))
  }

  /// Sets what a client of `way` did not inherit as his route wants it. On a socket that has gone it fails; reading tells.
  func adjust(_ socket: Int32, for way: Way) {
    if keepsAlive && !way.keepsAlive { try? SocketOptions.set(socket, SOL_SOCKET, SO_KEEPALIVE, 0) }
    if limitsUnsent && !way.isShared { try? SocketOptions.set(socket, Int32(IPPROTO_TCP), TCP_NOTSENT_LOWAT, 0) }
  }
}

extension Config.Listen {
  /// Whether its clients come through a proxy that says who they are.
  var isProxied: Bool { url.string("proxy-protocol") == "required" }
  /// Whether its clients say something before they are let in.
  var isGreeted: Bool { isProxied || ["tls", "ws", "wss"].contains(scheme) }
}
