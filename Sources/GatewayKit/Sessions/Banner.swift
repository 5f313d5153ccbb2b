// The text that a route's clients read before anything else: `clients.banner`, with its names and escapes filled in,
// and its lines ended for terminals.

import ByteStreams
import StreamBroker

struct Banner: Sendable {
  // The bytes around each `{client}`, with the other names filled in.
  private let pieces: [[UInt8]]

  /// `endpoint` is the URL with its secrets masked, since strangers read it.
  init(_ text: String, route: String, endpoint: String) {
    var pieces: [[UInt8]] = [[]]
    var rest = text[...]
    while !rest.isEmpty {
      // Names are replaced first and in one pass, so that braces in a name, a URL or an escape stay as they are.
      if let (name, value) = [("{route}", route), ("{endpoint}", endpoint)].first(where: { rest.hasPrefix($0.0) }) {
        pieces[pieces.count - 1] += value.utf8
        rest = rest.dropFirst(name.count)
      } else if rest.hasPrefix("{client}") {
        pieces.append([])
        rest = rest.dropFirst("{client}".count)
      } else {
        let literal = rest[..<(rest.dropFirst().firstIndex(of: "{") ?? rest.endIndex)]
        pieces[pieces.count - 1] += Escapes.bytes(of: String(literal)) ?? Array(literal.utf8)
        rest = rest[literal.endIndex...]
      }
    }
    self.pieces = pieces.map(Self.terminalLines)
  }

  /// CR, LF and CR LF become CR LF.
  private static func terminalLines(_ bytes: [UInt8]) -> [UInt8] {
    var lines: [UInt8] = []
    for (index, byte) in bytes.enumerated() {
      switch byte {
      case 0x0A where index > 0 && bytes[index - 1] == 0x0D: break
      case 0x0A, 0x0D: lines += [0x0D, 0x0A]
      default: lines.append(byte)
      }
    }
    return lines
  }

  func bytes(for client: AcceptedConnection.Label) -> [UInt8] {
    Array(pieces.joined(separator: (client.client ?? "a local client").utf8))
  }
}
