// The names of this machine, which web pages may use to reach it.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("The machine's names", .timeLimit(.minutes(5)))
struct MachineNamesTests {
  @Test(
    "are the host name, alone and with .local",
    arguments: [
      ("board", ["board", "board.local"]), ("gw.lab.example", ["gw.lab.example", "gw", "gw.local"]), ("", []),
      (".x", []),
    ])
  func names(host: String, names: [String]) { #expect(MachineNames.names(of: host) == names) }

  @Test("are looked up on another queue, one at a time")
  func lookUp() async throws {
    let lane = try Lane("names")
    defer { lane.stop() }
    let handshakeServer = LaneRef(on: lane) {
      HandshakeServer(on: $0.poller, status: StatusSink(), rates: ConnectRates())
    }
    try await onOwnThread {
      try ask(handshakeServer) { handshakeServer in
        handshakeServer.machineNames = ["gone.example"]
        for _ in 0..<3 { handshakeServer.renewMachineNames() }
        // The known names stay until the answer arrives.
        #expect(handshakeServer.machineNames == MachineNames.own + ["gone.example"])
      }
      let limit = monotonicNanoseconds() + Patience.nanoseconds
      while try ask(handshakeServer, { $0.machineNames.contains("gone.example") }) {
        try #require(monotonicNanoseconds() < limit)
      }
      #expect(try ask(handshakeServer) { $0.machineNames }.starts(with: MachineNames.own))
    }
    handshakeServer.evict()
  }
}
