// An IPv4 or IPv6 address and a port, as a value. Listeners, connectors, allow lists and logs use it. It resolves no
// names: a look-up can block and is a connector's work.

import Glibc

/// An IPv4 or IPv6 address with a port. Resolves no names.
public struct SocketAddress: Hashable, Sendable {
  /// The version of the protocol.
  public enum Family: Hashable, Sendable {
    /// AF_INET
    case ipv4
    /// AF_INET6
    case ipv6

    /// AF_INET or AF_INET6.
    package var domain: Int32 { self == .ipv4 ? AF_INET : AF_INET6 }
  }

  /// The version of the protocol.
  public let family: Family
  /// 0 if a listening socket gets any free port.
  public let port: UInt16
  /// The interface of a link-local IPv6 address, as numbered by if_nametoindex(3); 0 for none.
  package let scope: UInt32
  // The address as a big-endian number: IPv6 in both, IPv4 in the low 32 bits.
  private let high: UInt64
  private let low: UInt64

  private init(family: Family, high: UInt64, low: UInt64, scope: UInt32, port: UInt16) {
    self.family = family
    self.high = high
    self.low = low
    self.scope = scope
    self.port = port
  }

  /// All addresses of this machine: 0.0.0.0 or ::.
  package static func any(_ family: Family, port: UInt16) -> SocketAddress {
    SocketAddress(family: family, high: 0, low: 0, scope: 0, port: port)
  }

  /// Parses an address in digits, IPv6 without brackets: "127.0.0.1", "::1", "fe80::1%eth0". Nil for anything else,
  /// which may be a name.
  public init?(numeric host: String, port: UInt16) {
    guard !host.utf8.contains(0) else { return nil }  // C would ignore what follows
    var v4 = in_addr()
    if inet_pton(AF_INET, host, &v4) == 1 {
      self.init(
        family: .ipv4, high: 0, low: UInt64(UInt32(bigEndian: v4.s_addr)), scope: 0, port: port)
      return
    }
    let parts = host.split(separator: "%", maxSplits: 1, omittingEmptySubsequences: false)
    var v6 = in6_addr()
    guard inet_pton(AF_INET6, String(parts[0]), &v6) == 1 else { return nil }
    var scope: UInt32 = 0
    if parts.count == 2 {
      scope = UInt32(parts[1]) ?? if_nametoindex(String(parts[1]))
      guard scope != 0 else { return nil }
    }
    self.init(v6, scope: scope, port: port)
  }

  private init(_ v6: in6_addr, scope: UInt32, port: UInt16) {
    let (high, low) = withUnsafeBytes(of: v6) { bytes in
      (bytes.loadUnaligned(as: UInt64.self), bytes.loadUnaligned(fromByteOffset: 8, as: UInt64.self))
    }
    self.init(
      family: .ipv6, high: UInt64(bigEndian: high), low: UInt64(bigEndian: low), scope: scope, port: port)
  }

  /// From four bytes in network order.
  package init(ipv4 bytes: some Collection<UInt8>, port: UInt16) {
    precondition(bytes.count == 4)
    self.init(family: .ipv4, high: 0, low: Self.number(bytes), scope: 0, port: port)
  }

  /// From sixteen bytes in network order.
  package init(ipv6 bytes: some Collection<UInt8>, port: UInt16) {
    precondition(bytes.count == 16)
    self.init(
      family: .ipv6, high: Self.number(bytes.prefix(8)), low: Self.number(bytes.dropFirst(8)), scope: 0, port: port)
  }

  private static func number(_ bytes: some Collection<UInt8>) -> UInt64 { bytes.reduce(0) { $0 << 8 | UInt64($1) } }

  /// The addresses of one customer of a network, without a port: an IPv4 address, or the /64 of an IPv6 address, in
  /// which a customer can choose any.
  package var rateLimitKey: SocketAddress {
    let own = unmapped
    return own.family == .ipv4
      ? own.with(port: 0) : SocketAddress(family: .ipv6, high: own.high, low: 0, scope: own.scope, port: 0)
  }

