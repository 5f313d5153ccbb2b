// What this machine can answer by itself about names and addresses: its interfaces, localhost, the hosts file. Never
// asks a name server, so it never waits for one. May read a file: for queues, never for a lane.

import ByteStreams
import Glibc

package enum LocalNames {
  /// The hosts file, hosts(5).
  package static let hostsFile = "/etc/hosts"
  /// More is not read: lists against advertisements have some MiB.
  private static let most = 16 << 20

  /// The addresses of `name`, with port 0; nil if only the resolver can know.
  package static func addresses(of name: String, hosts: String = hostsFile) -> [SocketAddress]? {
    if let number = SocketAddress(numeric: name, port: 0) { return [number] }
    let wanted = Array(name.utf8.map(lowercase))
    let found = hostsEntries(of: wanted, in: hosts)
    if !found.isEmpty { return usable(found) }
    // RFC 6761 section 6.3.
    let label = wanted.last == UInt8(ascii: ".") ? wanted.dropLast() : wanted[...]
    let isLoopback = label.elementsEqual("localhost".utf8) || label.suffix(10).elementsEqual(".localhost".utf8)
    guard isLoopback else { return nil }
    return usable(["::1", "127.0.0.1"].compactMap { SocketAddress(numeric: $0, port: 0) })
  }

  /// Without the family that the machine has no address of, as AI_ADDRCONFIG of getaddrinfo(3); IPv6 first.
  private static func usable(_ found: [SocketAddress]) -> [SocketAddress] {
    let own = interfaces().filter { !$0.isLoopback }
    let families = Set(own.map(\.family))
    let kept = families.count == 1 ? found.filter { families.contains($0.family) } : found
    let sorted = kept.isEmpty ? found : kept
    return sorted.filter { $0.family == .ipv6 } + sorted.filter { $0.family == .ipv4 }
  }

  /// The addresses of this machine's interfaces, with port 0.
  package static func interfaces() -> [SocketAddress] {
    var list: UnsafeMutablePointer<ifaddrs>?
    guard getifaddrs(&list) == 0 else { return [] }
    defer { freeifaddrs(list) }
    var found: [SocketAddress] = []
    var entry = list
    while let one = entry?.pointee {
      entry = one.ifa_next
      guard let address = one.ifa_addr else { continue }
      let length =
        address.pointee.sa_family == AF_INET6 ? MemoryLayout<sockaddr_in6>.size : MemoryLayout<sockaddr_in>.size
      if let known = SocketAddress(address, length: socklen_t(length)) { found.append(known.with(port: 0)) }
    }
    return found
  }

  // MARK: - The hosts file

  private static func hostsEntries(of name: [UInt8], in file: String) -> [SocketAddress] {
    guard !name.isEmpty, let bytes = content(of: file) else { return [] }
    var found: [SocketAddress] = []
    for line in bytes.split(separator: UInt8(ascii: "\n")) {
      let text = line.prefix { $0 != UInt8(ascii: "#") }
      let words = text.split { $0 == UInt8(ascii: " ") || $0 == UInt8(ascii: "\t") || $0 == UInt8(ascii: "\r") }
      guard words.dropFirst().contains(where: { $0.lazy.map(lowercase).elementsEqual(name) }) else { continue }
      let number = String(decoding: words[0], as: UTF8.self)
      if let address = SocketAddress(numeric: number, port: 0), !found.contains(address) { found.append(address) }
    }
    return found
  }

  private static func content(of file: String) -> [UInt8]? {
    let raw = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)
    guard raw >= 0 else { return nil }
    let descriptor = Descriptor(owning: raw)
    var bytes: [UInt8] = []
    var piece = [UInt8](repeating: 0, count: 65536)
    while bytes.count < most {
      let count = read(descriptor.raw, &piece, piece.count)
      guard count > 0 else { return bytes }
      bytes += piece[..<count]
    }
    return bytes
  }

  private static func lowercase(_ byte: UInt8) -> UInt8 { byte &- 65 < 26 ? byte | 32 : byte }
}
