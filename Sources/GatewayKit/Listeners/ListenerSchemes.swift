// The schemes of listener URLs: where clients arrive. One table each, of the same kind as those of endpoints.
// To add a kind of listener, add its table here and its folder beside this file.

import ByteStreams
import StreamBroker

public enum ListenerSchemes {
  /// Those this build can listen on. The others are known and checked.
  public static let built: Set<String> = ["tcp", "tls", "ws", "wss", "unix", "pty", "rfcomm"]

  public static let all: [SchemeGrammar] = [
    network("tcp", example: "tcp://127.0.0.1:4001"),
    network("telnet", example: "telnet://:4002"),
    network("tls", example: "tls://:4003", serverName),
    network("telnets", example: "telnets://:4004", serverName),
    network("ws", example: "ws://:8080/gps", path: .any),
    network("wss", example: "wss://:8443/gps", path: .any, serverName),
    SchemeGrammar(
      "unix", example: "unix:///run/baudway/gps.sock?mode=0660", authority: .none, path: .file,
      parameters: ownership + [role],
      rules: [
        SchemeGrammar.Rule(nil) {
          $0.path.utf8.count > UnixAddress.mostBytes
            ? "the path of a socket has \(UnixAddress.mostBytes) bytes at most" : nil
        }
      ]),
    SchemeGrammar(
      "pty", example: "pty:///run/baudway/gps", authority: .none, path: .file, parameters: ownership + [role]),
    SchemeGrammar(
      "rfcomm", example: "rfcomm://?channel=3&name=gps", authority: .none,
      parameters: [
        Parameter("channel", .integer(1...30), "the server channel; else one that is free"),
        Parameter("name", .text, "the name of the service record; else the route's"),
        Parameter("uuid", .uuid, standard: "1101", "the class of the service record"),
        Parameter("adapter", .text, "the Bluetooth adapter, by name (hci0) or address; else all that are on"),
        Parameter("security", .words(["low", "medium", "high"]), "none, encrypted, or authenticated pairing"),
        Parameter("discoverable", .flag, standard: "no", "others find the adapter when they look around"),
        role,
      ],
      rules: [
        SchemeGrammar.Rule("name") {
          let count = $0.string("name")?.utf8.count ?? 1
          return count == 0 || count > longestName ? "the name of a service has 1 to \(longestName) bytes" : nil
        }
      ]),
  ]

  private typealias Parameter = SchemeGrammar.Parameter
  // So that a record stays small; phones show some thirty letters.
  private static let longestName = 200

  /// A port of the network; 0 lets the system choose one.
  private static func network(
    _ scheme: String, example: String, path: SchemeGrammar.Path = .none, _ more: Parameter...
  ) -> SchemeGrammar {
    SchemeGrammar(
      scheme, example: example, authority: .listening(ports: 0...65535), path: path, parameters: more + [role, proxy])
  }

  private static let role = Parameter(
    "role", .words(["writer", "monitor"]), standard: "writer", "the most its clients may do")
  private static let proxy = Parameter(
    "proxy-protocol", .words(["off", "required"]), standard: "off",
    "read a PROXY header from the networks under 'proxies'")
  private static let serverName = Parameter(
    "server-name", .text, "the name (SNI) that leads here, where routes share a port")
  private static let ownership = [
    Parameter("mode", .mode, standard: "0660", "permission bits"),
    Parameter("owner", .text, "user that owns it"),
    Parameter("group", .text, "group of it"),
  ]
}