  /// An address from accept(2), getsockname(2) or getaddrinfo(3). Nil if it is neither IPv4 nor IPv6.
  package init?(_ address: UnsafePointer<sockaddr>, length: socklen_t) {
    let bytes = UnsafeRawBufferPointer(start: address, count: Int(length))
    guard bytes.count >= MemoryLayout<sa_family_t>.size else { return nil }
    switch Int32(bytes.loadUnaligned(as: sa_family_t.self)) {
    case AF_INET where bytes.count >= MemoryLayout<sockaddr_in>.size:
      let v4 = bytes.loadUnaligned(as: sockaddr_in.self)
      self.init(
        family: .ipv4, high: 0, low: UInt64(UInt32(bigEndian: v4.sin_addr.s_addr)), scope: 0,
        port: UInt16(bigEndian: v4.sin_port))
    case AF_INET6 where bytes.count >= MemoryLayout<sockaddr_in6>.size:
      let v6 = bytes.loadUnaligned(as: sockaddr_in6.self)
      self.init(v6.sin6_addr, scope: v6.sin6_scope_id, port: UInt16(bigEndian: v6.sin6_port))
    default:
      return nil
    }
  }

  /// The same address with another port.
  package func with(port: UInt16) -> SocketAddress {
    SocketAddress(family: family, high: high, low: low, scope: scope, port: port)
  }

  /// The IPv4 address for ::ffff:192.0.2.1, the form in which a socket for both families reports an IPv4 peer. Other
  /// addresses are returned unchanged.
  package var unmapped: SocketAddress {
    guard family == .ipv6, high == 0, low >> 32 == 0xFFFF else { return self }
    return SocketAddress(family: .ipv4, high: 0, low: low & 0xFFFF_FFFF, scope: 0, port: port)
  }

  /// The address that a connection to this one reaches: Linux connects to the loopback address in place of 0.0.0.0 or
  /// ::, and by IPv4 to ::ffff:192.0.2.1.
  package var connected: SocketAddress {
    let own = unmapped
    guard own.isAny else { return own }
    let loopback: UInt64 = own.family == .ipv4 ? 0x7F00_0001 : 1
    return SocketAddress(family: own.family, high: 0, low: loopback, scope: 0, port: port)
  }

  /// 0.0.0.0 or ::, which mean all addresses of this machine.
  package var isAny: Bool { high == 0 && low == 0 }

  /// 127.0.0.0/8 or ::1.
  package var isLoopback: Bool {
    let address = unmapped
    return address.family == .ipv4 ? address.low >> 24 == 127 : address.high == 0 && address.low == 1
  }

  /// Whether the first `bits` bits are the same. Addresses of different families share none.
  func shares(_ bits: Int, with other: SocketAddress) -> Bool {
    guard family == other.family else { return false }
    // IPv4 is in the low 32 bits.
    let before = family == .ipv4 ? 96 : 0
    let kept = { (number: UInt64, bits: Int) in bits <= 0 ? 0 : bits >= 64 ? number : number >> UInt64(64 - bits) }
    return kept(high, before + bits) == kept(other.high, before + bits)
      && kept(low, before + bits - 64) == kept(other.low, before + bits - 64)
  }

  /// The first address of the block with the same first `bits` bits.
  func first(of bits: Int) -> SocketAddress {
    let before = family == .ipv4 ? 96 : 0
    let kept = { (number: UInt64, bits: Int) in bits <= 0 ? 0 : bits >= 64 ? number : number & ~(.max >> UInt64(bits)) }
    return SocketAddress(
      family: family, high: kept(high, before + bits), low: kept(low, before + bits - 64), scope: scope, port: port)
  }

  // MARK: - For system calls

