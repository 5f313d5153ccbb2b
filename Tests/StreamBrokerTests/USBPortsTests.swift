// Finding a port by its USB adapter's identity, in a test sysfs with the kernel's layout.

import ByteStreams
import Glibc
import StreamTestKit
import Testing

import StreamBroker
@testable import StreamBrokerCore

/// A machine with USB adapters.
struct USBTree {
  let folder: TemporaryFolder
  var ports: USBPorts { USBPorts(sysfs: folder / "sys", dev: folder / "dev") }

  init() throws {
    folder = try TemporaryFolder()
    try folder.write("dev/null", "")
    try plainPort("ttyS0")
  }

  /// ttyUSB: `device` is a port of the driver, below the interface. ttyACM: `device` is the interface itself.
  func plug(
    _ name: String, _ vendor: String, _ product: String, serial: String? = nil, interface: Int = 0, at socket: String
  ) throws {
    let usb = "sys/devices/pci0000:00/usb1/\(socket)"
    let hex = interface < 16 ? "0\(String(interface, radix: 16))" : String(interface, radix: 16)
    let interfaceFolder = "\(usb)/\(socket):1.\(interface)"
    try folder.write("sys/devices/pci0000:00/usb1/idVendor", "1d6b\n")  // the hub it is plugged into
    try folder.write("sys/devices/pci0000:00/usb1/idProduct", "0002\n")
    try folder.write("\(usb)/idVendor", "\(vendor)\n")
    try folder.write("\(usb)/idProduct", "\(product)\n")
    if let serial { try folder.write("\(usb)/serial", "\(serial)\n") }
    try folder.write("\(interfaceFolder)/bInterfaceNumber", "\(hex)\n")
    let device = name.hasPrefix("ttyUSB") ? "\(interfaceFolder)/\(name)" : interfaceFolder
    try folder.write("\(device)/tty/\(name)/dev", "188:0\n")
    symlink(
      name.hasPrefix("ttyUSB") ? "../../../\(name)" : "../../../\(socket):1.\(interface)",
      folder / "\(device)/tty/\(name)/device")
    symlink("../../\(device.dropFirst(4))/tty/\(name)", folder / "sys/class/tty/\(name)")
  }

  func unplug(_ name: String) { unlink(folder / "sys/class/tty/\(name)") }

  private func plainPort(_ name: String) throws {
    try folder.write("sys/devices/platform/serial8250/tty/\(name)/dev", "4:64\n")
    symlink("../../../serial8250", folder / "sys/devices/platform/serial8250/tty/\(name)/device")
    try folder.write("sys/class/tty/x", "")
    symlink("../../devices/platform/serial8250/tty/\(name)", folder / "sys/class/tty/\(name)")
  }
}

@Suite("A port found by USB identity")
struct USBPortsTests {
  private func identity(_ text: String) throws -> USBIdentity {
    try #require(USBIdentity(path: EndpointURL("tty://usb/\(text)").path))
  }

  @Test(
    "is the one with this vendor, product, serial number and interface",
    arguments: [
      ("0403:6001", "ttyUSB3"), ("0403:6001/A50285BI", "ttyUSB3"), ("1A86:55D4/X", "ttyACM0"),
      ("0403:6011/FT4/0", "ttyUSB0"), ("0403:6011/FT4/1", "ttyUSB1"), ("0403:6011/FT4/10", "ttyUSB2"),
      ("10c4:ea60/00%2F1%25%20x", "ttyUSB10"),
    ])
  func found(text: String, name: String) throws {
    let tree = try USBTree()
    try tree.plug("ttyUSB3", "0403", "6001", serial: "A50285BI", at: "1-1")
    try tree.plug("ttyACM0", "1a86", "55d4", serial: "X", at: "1-2")
    for (number, interface) in [(0, 0), (1, 1), (2, 10)] {
      try tree.plug("ttyUSB\(number)", "0403", "6011", serial: "FT4", interface: interface, at: "1-3")
    }
    try tree.plug("ttyUSB10", "10c4", "ea60", serial: "00/1% x", at: "1-4")
    #expect(try tree.ports.find(identity(text)) == tree.folder / "dev/\(name)")
  }

  @Test("is waited for while it is absent", arguments: ["0403:6001", "1d6b:0002", "0403:6001/B", "0403:6015/A"])
  func absent(text: String) throws {
    let tree = try USBTree()
    try tree.plug("ttyUSB0", "0403", "6015", serial: "B", at: "1-1")
    let failure = #expect(throws: OpenFailure.self) { try tree.ports.find(identity(text)) }
    #expect(failure?.cause?.errno == ENOENT && failure?.description.hasPrefix("find tty://usb/\(text): ") == true)
  }

  @Test("is found again under another number")
  func again() throws {
    let tree = try USBTree()
    try tree.plug("ttyUSB0", "0403", "6001", serial: "A", at: "1-1")
    #expect(try tree.ports.find(identity("0403:6001/A")) == tree.folder / "dev/ttyUSB0")
    tree.unplug("ttyUSB0")
    try tree.plug("ttyUSB1", "0403", "6001", serial: "A", at: "1-3")
    #expect(try tree.ports.find(identity("0403:6001/A")) == tree.folder / "dev/ttyUSB1")
  }

