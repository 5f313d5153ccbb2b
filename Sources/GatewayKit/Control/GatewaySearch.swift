// Finds the gateways that run on this machine, for commands that were not told which one they are for.

import ByteStreams
import Glibc
import StreamBroker
import StreamBrokerCore

/// A gateway that listens on its control socket.
package struct FoundGateway: Hashable, Sendable {
  package let address: ControlAddress
  /// Zero if the kernel does not tell: it runs in another PID namespace, or its socket refused us.
  package let process: pid_t
  /// Whether this user may ask it.
  package let admits: Bool

  /// How it was started, with spaces between the words; empty if that is unknown.
  package var commandLine: String {
    guard process > 0, let words = try? FileBytes.read("/proc/\(process)/cmdline", limit: 4096) else { return "" }
    let text = String(decoding: words.map { $0 == 0 ? UInt8(ascii: " ") : $0 }, as: UTF8.self)
    let shown = text.unicodeScalars.map { Suggestion.isControl($0) ? $0.escaped(asASCII: true) : String($0) }.joined()
    return String(shown.reversed().drop { $0 == " " }.reversed())
  }
}

package enum GatewaySearch {
  /// Those with a control socket or a link to one in the runtime folder, and those with an abstract one. Where
  /// RUNTIME_DIRECTORY is set, only those in that folder.
  package static func all(environment: [String: String]) -> [FoundGateway] {
    let given = environment["RUNTIME_DIRECTORY"]?.split(separator: ":").first.map(String.init)
    let folder = given ?? "/run/baudway"
    // Listeners can be in that folder, too.
    let paths = ControlAddress.names(in: folder).filter(ControlAddress.isOfControl).sorted()
    let abstract = given == nil ? abstractNames(sockets()) : []
    let addresses = paths.map { ControlAddress.path("\(folder)/\($0)") } + abstract.map { .abstract($0) }
    // A gateway with a socket and a link to it is one gateway.
    var found: [FoundGateway] = []
    for case let one? in addresses.map(gateway) {
      if one.process == 0 || !found.contains(where: { $0.process == one.process }) { found.append(one) }
    }
    return found
  }

  private static func sockets() -> String {
    String(decoding: (try? FileBytes.read("/proc/net/unix", limit: 16 << 20)) ?? [], as: UTF8.self)
  }

  /// The names of sockets that listen and are a gateway's, in text of the form of /proc/net/unix (proc(5)): after a
  /// line of titles, each line has the flags as fourth word and an abstract name, with `@` for its NUL, as the last.
  static func abstractNames(_ text: String) -> [String] {
    let acceptsConnections: UInt32 = 1 << 16
    let names = text.split(separator: "\n").dropFirst().compactMap { line -> String? in
      let words = line.split(separator: " ", maxSplits: 7, omittingEmptySubsequences: true)
      guard words.count == 8, let flags = UInt32(words[3], radix: 16), flags & acceptsConnections != 0,
        words[7].first == "@"
      else { return nil }
      let name = String(words[7].dropFirst())
      return ControlAddress.abstract(name).owner == nil ? nil : name
    }
    return Set(names).sorted()
  }

  /// Nil if nothing listens there, or another user pretends to be a gateway.
  private static func gateway(at address: ControlAddress) -> FoundGateway? {
    do throws(SystemError) {
      let peer = try ControlClient.peer(at: address)
      return FoundGateway(address: address, process: peer, admits: true)
    } catch {
      return error.errno == EACCES ? FoundGateway(address: address, process: 0, admits: false) : nil
    }
  }
}
