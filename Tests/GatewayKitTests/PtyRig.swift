// A route with a pty listener, and what programs see of it.

import Glibc
@testable import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

/// A route that leads from a port at `path` to `endpoint`. Nothing is left at `path` when it has stopped.
func servePty(
  _ endpoint: String, _ more: String = "", query: String = "",
  _ body: @escaping @Sendable (_ path: String, Story, Resident<Route>) throws -> Void
) async throws {
  let folder = try TemporaryFolder()
  let path = folder / "port"
  try await withRoute(routeConfig(more, listen: "pty://\(path)\(query)", endpoint: endpoint)) { story, route in
    #expect(try story.bound() == "pty://\(path)")
    try body(path, story, route)
  }
  #expect(FileSystem.names(in: folder / "").isEmpty)
}

/// Asks again and again, for ten seconds: the kernel tells nobody of links. Blocks.
func until(sourceLocation: SourceLocation = #_sourceLocation, _ condition: () -> Bool) throws {
  for _ in 0..<10_000 {
    if condition() { return }
    usleep(1000)
  }
  try #require(Bool(false), "not within ten seconds", sourceLocation: sourceLocation)
}

/// The pty that the link at `path` leads to.
func node(of path: String) -> String? { FileSystem.target(of: path) }

/// Has `port`'s endpoint say `byte` back.
func expectEcho(_ port: FarEnd, _ byte: UInt8 = 1, sourceLocation: SourceLocation = #_sourceLocation) throws {
  try port.send([byte])
  #expect(try port.receive(exactly: 1) == [byte], sourceLocation: sourceLocation)
}

/// Whether the gateway has hung up on whoever has `port` open.
func isHungUp(_ port: Int32) -> Bool {
  var one = pollfd(fd: port, events: 0, revents: 0)
  return poll(&one, 1, 0) > 0 && Int32(one.revents) & POLLHUP != 0
}
