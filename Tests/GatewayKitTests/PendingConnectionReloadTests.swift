import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A reload that asks more of TLS clients", .timeLimit(.minutes(5)))
struct PendingConnectionReloadTests {
  private let rig: HandshakeRig

  init() throws {
    rig = try HandshakeRig()
    try rig.folder.write("other.pem", try TestAuthority("Other").pem)
  }

  private func ask(_ auth: String, of file: String = "ca.pem", more: String = "") -> String {
    "client-ca: '\(rig.folder / file)', client-auth: \(auth)\(more)"
  }

  /// The old and the new requirement for certificates, and whether users with roles exist after the reload. `stay`:
  /// whether the client without a certificate, ada, and eve (not a user) keep their sessions.
  private static let changes: [(before: String?, after: String?, users: Bool, stay: [Bool])] = [
    (nil, "required", false, [false, false, false]),
    (nil, "optional", false, [true, true, true]),  // none was asked for a certificate, and none is required
    (nil, "optional", true, [false, false, false]),
    ("optional", "required", false, [false, true, true]),
    ("optional", "optional", true, [false, true, false]),
    ("optional", nil, false, [true, true, true]),
    ("optional", "other", false, [true, false, false]),
    ("optional", "crl", false, [true, false, false]),
    ("required", "optional", false, [false, true, true]),  // a client without a certificate was refused
  ]

  @Test("ends as 'denied' the sessions that it would not admit any more, and no others", arguments: changes.indices)
  func reload(index: Int) async throws {
    let (before, after, users, stay) = Self.changes[index]
    let (rig, listen) = (rig, "tls://127.0.0.1:0")
    let wanted =
      switch after {
      case "other": ask("optional", of: "other.pem")
      case "crl": ask("optional", more: ", crl: '\(rig.folder / "crl.pem")'")
      case let name?: ask(name)
      case nil: ""
      }
    let next = try rig.config(listen, tls: wanted, top: users ? HandshakeRig.users : "")
    try await withRoute(rig.config(listen, tls: before.map { ask($0) } ?? "")) { story, route in
      var clients: [TLSFarEnd] = []
      for user in [nil, "ada", "eve"] where before != "required" || user != nil {
        clients.append(try rig.connectTLS(story.address(), rig.manner(user)))
        _ = try story.sessions(atLeast: clients.count)
      }
      try update(route, next)
      for (client, stays) in zip(clients, stay.suffix(clients.count)) {
        guard stays else {
          #expect(try client.receive() == [])
          continue
        }
        try client.send([5])
        #expect(try client.receive(exactly: 1) == [5])
      }
      let gone = stay.suffix(clients.count).count { !$0 }
      #expect(try story.reports(atLeast: gone).map(\.ending.word) == Array(repeating: .denied, count: gone))
      for client in clients { client.close() }
    }
  }

  @Test("does the same with WebSocket clients")
  func webSocket() async throws {
    let (rig, listen) = (rig, "wss://127.0.0.1:0/lab")
    let next = try rig.config(listen, tls: ask("required"))
    try await withRoute(rig.config(listen)) { story, route in
      let client = try rig.connectTLS(story.address(), rig.manner())
      try client.send(upgradeRequest())
      _ = try client.receive()
      try update(route, next)
      let said = try client.receive()
      #expect(said.starts(with: [0x88]) && String(decoding: said.dropFirst(4), as: UTF8.self) == "denied")
      #expect(try story.reports(atLeast: 1)[0].ending.word == .denied)
      client.close()
    }
  }
}
