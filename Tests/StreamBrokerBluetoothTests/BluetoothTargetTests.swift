// What is said of a socket that does not connect.

import ByteStreams
import Glibc
import StreamBroker
import Testing

@testable import StreamBrokerBluetooth

@Suite("A Bluetooth socket that does not connect")
struct BluetoothTargetTests {
  @Test(
    "says what to do about it",
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

  @Test("says so of the service list, too")
  func sdp() {
    let target = BluetoothTarget(device: BluetoothAddress("00:AA:01:00:00:01")!, service: .sdp)
    #expect(target.advice(ECONNREFUSED)?.contains("give the channel, as in rfcomm://00:AA:01:00:00:01:1") == true)
  }
}
