import ByteStreams
import Glibc
import StreamBrokerBluetooth
import Testing

@testable import GatewayKit
import StreamBroker
@testable import StreamBrokerCore

@Suite("The list of devices")
struct DeviceListTests {
  private func port(
    _ url: String, links: [String] = [], usb: SerialPort.USB? = nil, holders: [SerialPort.Holder] = [],
    obstacle: Int32? = nil
  ) -> SerialPort {
    SerialPort(
      node: "/dev/ttyUSB0", url: url, links: links, usb: usb, driver: "ftdi_sio", holders: holders,
      obstacle: obstacle.map { SystemError("access", $0) })
  }

  private let usb = SerialPort.USB(
    vendor: "0403", product: "6001", serial: "A5", interface: 0, manufacturer: "FT\u{1b}[2J", name: "UART")

  @Test("shows URLs to paste, descriptions and holding programs, without control characters")
  func lines() {
    let list = DeviceList(
      ports: [
        port(
          "tty://usb/0403:6001/A5", links: ["/dev/serial/by-id/x"], usb: usb,
          holders: [.init(process: 7, program: "minicom"), .init(process: 8, program: nil)]),
        port("tty:///dev/serial/by-path/y", links: ["/dev/serial/by-path/y"], obstacle: EACCES),
      ], adapters: .failure(SystemError("socket", EAFNOSUPPORT)))
    #expect(
      list.lines(hasColours: false) == [
        "SERIAL PORT                  NODE          WHAT IT IS   HELD BY",
        "tty://usb/0403:6001/A5       /dev/ttyUSB0  FT?[2J UART  minicom (7), a program (8)",
        "  /dev/serial/by-id/x",
        "tty:///dev/serial/by-path/y  /dev/ttyUSB0  ftdi_sio     -",
        "  this user may not open it; members of the node's group may, mostly 'dialout'",
        "",
        "No Bluetooth: the kernel does not support it, or this container or unit may not use it (AF_BLUETOOTH).",
      ])
  }

  @Test("reports that there are no devices")
  func nothing() {
    let list = DeviceList(ports: [], adapters: .success([]))
    #expect(list.lines(hasColours: true) == ["No serial ports.", "", "No Bluetooth adapters."])
    #expect(list.json == #"{"serial":[],"bluetooth":[]}"#)
  }

  @Test("is a JSON object without unknown values")
  func json() {
    let list = DeviceList(
      ports: [port("tty://usb/0403:6001/A5", usb: usb, holders: [.init(process: 7, program: "x")])],
      adapters: .failure(SystemError("socket", EPERM)))
    #expect(
      list.json
        == #"{"serial":[{"url":"tty://usb/0403:6001/A5","node":"/dev/ttyUSB0","links":[],"usb":{"vendor":"0403","product":"6001","#
        + #""serial":"A5","interface":0,"manufacturer":"FT\u001b[2J","name":"UART"},"driver":"ftdi_sio","#
        + #""held-by":[{"pid":7,"program":"x"}]}],"bluetooth":[],"bluetooth-error":"\#(SystemError("socket", EPERM))"}"#
    )
  }
}
