// Sockets that systemd, or another starter, has bound for us. A listener with the address of such a socket uses it.
// They stay open as long as the process lives: a listener that one reload removes and another adds gets its socket
// back, and clients that connect meanwhile wait in the kernel's queue.

import ByteStreams
import CLinux
import Glibc
import StreamBroker

package struct InheritedSockets: Sendable {
  struct Socket: Sendable {
    let raw: Int32
    let address: Address
  }

  /// The address on which a socket listens.
  enum Address: Hashable, Sendable {
    case tcp(SocketAddress)
    case unix(path: String)
  }

  /// Why a socket can't be used.
  package enum Fault: Error, Hashable, Sendable {
    case noSocket, noStream, doesNotListen, unnamed
    case same(as: Int32)
  }

  let sockets: [Socket]

  /// No sockets: for a gateway that was started by hand.
  package init() { sockets = [] }

  /// Takes over the sockets that match listeners of `routes` or of `admin`; reports and closes the others. May block on
  /// paths: for the start only.
  package init(
    _ handover: ListenFDs, for routes: [Config.Route], admin: Config.Admin = Config.Admin(),
    report: (StatusEvent) -> Void
  ) {
    let listeners = routes.flatMap(\.listen) + admin.listen
    var sockets: [Socket] = []
    for item in handover.items {
      do throws(Fault) {
        sockets.append(try Self.adopt(item.raw, beside: sockets, for: listeners))
      } catch {
        let socket = (try? Address(of: item.raw))?.description ?? "descriptor \(item.raw)"
        report(.inheritedUnused(socket: socket, name: item.name, error))
        close(item.raw)
      }
    }
    self.sockets = sockets
  }

  private static func adopt(
    _ raw: Int32, beside others: [Socket], for listeners: [Config.Listen]
  ) throws(Fault) -> Socket {
    let address = try Address(of: raw)
    if let other = others.first(where: { address.isServed(by: $0, as: raw) }) { throw .same(as: other.raw) }
    guard listeners.contains(where: address.isMeant) else { throw .unnamed }
    _ = fcntl(raw, F_SETFD, FD_CLOEXEC)
    _ = fcntl(raw, F_SETFL, fcntl(raw, F_GETFL) | O_NONBLOCK)
    return Socket(raw: raw, address: address)
  }

  /// Of the TCP sockets.
  var ports: [UInt16] {
    sockets.compactMap { if case .tcp(let address) = $0.address { address.port } else { nil } }
  }

  /// The sockets for `listen`: there can be several for a TCP address. May block on a path, not on a TCP address.
  func matching(_ listen: Config.Listen) -> [Socket] { sockets.filter { $0.address.isMeant(by: listen) } }
}

extension InheritedSockets.Socket {
  /// Whether a unix socket still accepts clients. After shutdown(2) it reports SO_ACCEPTCONN, but unlike a TCP socket
  /// it can't be made to listen again.
  var accepts: Bool {
    !AcceptLoop.isShutDown(raw)
  }

  /// A duplicate that the listener owns and closes; the socket stays open.
  func duplicate() throws(SystemError) -> Descriptor {
    let copy = fcntl(raw, F_DUPFD_CLOEXEC, 0)
    guard copy >= 0 else { throw SystemError("fcntl") }
    return Descriptor(owning: copy)
  }
}

extension InheritedSockets.Address: CustomStringConvertible {
  /// The address on which `raw` listens; `raw` may be any descriptor.
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

  /// Whether `raw`, which listens on this address, is the socket `other` again, or can't be used beside it: two sockets
  /// can share a TCP address (SO_REUSEPORT), but clients reach only one at a path.
  fileprivate func isServed(by other: InheritedSockets.Socket, as raw: Int32) -> Bool {
    if case .unix = self { return other.address == self }
    var (one, two) = (stat(), stat())
    return fstat(raw, &one) == 0 && fstat(other.raw, &two) == 0 && one.st_ino == two.st_ino
  }

  func isMeant(by listen: Config.Listen) -> Bool {
    switch (self, listen.traits.family) {
    case (.tcp(let address), .tcp): Int(address.port) == listen.port && Self.means(address, listen.host)
    case (.unix(let path), .unix): path == listen.url.path || FileIdentity.isSame(path, listen.url.path)
    default: false
    }
  }

  /// A listener for all addresses matches 0.0.0.0 and [::]. A listener for 0.0.0.0 does not match [::], which accepts
  /// more than the URL allows.
  private static func means(_ address: SocketAddress, _ host: String?) -> Bool {
    guard let host else { return address.isAny }
    return SocketAddress(numeric: host, port: address.port) == address
  }
}

extension InheritedSockets.Fault: CustomStringConvertible {
  package var description: String {
    switch self {
    case .noSocket: "it is not a socket"
    case .noStream: "it is neither a TCP socket nor a unix stream socket with a path"
    case .doesNotListen: "it does not listen"
    case .same(let other): "it is the same as descriptor \(other)"
    case .unnamed: "no listener has its address"
    }
  }
}
