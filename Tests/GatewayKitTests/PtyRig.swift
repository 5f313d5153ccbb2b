// A route with a pty listener, as programs see it.

import Glibc
import StreamBroker
@testable import StreamBrokerCore
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

/// A route from a port at `path` to `endpoint`. Nothing is left at `path` after it stops.
func servePty(
  _ endpoint: String, _ more: String = "", query: String = "", isFast: Bool = false,
  _ body: @escaping @Sendable (_ path: String, Story, LaneRef<Route>) throws -> Void
) async throws {
  let folder = try TemporaryFolder()
  let path = folder / "port"
  try await withRoute(routeConfig(more, listen: "pty://\(path)\(query)", endpoint: endpoint), isFast: isFast) {
    story, route in
    #expect(try story.bound() == "pty://\(path)")
    try body(path, story, route)
  }
  #expect(FileSystem.names(in: folder / "").isEmpty)
}

/// Polls `condition` for `Patience` at most, since no event reports what happens to the links. Blocks.
func until(sourceLocation: SourceLocation = #_sourceLocation, _ condition: () throws -> Bool) throws {
  for _ in 0..<Patience.milliseconds {
    if try condition() { return }
    usleep(1000)
  }
  try #require(Bool(false), "not within \(Patience.seconds) s", sourceLocation: sourceLocation)
}

/// The pty that the link at `path` leads to.
func node(of path: String) -> String? { FileSystem.target(of: path) }

/// Sends `byte` to `port`, and expects its endpoint to echo it.
func expectEcho(_ port: FarEnd, _ byte: UInt8 = 1, sourceLocation: SourceLocation = #_sourceLocation) throws {
  try port.send([byte])
  #expect(try port.receive(exactly: 1) == [byte], sourceLocation: sourceLocation)
}

/// Whether the gateway has hung up on the program that has `port` open.
func isHungUp(_ port: Int32) -> Bool {
  var one = pollfd(fd: port, events: 0, revents: 0)
  return poll(&one, 1, 0) > 0 && Int32(one.revents) & POLLHUP != 0
}
