// The names of this machine: web pages may reach a WebSocket listener under these. The configuration can add others.

import Dispatch
import Glibc

enum MachineNames {
  /// A queue of its own: a resolver that does not answer blocks for seconds.
  static let queue = DispatchQueue(label: "baudway.names")

  /// The host name and the names derived from it: "gw" and "gw.local", and "gw.lab.example" if that is the host name.
  /// Does not block.
  static var own: [String] {
    var bytes = [CChar](repeating: 0, count: 256)
    guard gethostname(&bytes, bytes.count - 1) == 0 else { return [] }
    return names(of: String(decoding: bytes.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self))
  }

  static func names(of host: String) -> [String] {
    let label = String(host.prefix { $0 != "." })
    guard !label.isEmpty else { return [] }
    // RFC 6762 section 3: ".local" is the name on this network link without a DNS server.
    return label == host ? [host, "\(host).local"] : [host, label, "\(label).local"]
  }

  /// `own`, and the full name that the resolver has for the host name (hostname(1) -f). Blocks.
  static func lookUp() -> [String] {
    let own = own
    guard let host = own.first else { return [] }
    var hints = addrinfo()
    hints.ai_flags = AI_CANONNAME
    var found: UnsafeMutablePointer<addrinfo>?
    guard getaddrinfo(host, nil, &hints, &found) == 0, let found else { return own }
    defer { freeaddrinfo(found) }
    guard let name = found.pointee.ai_canonname.map({ String(cString: $0) }), !name.isEmpty, !own.contains(name) else {
      return own
    }
    return own + [name]
  }
}
