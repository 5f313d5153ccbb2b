// Sockets that systemd, or another starter, has bound for us. A listener whose address is that of one listens on it. They stay
// open as long as the process lives: a listener that a reload takes away and another brings back finds its own again, and
// who connects meanwhile waits in the kernel's queue.

import ByteStreams
import CLinux
import Glibc
import StreamBroker

public struct InheritedSockets: Sendable {
  struct Socket: Sendable {
    let raw: Int32
    let place: Place
  }

  /// Where one listens.
  enum Place: Hashable, Sendable {
    case tcp(SocketAddress)
    case unix(path: String)
  }

  /// Why one is of no use.
  public enum Fault: Error, Hashable, Sendable {
    case noSocket, noStream, doesNotListen, unnamed
    case same(as: Int32)
  }

  let sockets: [Socket]

  /// None: what a gateway has that was started by hand.
  public init() { sockets = [] }

  /// Takes over what listeners of `routes` name; the rest is told of and closed. May block, over paths: for the start.
  public init(_ handover: Handover, for routes: [Config.Route], tell: (StatusEvent) -> Void) {
    var sockets: [Socket] = []
    for item in handover.items {
      do throws(Fault) {
        sockets.append(try Self.adopt(item.raw, beside: sockets, for: routes))
      } catch {
        let socket = (try? Place(of: item.raw))?.description ?? "descriptor \(item.raw)"
        tell(.inheritedUnused(socket: socket, name: item.name, error))
        close(item.raw)
      }
    }
    self.sockets = sockets
  }

  private static func adopt(
    _ raw: Int32, beside others: [Socket], for routes: [Config.Route]
  ) throws(Fault) -> Socket {
    let place = try Place(of: raw)
    if let other = others.first(where: { place.isServed(by: $0, as: raw) }) { throw .same(as: other.raw) }
    guard routes.contains(where: { $0.listen.contains(where: place.isMeant) }) else { throw .unnamed }
    _ = fcntl(raw, F_SETFD, FD_CLOEXEC)
    _ = fcntl(raw, F_SETFL, fcntl(raw, F_GETFL) | O_NONBLOCK)
    return Socket(raw: raw, place: place)
  }

  /// Those that are for `listen`: for a TCP address there may be several. May block over a path, not over a TCP address.
  func matching(_ listen: Config.Listen) -> [Socket] { sockets.filter { $0.place.isMeant(by: listen) } }
}

extension InheritedSockets.Socket {
  /// Whether a unix socket takes clients still. One that was shut down says it listens, and can't be made to again (unix(7) has no
  /// way back); a TCP socket can.
  var accepts: Bool {
    !AcceptLoop.isShutDown(raw)
  }

  /// A descriptor of a listener's own, which ends with the listener; the socket stays.
  func duplicate() throws(SystemError) -> Descriptor {
    let copy = fcntl(raw, F_DUPFD_CLOEXEC, 0)
    guard copy >= 0 else { throw SystemError("fcntl") }
    return Descriptor(owning: copy)
  }
}

extension InheritedSockets.Place: CustomStringConvertible {
  /// Where a descriptor listens, which may be anything.
  init(of raw: Int32) throws(InheritedSockets.Fault) {
    guard let type = Self.option(SO_TYPE, of: raw) else { throw .noSocket }
    guard type == Int32(SOCK_STREAM.rawValue) else { throw .noStream }
    if Self.option(SO_PROTOCOL, of: raw) == Int32(IPPROTO_TCP), let address = try? SocketAddress.local(of: raw) {
      self = .tcp(address.unmapped)
    } else if case .path(let path)? = UnixAddress(localOf: raw) {
      self = .unix(path: path)
    } else {
      throw .noStream
    }
    guard Self.option(SO_ACCEPTCONN, of: raw) == 1 else { throw .doesNotListen }
  }

  private static func option(_ name: Int32, of raw: Int32) -> Int32? {
    var value: Int32 = 0
    var length = socklen_t(MemoryLayout<Int32>.size)
    return getsockopt(raw, SOL_SOCKET, name, &value, &length) == 0 ? value : nil
  }

  var description: String {
    switch self {
    case .tcp(let address): "tcp://\(address)"
    case .unix(let path): "unix://\(path)"
    }
  }

  /// Whether the socket `raw`, which listens here, is `other` once more, or stands in its way: two may share a TCP address
  /// (SO_REUSEPORT), but only one of a path can be reached.
  fileprivate func isServed(by other: InheritedSockets.Socket, as raw: Int32) -> Bool {
    if case .unix = self { return other.place == self }
    var (one, two) = (stat(), stat())
    return fstat(raw, &one) == 0 && fstat(other.raw, &two) == 0 && one.st_ino == two.st_ino
  }

  func isMeant(by listen: Config.Listen) -> Bool {
    switch (self, listen.scheme) {
    case (.tcp(let address), "tcp"), (.tcp(let address), "tls"), (.tcp(let address), "ws"),
      (.tcp(let address), "wss"):
      Int(address.port) == listen.port && Self.means(address, listen.host)
    case (.unix(let path), "unix"): path == listen.url.path || FileIdentity.isSame(path, listen.url.path)
    default: false
    }
  }

  /// A listener for all addresses takes whatever means all. One for 0.0.0.0 does not take [::], which lets in more than it says.
  private static func means(_ address: SocketAddress, _ host: String?) -> Bool {
    guard let host else { return address.isAny }
    return SocketAddress(numeric: host, port: address.port) == address
  }
}

extension InheritedSockets.Fault: CustomStringConvertible {
  public var description: String {
    switch self {
    case .noSocket: "it is no socket"
    case .noStream: "it is no TCP socket and no unix stream socket with a path"
    case .doesNotListen: "it does not listen"
    case .same(let other): "it is the same as descriptor \(other)"
    case .unnamed: "no listener has its address"
    }
  }
}
