// What this machine is called, for pages that come by its name.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("The machine's names", .timeLimit(.minutes(1)))
struct MachineNamesTests {
  @Test(
    "are the host name, alone and with .local",
    arguments: [
      ("board", ["board", "board.local"]), ("gw.lab.example", ["gw.lab.example", "gw", "gw.local"]), ("", []),
      (".x", []),
    ])
  func names(host: String, names: [String]) { #expect(MachineNames.names(of: host) == names) }

  @Test("are looked up beside the lane, and one at a time")
  func lookUp() async throws {
    let lane = try Lane("names")
    defer { lane.stop() }
    let reception = Resident(on: lane) { Reception(on: $0.poller, status: StatusSink(), rates: ConnectRates()) }
    try await onOwnThread {
      try ask(reception) { reception in
        reception.machineNames = ["gone.example"]
        for _ in 0..<3 { reception.renewMachineNames() }
        // What was known holds until the answer is there.
        #expect(reception.machineNames == MachineNames.own + ["gone.example"])
      }
      let limit = monotonicNanoseconds() + 30_000_000_000
      while try ask(reception, { $0.machineNames.contains("gone.example") }) {
        try #require(monotonicNanoseconds() < limit)
      }
      #expect(try ask(reception) { $0.machineNames }.starts(with: MachineNames.own))
    }
    reception.evict()
  }
}