  @Test("is named in a list to copy from when several match")
  func several() throws {
    let tree = try USBTree()
    try tree.plug("ttyUSB0", "0403", "6001", serial: "A 1", at: "1-1")
    try tree.plug("ttyUSB1", "0403", "6001", serial: "FT2", interface: 0, at: "1-2")
    try tree.plug("ttyUSB2", "0403", "6001", serial: "FT2", interface: 1, at: "1-2")
    try tree.plug("ttyUSB10", "0403", "6001", at: "1-3")
    try tree.plug("ttyUSB11", "0403", "6001", at: "1-4")
    try tree.folder.write("dev/serial/by-path/x", "")
    symlink("../../ttyUSB11", tree.folder / "dev/serial/by-path/usb-1.4-port0")
    let failure = #expect(throws: OpenFailure.self) { try tree.ports.find(identity("0403:6001")) }
    let dev = tree.folder / "dev"
    #expect(
      failure?.advice == "5 ports match it; use tty://usb/0403:6001/A%201, tty://usb/0403:6001/FT2/0, "
        + "tty://usb/0403:6001/FT2/1, tty://\(dev)/ttyUSB10 or tty://\(dev)/serial/by-path/usb-1.4-port0")
    for name in ["0403:6001/A%201", "0403:6001/FT2/0", "0403:6001/FT2/1"] {
      #expect(throws: Never.self) { try tree.ports.find(identity(name)) }
    }
  }

  @Test("is the same device as its path, and waits for any tty to appear")
  func connector() throws {
    let tree = try USBTree()
    try tree.plug("ttyUSB0", "0403", "6001", serial: "A", at: "1-1")
    try tree.folder.write("dev/ttyUSB0", "")
    let byIdentity = TTYConnector(try EndpointURL("tty://usb/0403:6001"), usb: tree.ports)
    #expect(byIdentity.realDevice == "tty://\(tree.folder / "dev/ttyUSB0")")
    #expect(try byIdentity.realDevice == TTYConnector(EndpointURL("tty://\(tree.folder / "dev/ttyUSB0")")).realDevice)
    #expect(byIdentity.node == tree.folder / "dev/tty*")
    tree.unplug("ttyUSB0")
    #expect(byIdentity.realDevice == nil)
  }
}

@Suite("A port found by USB identity, on a lane", .timeLimit(.minutes(5)))
struct USBOpenTests {
  @Test("is found again at each opening, and reported when it appears under any number")
  func reopened() async throws {
    let tree = try USBTree()
    let connector = TTYConnector(try EndpointURL("tty://usb/0403:6001/A"), usb: tree.ports, locks: nil)
    try await onLane { lane in
      for number in 0..<3 {
        let pair = try TTYPair()
        let news = Gate()
        let watch = NodeWatch(path: connector.node!, on: lane.poller, changed: { news.open() })
        try tree.plug("ttyUSB\(number)", "0403", "6001", serial: "A", at: "1-\(number)")
        #expect(symlink(pair.path, tree.folder / "dev/ttyUSB\(number)") == 0)
        await news.wait(on: lane)
        watch.cancel()
        let opened = Gate()
        var result: Result<any ByteStream, OpenFailure>?
        _ = connector.open(OpenRequest(discardsInput: false), on: lane.poller) {
          result = $0
          opened.open()
        }
        await opened.wait(on: lane)
        let stream = try #require(try result?.get())
        try await stream.writeAll([UInt8(number)], on: lane)
        #expect(pair.receive(1) == [UInt8(number)])
        stream.close()
        tree.unplug("ttyUSB\(number)")
        unlink(tree.folder / "dev/ttyUSB\(number)")
      }
    }
  }

  @Test("has its adapter's texts; other ports have none")
  func facts() throws {
    let tree = try USBTree()
    try tree.plug("ttyUSB0", "0403", "6001", serial: "A5 ", at: "1-1")
    try tree.folder.write("sys/devices/pci0000:00/usb1/1-1/manufacturer", "FTDI\n")
    try tree.folder.write("sys/devices/pci0000:00/usb1/1-1/product", "FT232R USB UART\n")
    for name in ["ttyUSB0", "ttyS0"] { try tree.folder.write("dev/\(name)", "") }
    symlink("ttyUSB0", tree.folder / "dev/gps")
    let facts = tree.ports.facts(of: tree.folder / "dev/gps")
    #expect(facts.manufacturer == "FTDI" && facts.model == "FT232R USB UART" && facts.serialNumber == "A5")
    #expect(facts.name == nil && facts.mtu == nil)
    #expect(tree.ports.facts(of: tree.folder / "dev/ttyS0").isEmpty)
    #expect(tree.ports.facts(of: tree.folder / "dev/none").isEmpty)
  }
}
