// Clients in the handshake of a route with TLS, WebSocket, users or a proxy: their bytes and certificates.

import Glibc
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

/// Shared by the tests of a file: an authority, and certificates of a server and of users.
struct HandshakeRig: Sendable {
  let folder: TemporaryFolder
  let authority: TestAuthority
  static let token = "token-of-ada-0123"

  init() throws {
    folder = try TemporaryFolder()
    authority = try TestAuthority()
    try folder.write("ca.pem", authority.pem)
    try authority.write("server", .init("gw.test", names: "DNS:gw.test"), to: folder)
  }

  /// A route 'x' that echoes. `tls` is added to certificate and key; `route` and `top` are YAML as in the file.
  func config(
    _ listen: String, tls: String = "", endpoint: String = "sim://echo", route: String = "", top: String = ""
  ) throws -> Config.Route {
    let isSecure = listen.hasPrefix("tls:") || listen.hasPrefix("wss:")
    let own = "certificate: '\(folder / "server.pem")', key: '\(folder / "server.key")'"
    let items = [isSecure ? "tls: { \(([own] + (tls.isEmpty ? [] : [tls])).joined(separator: ", ")) }" : "", route]
    let file = """
      \(top)
      routes: { x: { \((["listen: '\(listen)', endpoint: '\(endpoint)'"] + items.filter { !$0.isEmpty }).joined(separator: ", ")) } }

      """
    return try #require(try ConfigFile.read(Array(file.utf8)).routes.first)
  }

  /// ada may write, and sends a token or certificate; bob has no role here.
  static let users = """
    users:
      ada: { token: \(token), certificate: ada }
      bob: { token: token-of-bob-0123, certificate: bob, roles: {} }
    """

  /// The TLS settings of a client; `user` names the certificate it sends.
  func manner(_ user: String? = nil, version: Int32? = nil, name: String? = "gw.test") throws -> TLSFarEnd.Manner {
    var manner = TLSFarEnd.Manner()
    manner.serverName = name
    if let version { manner.version = version...version }
    if let user {
      let issued = try authority.issue(.init(user))
      (manner.certificate, manner.key) = (issued.certificate, issued.key)
    }
    return manner
  }

  /// A client that has finished its handshake. Blocks.
  func connectTLS(_ address: SocketAddress, _ manner: TLSFarEnd.Manner) throws -> TLSFarEnd {
    let client = try TLSFarEnd(try connectTCP(address).take(), manner)
    try client.handshake()
    return client
  }
}

/// An upgrade request with `fields` beside the required ones.
func upgradeRequest(_ path: String = "/lab", host: String = "gw.test", _ fields: [String] = []) -> [UInt8] {
  let lines =
    [
      "GET \(path) HTTP/1.1", "Host: \(host)", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
      "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    ] + fields
  return Array((lines.joined(separator: "\r\n") + "\r\n\r\n").utf8)
}

/// A masked binary frame of few bytes.
func clientFrame(_ bytes: [UInt8]) -> [UInt8] { [0x82, 0x80 | UInt8(bytes.count), 0, 0, 0, 0] + bytes }

/// Waits until a pending connection has reached `step`. Blocks, ten seconds at most.
func waitForPending(_ step: String, at handshakeServer: LaneRef<HandshakeServer>) throws {
  let limit = monotonicNanoseconds() + Patience.nanoseconds
  while try !ask(handshakeServer, { $0.pendingConnections.values.contains { $0.step == step } }) {
    guard monotonicNanoseconds() < limit else { throw SystemError("waiting for a pending connection", ETIMEDOUT) }
    usleep(2000)
  }
}

/// Ends the handshakes of all pending connections, as their deadline does.
func expireHandshakes(at handshakeServer: LaneRef<HandshakeServer>) throws {
  try ask(handshakeServer) { handshakeServer in
    for pending in Array(handshakeServer.pendingConnections.values) { pending.timeIsOver(after: .seconds(10)) }
  }
}
