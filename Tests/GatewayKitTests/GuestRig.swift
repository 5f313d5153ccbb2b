// Clients who are being greeted, by their own bytes: at a route with TLS, WebSocket, users or a proxy before it.

import Glibc
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

/// What the tests of a file share: an authority, certificates of a server and of users.
struct GuestRig: Sendable {
  let folder: TemporaryFolder
  let authority: TestAuthority
  static let token = "token-of-ada-0123"

  init() throws {
    folder = try TemporaryFolder()
    authority = try TestAuthority()
    try folder.write("ca.pem", authority.pem)
    try authority.write("server", .init("gw.test", names: "DNS:gw.test"), to: folder)
  }

  /// A route 'x' that echoes. `tls` beside certificate and key, `route` and `top` as the file says it.
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

  /// ada writes and shows her token or certificate, bob has nothing to do here.
  static let users = """
    users:
      ada: { token: \(token), certificate: ada }
      bob: { token: token-of-bob-0123, certificate: bob, roles: {} }
    """

  /// How a client speaks; `user` names the certificate it shows.
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

  /// A client that has shaken hands. Blocks.
  func connectTLS(_ address: SocketAddress, _ manner: TLSFarEnd.Manner) throws -> TLSFarEnd {
    let client = try TLSFarEnd(try connectTCP(address).take(), manner)
    try client.handshake()
    return client
  }
}

/// A request to upgrade; with `fields` beside those that it takes.
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

/// Waits until a guest is asked for `step`. Blocks, ten seconds at most.
func waitForGuest(_ step: String, at reception: Resident<Reception>) throws {
  let limit = monotonicNanoseconds() + 10_000_000_000
  while try !ask(reception, { $0.guests.values.contains { $0.step == step } }) {
    guard monotonicNanoseconds() < limit else { throw SystemError("waiting for a guest", ETIMEDOUT) }
    usleep(2000)
  }
}

/// The deadline of all who are being greeted, now.
func endPatience(at reception: Resident<Reception>) throws {
  try ask(reception) { reception in
    for guest in Array(reception.guests.values) { guest.timeIsOver(after: .seconds(10)) }
  }
}
