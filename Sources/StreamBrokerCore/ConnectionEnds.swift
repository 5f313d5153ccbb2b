// Both ends of a connection, as the side that connects and the side that accepts see it. The gateway compares them: an
// endpoint may lead back to one of its own listeners.

import ByteStreams
import CLinux
import Glibc

/// Equal on both sides of one connection of this machine, unless address translation lies between.
package struct ConnectionEnds: Equatable, Sendable {
  /// The side that connects.
  package enum Source: Equatable, Sendable {
    case tcp(SocketAddress)
    case unix(UnixAddress)

    /// Of an accepted socket; `peer` is the address that accept(2) gave. Nil for a unix socket whose other side has no
    /// name.
    package init?(accepted socket: Int32, from peer: SocketAddress?) {
      if let peer {
        self = .tcp(peer.unmapped)
      } else if let name = UnixAddress(peerOf: socket) {
        self = .unix(name)
      } else {
        return nil
      }
    }

    /// Nearly always another number for another source. A hash of all of it would cost more than the rest of the search.
    package var key: Int {
      switch self {
      case .tcp(let address): Int(address.port)
      case .unix(let name): name.hashValue
      }
    }
  }

  package let source: Source
  /// Nil for a unix socket: only one has the other's name.
  private let target: SocketAddress?

  /// Of a TCP socket after connect(2), which gave it the address `own`. `target` is the address that was given to it.
  init?(dialled socket: Int32, _ own: SocketAddress?, to target: SocketAddress) {
    guard let own, own.port != 0 else { return nil }
    // 0.0.0.0 reaches 127.0.0.1, and the kernel forgets an interface that it does not need. A socket that is still
    // connecting has no peer.
    let isExact = !target.isAny && target.scope == 0
    let peer = isExact ? target : (try? SocketAddress.peer(of: socket)) ?? target
    source = .tcp(own.unmapped)
    self.target = peer.unmapped
  }

  /// Of an accepted socket. Asks the kernel.
  package init?(accepted socket: Int32, from source: Source) {
    self.source = source
    switch source {
    case .unix: target = nil
    case .tcp:
      guard let own = try? SocketAddress.local(of: socket) else { return nil }
      target = own.unmapped
    }
  }

  /// Gives a unix socket that is about to connect a name of its own, which the kernel chooses (unix(7), autobind). Nil if
  /// it refuses.
  init?(naming socket: Int32) {
    var family = sa_family_t(AF_UNIX)
    let answer = withUnsafePointer(to: &family) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
        bind(socket, $0, socklen_t(MemoryLayout<sa_family_t>.size))
      }
    }
    guard answer == 0, let name = UnixAddress(localOf: socket) else { return nil }
    source = .unix(name)
    target = nil
  }
}

/// Learns from where an opening connects, on any thread and before its connection can be used.
package protocol DialObserver: Sendable {
  /// connect(2) to this port comes next, 0 for a unix socket, and `connects` with the same number after it.
  func willConnect(to port: UInt16) -> UInt64
  /// `ends` is asked for only if they can matter; it is nil if the call failed.
  func connects(_ number: UInt64, to port: UInt16, _ ends: () -> ConnectionEnds?)
}
