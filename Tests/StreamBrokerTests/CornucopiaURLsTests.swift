// The URLs of CornucopiaStreams, our model on Apple systems: each URL of its README, of its tests, and of the other
// forms that its connectors accept. They are accepted unchanged where Linux has what they name.

import StreamBroker
import Testing

@Suite("A URL of CornucopiaStreams")
struct CornucopiaURLsTests {
  enum Answer: Sendable {
    /// The canonical URL, and what is ignored.
    case accepted(String, warnings: [String] = [])
    case refused(String)
  }

  static let deviceUUID =
    "a device UUID, as Apple systems generate them, is not valid here; 'baudway scan' shows the device's address"
  static let accessory =
    "ea does not work on Linux; use rfcomm://ADDRESS, ble://SERVICE/ADDRESS, or, for a device that speaks raw bytes at its "
    + "accessory service, rfcomm://ADDRESS?uuid=00000000-DECA-FADE-DECA-DEAFDECACAFF; 'baudway scan' lists nearby devices "
    + "with their URLs"

  static let readme: [(String, Answer)] = [
    ("tty:///dev/cu.serial-123456", .accepted("tty:///dev/cu.serial-123456")),
    ("tty://adapter:19200/dev/cu.serial-123456", .accepted("tty:///dev/cu.serial-123456?baud=19200")),
    ("tcp://192.168.0.10:35000", .accepted("tcp://192.168.0.10:35000")),
    ("ea://com.obdlink", .refused(accessory)),
    ("rfcomm://00:0a:3a:22:68:73", .accepted("rfcomm://00:0A:3A:22:68:73")),
    ("ble://FFF0", .accepted("ble://FFF0")),
    ("ble://FFF0/E32E4466-A24A-E46B-EE79-436569D6FC6D", .refused(deviceUUID)),
    ("ble://FFF0:128/E32E4466-A24A-E46B-EE79-436569D6FC6D", .refused(deviceUUID)),
  ]

  /// Its tests, its notes for contributors, and the parts that its README calls optional or ignored.
  static let others: [(String, Answer)] = [
    ("tty://adapter/dev/ttyUSB0", .accepted("tty:///dev/ttyUSB0")),
    ("tty://:9600/dev/ttyUSB0", .accepted("tty:///dev/ttyUSB0?baud=9600")),
    ("tcp://192.0.2.1:65000", .accepted("tcp://192.0.2.1:65000")),
    ("tcp://adapter.local:35000/", .accepted("tcp://adapter.local:35000")),
    (
      "tcp://192.168.0.10:35000/elm327",
      .accepted(
        "tcp://192.168.0.10:35000",
        warnings: ["tcp takes no path: '/elm327' is ignored; write tcp://192.168.0.10:35000"])
    ),
    ("tcp://192.168.0.10", .refused("needs a port, as in tcp://host:4001")),
    ("ea://com.example.protocol", .refused(accessory)),
    ("ea://com.obdlink:1/ignored", .refused(accessory)),
    ("rfcomm://00-11-22-33-44-55:1", .accepted("rfcomm://00:11:22:33:44:55:1")),
    ("rfcomm://00-11-22-33-44-55", .accepted("rfcomm://00:11:22:33:44:55")),
    (
      "rfcomm://00-11-22-33-44-55:1/ignored",
      .accepted(
        "rfcomm://00:11:22:33:44:55:1",
        warnings: ["rfcomm takes no path: '/ignored' is ignored; write rfcomm://00:11:22:33:44:55:1"])
    ),
    ("ble://DEAD", .accepted("ble://DEAD")), ("ble://fff0:128", .accepted("ble://FFF0:128")),
    (
      "ble://6e400001-b5a3-f393-e0a9-e50e24dcca9e",
      .accepted("ble://6E400001-B5A3-F393-E0A9-E50E24DCCA9E")
    ),
    (
      "ble://6e400001-b5a3-f393-e0a9-e50e24dcca9e:128",
      .accepted("ble://6E400001-B5A3-F393-E0A9-E50E24DCCA9E:128")
    ),
    // Ignored there, since it is not as long as a UUID. Here it would be the device's address.
    (
      "ble://FFF0/ignored",
      .refused("'ignored' is not a Bluetooth address; expected one such as 00:0A:3A:22:68:73")
    ),
  ]

  @Test("of its README is accepted, or gives an error with what to do", arguments: readme)
  func inReadme(text: String, answer: Answer) { check(text, answer) }

  @Test("that only its code or tests show is accepted, or gives an error with what to do", arguments: others)
  func elsewhere(text: String, answer: Answer) { check(text, answer) }

  private func check(_ text: String, _ answer: Answer) {
    let parsed = EndpointURL.parse(text)
    switch answer {
    case .accepted(let canonical, let warnings):
      #expect(parsed.url?.description == canonical && parsed.problems.isEmpty)
      #expect(parsed.url?.warnings.map(\.description) == warnings)
    case .refused(let message): #expect(parsed.problems.map(\.description) == [message])
    }
  }
}
