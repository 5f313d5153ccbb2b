// The control socket from both sides.

import CLinux
import Glibc
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A control socket", .timeLimit(.minutes(1)))
struct ControlTests {
  private static func path(_ name: String) -> String {
    "/tmp/baudway-control-\(getpid())-\(name).sock"
  }

  private static let healthy = #"{"healthy":true}"#
  private static let unknown = #"{"error":"unknown request"}"#

  private static func ask(_ request: String, _ address: ControlAddress) throws -> String {
    try ControlClient.ask(request, at: address)
  }

  /// Serves at `address` while `body`, which may block, asks.
  private func serve(_ address: ControlAddress, _ body: @escaping @Sendable () throws -> Void) async throws {
    try await onLane { lane in
      let server = ControlServer(address, on: lane.poller) { request in request == "health" ? Self.healthy : nil }
      try server.start()
      let result: Result<Void, any Error>
      do {
        try await onOwnThread(body)
        result = .success(())
      } catch {
        result = .failure(error)
      }
      server.stop()
      try result.get()
    }
  }

  @Test(
    "answers what it knows, and says so of the rest",
    arguments: [ControlAddress.path(path("answers")), .abstract("baudway-test-\(getpid())")])
  func answers(address: ControlAddress) async throws {
    try await serve(address) { () throws in
      for _ in 0..<3 { #expect(try Self.ask("health", address) == Self.healthy) }
      #expect(try Self.ask("make coffee", address) == Self.unknown)
    }
    #expect(throws: SystemError.self) { try ControlClient.ask("health", at: address) }
    #expect(access(address.description, F_OK) != 0)
  }

  @Test("ends a request that is too long or never ends, and goes on answering others")
  func hostile() async throws {
    let address = ControlAddress.path(Self.path("hostile"))
    try await serve(address) {
      let long = try Self.connect(address)
      try long.send([UInt8](repeating: 65, count: 1025))
      #expect(try long.receiveToEnd().isEmpty)
      let silent = try (0..<16).map { _ in try Self.connect(address) }
      #expect(throws: SystemError.self, "sixteen talk already") { try Self.ask("health", address) }
      let before = monotonicNanoseconds()
      for one in silent { #expect(try one.receiveToEnd().isEmpty) }
      #expect(monotonicNanoseconds() - before < 10_000_000_000)
      #expect(try Self.ask("health", address) == Self.healthy)
    }
  }

  @Test("takes the place of a file that a crash left, of nothing else")
  func stale() async throws {
    let path = Self.path("stale")
    let address = ControlAddress.path(path)
    // A crash: bound and never unlinked.
    let left = Descriptor(owning: socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0))
    let raw = left.raw
    let answer = try address.withSockaddr { bind(raw, $0, $1) }
    #expect(answer == 0)
    _ = consume left
    try await serve(address) { () throws in
      #expect(try Self.ask("health", address) == Self.healthy)
    }
    Glibc.close(open(path, O_CREAT | O_WRONLY, 0o600))
    await #expect(throws: SystemError("bind", EADDRINUSE)) { try await serve(address) {} }
    #expect(access(path, F_OK) == 0)
    unlink(path)
  }

  @Test("leaves another gateway's socket alone, also when it stops")
  func live() async throws {
    let address = ControlAddress.path(Self.path("live"))
    try await serve(address) {
      let poller = try Poller { _ in }
      let second = ControlServer(address, on: poller) { _ in nil }
      #expect(throws: SystemError("bind", EADDRINUSE)) { try second.start() }
      second.stop()
      #expect(try Self.ask("health", address) == Self.healthy)
    }
  }

  @Test("answers its own user and root, and nobody else", .enabled(if: geteuid() == 0))
  func otherUser() async {
    await #expect(processExitsWith: .success) {
      let poller = try Poller { _ in }
      let address = ControlAddress.abstract("baudway-test-user-\(getpid())")
      let server = ControlServer(address, on: poller) { _ in "yes" }
      try server.start()
      // The kernel notes who connects when he does.
      try #require(seteuid(65534) == 0)
      let stranger = try ControlTests.connect(address)
      try #require(seteuid(0) == 0)
      let own = try ControlTests.connect(address)
      for client in [stranger, own] { try? client.send(Array("x\n".utf8)) }
      for _ in 0..<10 { _ = poller.turn(waiting: 10) }
      try #require(try own.receiveToEnd() == Array("yes\n".utf8))
      try #require(((try? stranger.receiveToEnd()) ?? []).isEmpty)
      server.stop()
    }
  }

  @Test("says that a path is too long for one")
  func longPath() throws {
    let address = ControlAddress.path("/tmp/" + String(repeating: "x", count: 200))
    #expect(throws: SystemError("bind", ENAMETOOLONG)) { try ControlClient.ask("health", at: address) }
  }

  private static func connect(_ address: ControlAddress) throws -> FarEnd {
    let raw = linux_socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0)
    let socket = Descriptor(owning: raw)
    guard try address.withSockaddr({ Glibc.connect(raw, $0, $1) }) == 0 else { throw SystemError("connect") }
    return FarEnd(socket, isSocket: true)
  }
}