  /// Hands `body` the address in the form of bind(2) and connect(2); `body` must not keep the pointer.
  public func withSockaddr<Result>(_ body: (UnsafePointer<sockaddr>, socklen_t) throws -> Result) rethrows -> Result {
    switch family {
    case .ipv4:
      var v4 = sockaddr_in()
      v4.sin_family = sa_family_t(AF_INET)
      v4.sin_port = port.bigEndian
      v4.sin_addr.s_addr = UInt32(truncatingIfNeeded: low).bigEndian
      return try Self.lend(&v4, body)
    case .ipv6:
      var v6 = sockaddr_in6()
      v6.sin6_family = sa_family_t(AF_INET6)
      v6.sin6_port = port.bigEndian
      v6.sin6_scope_id = scope
      withUnsafeMutableBytes(of: &v6.sin6_addr) { bytes in
        bytes.storeBytes(of: high.bigEndian, as: UInt64.self)
        bytes.storeBytes(of: low.bigEndian, toByteOffset: 8, as: UInt64.self)
      }
      return try Self.lend(&v6, body)
    }
  }

  private static func lend<Address, Result>(
    _ address: inout Address, _ body: (UnsafePointer<sockaddr>, socklen_t) throws -> Result
  ) rethrows -> Result {
    try withUnsafePointer(to: &address) { pointer in
      try pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) {
        try body($0, socklen_t(MemoryLayout<Address>.size))
      }
    }
  }

  /// The address at the other end of a connected socket. Nil for another family; ENOTCONN if the peer is gone.
  package static func peer(of descriptor: Int32) throws(SystemError) -> SocketAddress? {
    try asked("getpeername") { getpeername(descriptor, $0, $1) }
  }

  /// The address that a socket is bound to; after a bind to port 0, with the port it got.
  package static func local(of descriptor: Int32) throws(SystemError) -> SocketAddress? {
    try asked("getsockname") { getsockname(descriptor, $0, $1) }
  }

  /// Whether a socket that was connected to `port` is connected to itself: nothing listened, and the kernel gave the
  /// socket that same port (RFC 9293 section 3.5, simultaneous open). The dialled address does not show this: 0.0.0.0
  /// leads to 127.0.0.1. `local` is the socket's own address.
  package static func isOwnPeer(_ descriptor: Int32, at local: SocketAddress?, dialled port: UInt16) -> Bool {
    // The local port alone decides in most cases.
    guard let local, local.port == port else { return false }
    return (try? peer(of: descriptor)) == local
  }

  /// The address that `call` fills in, for calls like accept(2). Throws if it returns less than zero.
  package static func asked(
    _ name: String, _ call: (UnsafeMutablePointer<sockaddr>, UnsafeMutablePointer<socklen_t>) -> Int32
  ) throws(SystemError) -> SocketAddress? {
    var storage = sockaddr_storage()
    var length = socklen_t(MemoryLayout<sockaddr_storage>.size)
    let answer = withUnsafeMutablePointer(to: &storage) { pointer in
      pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { call($0, &length) }
    }
    guard answer >= 0 else { throw SystemError(name) }
    return withUnsafePointer(to: &storage) { pointer in
      pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { SocketAddress($0, length: length) }
    }
  }
}

extension SocketAddress: CustomStringConvertible {
  /// The address alone, without brackets: "::1", "fe80::1%eth0".
  public var host: String {
    withUnsafeTemporaryAllocation(of: CChar.self, capacity: Int(INET6_ADDRSTRLEN) + Int(IF_NAMESIZE) + 1) { text in
      withSockaddr { address, length in
        _ = getnameinfo(
          address, length, text.baseAddress, socklen_t(text.count), nil, 0, Int32(NI_NUMERICHOST))
        return String(cString: text.baseAddress!)
      }
    }
  }

  /// "127.0.0.1:51234", "[::1]:4001"
  public var description: String { family == .ipv4 ? "\(host):\(port)" : "[\(host)]:\(port)" }
}
