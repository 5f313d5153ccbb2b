// A host whose callers may pair: when their bonds are loaded, and what is reported where no caller can pair.

import ByteStreams
import Glibc
import StreamBroker
import StreamTestKit
import Synchronization
import Testing

@testable import StreamBrokerBluetooth

extension BluetoothHostTests {
  @Test("loads the bonds before devices can connect, and continues without if that fails")
  func prepares() async throws {
    let machine = try Machine()
    machine.settings.withLock { $0 = 0x81 }  // on, not connectable
    let order = Recorded()
    let keeper = BondKeeper(
      path: "/nowhere/bonds",
      kernel: BondKeeper.Kernel {
        order.words.withLock { $0.append("prepared") }
        return .failure(OpenFailure("open", nil))
      } runsDaemon: { _ in
        nil
      }, via: .of("BluetoothHostTests.prepares")
    ) { _ in
    }
    try await onLane { lane in
      let host = host(machine, bonds: keeper, on: lane)
      let story = try open("?channel=3&security=medium", of: host, on: lane)
      try await onOwnThread {
        try machine.play(0, until: 7)
        order.words.withLock { $0.append("connectable") }
      }
      await story.wait(2, on: lane)
      #expect(order.words.withLock { $0 } == ["prepared", "connectable"])
      #expect(story.words[0] == "listens on 3" && story.words[1].contains("not possible here"))
      host.close(1)
    }
  }

  @Test("loads the bonds once, however often it tries to listen", .waits)
  func preparesOnce() async throws {
    let machine = try Machine()
    machine.refusal.withLock { $0 = OpenFailure("listen on channel 3", SystemError("bind", EADDRINUSE)) }
    let folder = try TemporaryFolder()
    let kernel = BondKeeperTests.Machine()
    let keeper = kernel.keeper(folder / "bonds")
    try await onLane { lane in
      let host = host(machine, bonds: keeper, on: lane)
      let story = try open("?channel=3", of: host, on: lane)
      for tries in 1...2 {
        try await onOwnThread { try machine.play(0, until: 4) }
        await story.wait(tries, on: lane)
      }
      #expect(story.words[0].contains("EADDRINUSE") && story.words[1] == "listens on 3")
      let loads = kernel.commands.withLock { $0.filter { $0 == ManagementCommand.Code.loadLinkKeys.rawValue } }
      #expect(loads.count == 1)
      host.close(1)
    }
  }

  private final class Recorded: Sendable {
    let words = Mutex<[String]>([])
  }
}
