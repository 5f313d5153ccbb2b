// The serial ports of this machine, for people who look for theirs: how to write each in a configuration, and who has it.
// Reads sysfs and procfs, so it blocks: for a command line, or a queue.

import ByteStreams
import Glibc

/// A serial port with hardware behind it.
public struct SerialPort: Hashable, Sendable {
  /// "/dev/ttyUSB0"
  public let node: String
  /// The URL by which it is found again after a restart, and under another number if that can be: to be pasted.
  public let url: String
  /// udev's links to it: "/dev/serial/by-id/…", "/dev/serial/by-path/…".
  public let links: [String]
  public let usb: USB?
  /// The driver's name, as the kernel has it.
  public let driver: String?
  /// Those who have it open. Processes of others show themselves to root only.
  public let holders: [Holder]
  /// What keeps this process from opening it; nil when nothing does that can be seen from outside.
  public let obstacle: SystemError?

  /// What a USB adapter says of itself. Texts are the device's own: they may hold anything.
  public struct USB: Hashable, Sendable {
    /// Four hexadecimal digits in lower case.
    public let vendor: String
    public let product: String
    public let serial: String?
    /// bInterfaceNumber.
    public let interface: Int?
    public let manufacturer: String?
    public let name: String?
  }

  public struct Holder: Hashable, Sendable {
    public let process: Int
    /// The program's name, 15 bytes at most (proc_pid_comm(5)).
    public let program: String?
  }

  /// All there are, in the order of their numbers: those with a device behind them, no pseudo-terminals and consoles, and no
  /// ports that a driver has room for and the machine has not.
  public static func all() -> [SerialPort] { all(in: USBPorts(), procfs: "/proc") }

  static func all(in ports: USBPorts, procfs: String) -> [SerialPort] {
    let names = FileSystem.names(in: "\(ports.sysfs)/class/tty").filter { name in
      let place = "\(ports.sysfs)/class/tty/\(name)"
      // PORT_UNKNOWN: a place of the 8250 driver without a UART.
      return FileSystem.realPath("\(place)/device") != nil && FileSystem.line(of: "\(place)/type") != "0"
    }
    let usb = names.compactMap { ports.port($0) }
    let holders = PortHolders.all(of: Set(names.map { node($0, ports) }), in: procfs)
    return names.sorted { ($0.utf8.count, $0) < ($1.utf8.count, $1) }.map { name in
      let node = node(name, ports)
      let obstacle = access(node, R_OK | W_OK) == 0 ? nil : SystemError("access")
      let adapter = ports.port(name)
      let links = ports.links("by-id", to: node) + ports.links("by-path", to: node)
      let driver = FileSystem.realPath("\(ports.sysfs)/class/tty/\(name)/device/driver")
      return SerialPort(
        node: node, url: adapter.map { ports.name($0, among: usb) } ?? "tty://\(links.first ?? node)", links: links,
        usb: adapter.map { USB($0) }, driver: driver.map { String(FileSystem.lastName(of: $0)) },
        holders: holders[node] ?? [], obstacle: obstacle)
    }
  }

  private static func node(_ name: String, _ ports: USBPorts) -> String {
    "\(ports.dev)/\(name.replacing("!", with: "/"))"
  }
}

extension SerialPort.USB {
  init(_ port: USBPorts.Port) {
    self.init(
      vendor: port.identity.vendor, product: port.identity.product, serial: port.identity.serial,
      interface: port.identity.interface, manufacturer: FileSystem.line(of: "\(port.device)/manufacturer"),
      name: FileSystem.line(of: "\(port.device)/product"))
  }
}
