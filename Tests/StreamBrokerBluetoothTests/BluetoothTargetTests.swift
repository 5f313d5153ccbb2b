// The error messages of a socket that does not connect.

import ByteStreams
import Glibc
import StreamBroker
import Testing

@testable import StreamBrokerBluetooth

@Suite("A Bluetooth socket that does not connect")
struct BluetoothTargetTests {
  @Test(
    "explains what to do",
    arguments: [
      (EAFNOSUPPORT, "host's network"), (EHOSTUNREACH, "switched on"), (EHOSTDOWN, "out of range"),
      (ECONNREFUSED, "nothing listens on channel 3"), (EBUSY, "open already"), (EACCES, "bluetoothctl pair"),
      (ECONNRESET, "PIN"), (ETIMEDOUT, "out of range"),
    ])
  func advice(number: Int32, text: String) {
    let target = BluetoothTarget(device: BluetoothAddress("00:AA:01:00:00:01")!, service: .rfcomm(channel: 3))
    let failure = target.failure(SystemError("connect", number))
    #expect(failure.description.hasPrefix("connect to channel 3 of 00:AA:01:00:00:01: "))
    #expect(failure.advice?.contains(text) == true)
  }

  @Test("explains the same for the service list")
  func sdp() {
    let target = BluetoothTarget(device: BluetoothAddress("00:AA:01:00:00:01")!, service: .sdp)
    #expect(target.advice(ECONNREFUSED)?.contains("give the channel, as in rfcomm://00:AA:01:00:00:01:1") == true)
  }

  @Test("explains what to do about an adapter that can't pair")
  func cannotPair() {
    let device = LEAddress(address: BluetoothAddress([1, 2, 3, 4, 5, 6]), isRandom: true)
    let target = LETarget(device: device, psm: nil, adapter: BluetoothAddress([6, 5, 4, 3, 2, 1]))
    let failure = GATTExchange.Failure.broke(SystemError("setsockopt", EINVAL))
      .failure(GATTWish(service: BluetoothUUID(0xFFE0)), at: target)
    #expect(failure.description.contains("(EINVAL); the adapter can't pair"))
    #expect(failure.description.contains("switch it off"))
  }
}
