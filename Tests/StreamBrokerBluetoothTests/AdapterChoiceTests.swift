// Which adapter is taken, and what is said where there is none to take.

import ByteStreams
import Glibc
import StreamBroker
import Testing

@testable import StreamBrokerBluetooth

@Suite("The choice of an adapter")
struct AdapterChoiceTests {
  private static let first = Adapter(name: "hci0", address: BluetoothAddress("00:AA:01:00:00:00")!, isOn: true)
  private static let second = Adapter(name: "hci1", address: BluetoothAddress("00:AA:01:00:00:01")!, isOn: false)

  @Test("is the kernel's unless one is asked for")
  func any() throws {
    #expect(try AdapterChoice(wanted: nil).choose(from: [Self.first, Self.second]) == nil)
    #expect(try AdapterChoice(wanted: "hci0").choose(from: [Self.first, Self.second]) == Self.first)
    #expect(try AdapterChoice(wanted: "00:aa:01:00:00:00").choose(from: [Self.second, Self.first]) == Self.first)
  }

  @Test(
    "says what is missing",
    arguments: [
      (nil, [], "has no Bluetooth adapter"), (nil, [second], "hci1 is off"), ("hci1", [first, second], "hci1 is off"),
      ("hci7", [first], "no adapter hci7; there is hci0 (00:AA:01:00:00:00)"),
    ] as [(String?, [Adapter], String)])
  func missing(wanted: String?, adapters: [Adapter], text: String) {
    let failure = #expect(throws: OpenFailure.self) { try AdapterChoice(wanted: wanted).choose(from: adapters) }
    #expect(failure?.cause?.errno == EHOSTUNREACH)
    #expect(failure?.advice?.contains(text) == true)
  }
}

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
