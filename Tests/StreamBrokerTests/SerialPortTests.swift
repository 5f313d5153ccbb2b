// The list of ports, in a test sysfs and procfs.

import ByteStreams
import Glibc
import StreamTestKit
import Testing

import StreamBroker
@testable import StreamBrokerCore

@Suite("The list of serial ports")
struct SerialPortTests {
  private func ports(of tree: USBTree) -> [SerialPort] {
    SerialPort.all(in: tree.ports, procfs: tree.folder / "proc")
  }

  @Test("names each port by its most lasting identity; a path only if nothing else is unique")
  func urls() throws {
    let tree = try USBTree()
    let dev = tree.folder / "dev"
    try tree.plug("ttyACM0", "1a86", "55d4", serial: "X Y", at: "1-1")
    try tree.plug("ttyUSB0", "0403", "6011", serial: "FT4", interface: 0, at: "1-2")
    try tree.plug("ttyUSB1", "0403", "6011", serial: "FT4", interface: 1, at: "1-2")
    try tree.plug("ttyUSB2", "1a86", "7523", at: "1-3")
    try tree.plug("ttyUSB3", "10c4", "ea60", at: "1-4")
    try tree.plug("ttyUSB10", "10c4", "ea60", at: "1-5")
    try tree.folder.write("dev/serial/by-path/x", "")
    symlink("../../ttyUSB10", tree.folder / "dev/serial/by-path/usb-1.5-port0")
    let listed = ports(of: tree)
    #expect(
      listed.map(\.node)
        == ["ttyS0", "ttyACM0", "ttyUSB0", "ttyUSB1", "ttyUSB2", "ttyUSB3", "ttyUSB10"].map { "\(dev)/\($0)" })
    #expect(
      listed.map(\.url) == [
        "tty://\(dev)/ttyS0", "tty://usb/1a86:55d4/X%20Y", "tty://usb/0403:6011/FT4/0", "tty://usb/0403:6011/FT4/1",
        "tty://usb/1a86:7523", "tty://\(dev)/ttyUSB3", "tty://\(dev)/serial/by-path/usb-1.5-port0",
      ])
    for port in listed where port.usb?.serial != nil {
      let identity = try #require(USBIdentity(path: EndpointURL(port.url).path))
      #expect(try tree.ports.find(identity) == port.node)
    }
  }

  @Test("shows the adapter's texts, udev's names, the program that holds the port, and what prevents opening it")
  func facts() throws {
    let tree = try USBTree()
    try tree.plug("ttyUSB0", "0403", "6001", serial: "A5", at: "1-1")
    let usb = "sys/devices/pci0000:00/usb1/1-1"
    try tree.folder.write("\(usb)/manufacturer", "FTDI\n")
    try tree.folder.write("\(usb)/product", "FT232R USB UART\n")
    try tree.folder.write("dev/serial/by-id/x", "")
    symlink("../../ttyUSB0", tree.folder / "dev/serial/by-id/usb-FTDI_A5-if00-port0")
    try tree.folder.write("dev/ttyUSB0", "")
    try tree.folder.write("proc/70/comm", "minicom\n")
    try tree.folder.write("proc/70/fd/x", "")
    symlink(tree.folder / "dev/ttyUSB0", tree.folder / "proc/70/fd/3")
    symlink(tree.folder / "dev/ttyUSB0", tree.folder / "proc/70/fd/4")
    try tree.folder.write("proc/71/fd/x", "")
    symlink("/dev/null", tree.folder / "proc/71/fd/0")
    let port = try #require(ports(of: tree).last)
    #expect(
      port.usb
        == SerialPort.USB(
          vendor: "0403", product: "6001", serial: "A5", interface: 0, manufacturer: "FTDI", name: "FT232R USB UART"))
    #expect(port.links == [tree.folder / "dev/serial/by-id/usb-FTDI_A5-if00-port0"])
    #expect(port.holders == [SerialPort.Holder(process: 70, program: "minicom")])
    #expect(port.obstacle == nil)
    #expect(ports(of: tree).first?.obstacle?.errno == ENOENT)
    // The open error stays the obstacle, whatever else is missing: this port has no name and no manufacturer.
    try tree.plug("ttyUSB1", "1a86", "7523", at: "1-2")
    symlink(tree.folder / "dev/loop", tree.folder / "dev/loop")
    symlink("loop", tree.folder / "dev/ttyUSB1")
    #expect(ports(of: tree).last?.obstacle?.errno == ELOOP)
  }

  @Test("leaves out driver entries without a UART, and those without a device")
  func places() throws {
    let tree = try USBTree()
    try tree.folder.write("sys/devices/platform/serial8250/tty/ttyS0/type", "0\n")
    try tree.folder.write("sys/class/tty/tty1/dev", "4:1\n")
    #expect(ports(of: tree).isEmpty)
    try tree.folder.write("sys/devices/platform/serial8250/tty/ttyS0/type", "4\n")
    #expect(ports(of: tree).map(\.url) == ["tty://\(tree.folder / "dev")/ttyS0"])
  }
}
