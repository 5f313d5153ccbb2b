// The serial ports of this machine, for people who search for theirs: how to write each in a configuration, and which
// programs have it open. Reads sysfs and procfs, so it blocks: for a command line, or a queue.

import ByteStreams
import Glibc

/// A serial port with real hardware.
public struct SerialPort: Hashable, Sendable {
  /// "/dev/ttyUSB0"
  public let node: String
  /// The URL for a configuration: it finds the port again after a restart, and under another number if possible.
  public let url: String
  /// udev's links to it: "/dev/serial/by-id/…", "/dev/serial/by-path/…".
  public let links: [String]
  /// Nil for a port without a USB adapter.
  public let usb: USB?
  /// The kernel's name of the driver: "ftdi_sio".
  public let driver: String?
  /// The processes that have it open. Those of other users are visible only to root.
  public let holders: [Holder]
  /// Why this process can't open it; nil if nothing visible from outside prevents that.
  public let obstacle: SystemError?

  /// What a USB adapter reports about itself. The texts come from the device: they may contain anything.
  public struct USB: Hashable, Sendable {
    /// Four hexadecimal digits in lower case.
    public let vendor: String
    /// Four hexadecimal digits in lower case.
    public let product: String
    /// The serial number, if the adapter has one: iSerialNumber.
    public let serial: String?
    /// Which port of an adapter with several: bInterfaceNumber.
    public let interface: Int?
    /// "FTDI": iManufacturer.
    public let manufacturer: String?
    /// "FT232R USB UART": iProduct.
    public let name: String?
  }

  /// A process that has the port open.
  public struct Holder: Hashable, Sendable {
    /// Its number.
    public let process: Int
    /// The program's name, 15 bytes at most (proc_pid_comm(5)).
    public let program: String?
  }

  /// All ports with a device behind them, in the order of their numbers. No pseudo-terminals, no consoles, and no ports
  /// that a driver provides but the machine lacks. Blocks for a few reads of sysfs and procfs.
  public static func all() -> [SerialPort] { all(in: USBPorts(), procfs: "/proc") }

  /// "FTDI FT232R USB UART", else the driver's name; empty if neither is known. May contain anything.
  public var summary: String {
    let reported = [usb?.manufacturer, usb?.name].compactMap { $0 }.joined(separator: " ")
    return reported.isEmpty ? driver ?? "" : reported
  }

  /// What prevents opening it, and what to do, for people; nil as `obstacle`.
  public var advice: String? {
    switch obstacle?.errno {
    case nil: nil
    case ENOENT?: "has no node here; give the container one with --device \(node)"
    case EACCES?:
      "this user may not open it; "
        + (NodeOwnership.advice(forOpening: node) ?? "members of the node's group may, mostly 'dialout'")
    default: obstacle.map { "\($0)" }
    }
  }

  static func all(in ports: USBPorts, procfs: String) -> [SerialPort] {
    let names = FileSystem.names(in: "\(ports.sysfs)/class/tty").filter { name in
      let folder = "\(ports.sysfs)/class/tty/\(name)"
      // PORT_UNKNOWN: a slot of the 8250 driver without a UART.
      return FileSystem.realPath("\(folder)/device") != nil && FileSystem.line(of: "\(folder)/type") != "0"
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
