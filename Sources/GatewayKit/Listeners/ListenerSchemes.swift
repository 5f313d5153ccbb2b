// The schemes of listener URLs. To add one, add its line here and its folder beside this file.

import ByteStreams
import StreamBroker

package enum ListenerSchemes {
  static let table: [ListenerTraits] = [
    ListenerTraits(network("tcp", example: "tcp://127.0.0.1:4001"), .tcp) {
      // A tcp listener has a handshake if it requires a PROXY header.
      $0.hasHandshake ? HandshakeListener($0, $1) as any Listener : TCPListener($0, $1)
    },
    ListenerTraits(
      network("telnet", example: "telnet://:4002", raw), .tcp, usesTelnet: true, make: HandshakeListener.init),
    ListenerTraits(
      network("tls", example: "tls://:4003", serverName), .tcp, usesTLS: true, make: HandshakeListener.init),
    ListenerTraits(
      network("telnets", example: "telnets://:4004", serverName), .tcp, usesTLS: true, usesTelnet: true,
      make: HandshakeListener.init),
    ListenerTraits(
      network("ws", example: "ws://:8080/gps", path: .any, text), .tcp, usesWebSocket: true,
      make: HandshakeListener.init),
    ListenerTraits(
      network("wss", example: "wss://:8443/gps", path: .any, serverName, text), .tcp, usesTLS: true,
      usesWebSocket: true,
      make: HandshakeListener.init),
    ListenerTraits(UnixListener.grammar, .unix, make: UnixListener.init),
    ListenerTraits(PtyListener.grammar, .pty, make: PtyListener.init),
    ListenerTraits(RFCOMMListener.grammar, .rfcomm, make: RFCOMMListener.init),
  ]

  /// The schemes of the admin listener, which belongs to no route.
  static let admin: [ListenerTraits] = [
    ListenerTraits(web("http", example: "http://127.0.0.1:8080"), .tcp, isAdmin: true),
    ListenerTraits(web("https", example: "https://:8443", serverName), .tcp, usesTLS: true, isAdmin: true),
  ]

  package static let all: [SchemeGrammar] = table.map(\.grammar)

  /// The schemes that this build can listen on. The others are recognised and checked.
  package static let built = schemes { _ in true }

  private static let byScheme = Dictionary(uniqueKeysWithValues: (table + admin).map { ($0.scheme, $0) })

  /// Nil for a scheme that no listener has.
  static func traits(_ scheme: String) -> ListenerTraits? { byScheme[scheme] }

  /// The built schemes for which `isOne` is true.
  static func schemes(where isOne: (ListenerTraits) -> Bool) -> Set<String> {
    Set(table.filter { $0.make != nil && isOne($0) }.map(\.scheme))
  }

  /// The same as text: "tls, ws and wss".
  static func words(where isOne: (ListenerTraits) -> Bool) -> String {
    let names = table.filter { $0.make != nil && isOne($0) }.map(\.scheme)
    guard names.count > 1, let last = names.last else { return names.first ?? "" }
    return "\(names.dropLast().joined(separator: ", ")) and \(last)"
  }

  // MARK: - Grammar

  typealias Parameter = SchemeGrammar.Parameter

  /// The grammar of a scheme on TCP; port 0 lets the system choose one.
  private static func network(
    _ scheme: String, example: String, path: SchemeGrammar.Path = .none, _ more: Parameter...
  ) -> SchemeGrammar {
    SchemeGrammar(
      scheme, example: example, authority: .listening(ports: 0...65535), path: path, parameters: more + [role, proxy])
  }

  private static func web(_ scheme: String, example: String, _ more: Parameter...) -> SchemeGrammar {
    SchemeGrammar(
      scheme, example: example, authority: .listening(ports: 0...65535), parameters: more + [proxy])
  }

  static let role = Parameter(
    "role", .words(["writer", "monitor"]), standard: "writer", "the highest role of its clients")
  private static let proxy = Parameter(
    "proxy-protocol", .words(["off", "required"]), standard: "off",
    "read a PROXY header from the networks under 'proxies'")
  private static let raw = Parameter(
    "raw", .words(["off", "auto"]), standard: "off",
    "auto: serve clients that send no telnet command in their first 300 ms as raw TCP")
  private static let text = Parameter(
    "text", .flag, standard: "no", "send text messages to clients without a sub-protocol, invalid UTF-8 replaced")
  private static let serverName = Parameter(
    "server-name", .text, "the requested name (SNI) of its clients, where routes share a port")
  /// Parameters of a file that clients open.
  static let ownership = [
    Parameter("mode", .mode, standard: "0660", "permission bits"),
    Parameter("owner", .text, "the file's owner"),
    Parameter("group", .text, "the file's group"),
  ]
}
