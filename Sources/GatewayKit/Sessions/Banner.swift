// The text that each client of a route reads before anything else: `clients.banner`, its names filled in and its lines
// ended as terminals want them.

import ByteStreams

struct Banner: Sendable {
  // The text around each `{client}`, the rest filled in.
  private let pieces: [String]

  /// `endpoint` is for strangers' eyes: its secrets are masked.
  init(_ text: String, route: String, endpoint: String) {
    var pieces = [""]
    var rest = text[...]
    while let start = rest.firstIndex(of: "{") {
      pieces[pieces.count - 1] += rest[..<start]
      rest = rest[start...]
      // Once through, so that braces in a name or a URL stay what they are.
      if rest.hasPrefix("{route}") {
        pieces[pieces.count - 1] += route
        rest = rest.dropFirst("{route}".count)
      } else if rest.hasPrefix("{endpoint}") {
        pieces[pieces.count - 1] += endpoint
        rest = rest.dropFirst("{endpoint}".count)
      } else if rest.hasPrefix("{client}") {
        pieces.append("")
        rest = rest.dropFirst("{client}".count)
      } else {
        pieces[pieces.count - 1].append(rest.removeFirst())
      }
    }
    pieces[pieces.count - 1] += rest
    self.pieces = pieces.map(Self.terminalLines)
  }

  /// CR, LF and CR LF become CR LF.
  private static func terminalLines(_ text: String) -> String {
    var lines = ""
    for letter in text { if ["\r", "\n", "\r\n"].contains(letter) { lines += "\r\n" } else { lines.append(letter) } }
    return lines
  }

  func bytes(for client: Arrival.Label) -> [UInt8] {
    Array(pieces.joined(separator: client.client ?? "a local client").utf8)
  }
}
