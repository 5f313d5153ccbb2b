// A device that connects to the gateway while the gateway connects to it: which of the two flows answers its pairing.
// The kernel is played.

import Dispatch
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import StreamBrokerBluetooth

extension BondKeeperTests {
  private final class Made: Opening {
    func cancel() {}
  }

  @Test("leaves pairing to an RFCOMM opening until that is given up")
  func openingOfRFCOMM() async throws {
    let (machine, adapter) = (machine, adapter)
    let keeper = machine.keeper(store.path)
    keeper.receive(at: [Keys.adapter])
    #expect(machine.hearsAnswer(of: keeper, at: adapter))
    let queue = DeviceQueue.of("BondKeeperTests.openingOfRFCOMM")
    queue.queue.suspend()  // it stays in its connect
    defer { queue.queue.resume() }
    let (parcel, kernel) = try GATTStreamTests.Device.pair()
    defer { kernel.hangUp() }
    try await onLane { lane in
      var link = BluetoothLinkSettings()
      link.bonds = keeper
      let plan = RFCOMMConnector.Plan(
        device: Keys.phone.address, channel: 3, uuid: BluetoothUUID(0x1101), link: link)
      let opening = RFCOMMOpening(plan, OpenRequest(), on: lane.poller, via: queue) { _, done in
        done(.success(parcel))
        return Made()
      } _: { _ in
        Issue.record("it is given up")
      }
      opening.start()
      #expect(await eventually { kernel.handle() == ManagementCommand.list.encoded })
      try kernel.say([1, 0, 0xFF, 0xFF, 7, 0, 3, 0, 0, 1, 0, 1, 0])
      #expect(await eventually { kernel.handle() == ManagementCommand.ask(1).encoded })
      let settings: [UInt8] = [0xFF, 0x0F, 0, 0]
      let information = [0, 0, 0, 1, 0xAA, 0, 9, 0xFF, 0xFF] + settings + settings + [0, 0, 0]
      try kernel.say([1, 0, 1, 0, UInt8(3 + information.count), 0, 4, 0, 0] + information)
      #expect(await eventually { !machine.hearsAnswer(of: keeper, at: adapter) })
      try kernel.say(Machine.event(0x0F, Keys.phone.encoded + [1, 0, 0, 0, 0]))
      #expect(await eventually { kernel.handle() == ManagementCommand.confirm(Keys.phone, 1).encoded })
      opening.cancel()
      #expect(machine.hearsAnswer(of: keeper, at: adapter))
    }
  }
}
