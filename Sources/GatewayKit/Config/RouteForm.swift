// Rewrites a route that was written as one text or as a list, for the message that reports it.

import StreamBroker

enum RouteForm {
  static let example = text("gps", listen: nil, endpoint: nil)

  /// A route of this name with the URLs found in `node`.
  static func text(_ name: String, of node: YAMLNode) -> String {
    var listen: String?
    var endpoint: String?
    for url in words(node) {
      guard let scheme = url.firstIndex(of: ":").map({ String(url[..<$0]) }) else { continue }
      let family = ListenerSchemes.traits(scheme)?.family
      if listen == nil, family == .tcp || family == .unix {
        listen = url
      } else if EndpointSchemes.grammar(scheme) != nil, endpoint == nil {
        endpoint = url
      }
    }
    return text(name, listen: listen, endpoint: endpoint)
  }

  /// Uses an example for each URL that is nil.
  static func text(_ name: String, listen: String?, endpoint: String?) -> String {
    let (listen, endpoint) = (listen ?? "tcp://:4001", endpoint ?? "tty:///dev/ttyUSB0?baud=115200")
    return "\(name): { listen: \"\(listen)\", endpoint: \"\(endpoint)\" }"
  }

  /// The words that a message may show: short ones, without possible secrets.
  private static func words(_ node: YAMLNode) -> [String] {
    let texts: [String] =
      switch node.content {
      case .scalar(let scalar): [scalar.text]
      case .sequence(let items):
        items.compactMap { if case .scalar(let scalar) = $0.content { scalar.text } else { nil } }
      case .mapping: []
      }
    let words = texts.prefix(8).flatMap { $0.split { $0 == " " || $0 == "," || $0 == "\n" } }.map(String.init)
    return words.filter { word in
      let isPlain = word.utf8.allSatisfy { byte in byte > 0x20 && byte < 0x7F && !misleading.contains(byte) }
      return isPlain && word.utf8.count <= 60 && !Suggestion.mayHoldSecret(word)
    }
  }

  /// Marks of quotes, variables, users and escapes.
  private static let misleading = Set("\"'$@\\".utf8)
}
