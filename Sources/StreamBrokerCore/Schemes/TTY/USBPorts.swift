// The serial ports of USB adapters, from sysfs. Reads files, so it runs on a port's queue. It reads them each time,
// because the same adapter may come back under another number.

import ByteStreams
import Glibc

struct USBPorts: Sendable {
  /// "/sys", or a tree made by tests.
  var sysfs = "/sys"
  var dev = "/dev"

  struct Port: Hashable, Sendable {
    /// "/dev/ttyUSB0"
    let node: String
    let identity: USBIdentity
    /// The USB device's folder in sysfs.
    let device: String
  }

  /// The node of the one matching port. Throws if there is none, or several.
  func find(_ identity: USBIdentity) throws(OpenFailure) -> String {
    let found = matching(identity)
    guard let first = found.first else {
      throw OpenFailure(
        "find \(identity.url)", SystemError("open", ENOENT), advice: "not plugged in?")
    }
    guard found.count == 1 else {
      let names = found.map { name($0, among: found) }
      throw OpenFailure(
        "find \(identity.url)", nil, advice: "\(found.count) ports match it; use \(Suggestion.list(names))")
    }
    return first.node
  }

  /// The matching ports, in the order of their numbers.
  func matching(_ identity: USBIdentity) -> [Port] {
    FileSystem.names(in: "\(sysfs)/class/tty").compactMap { port($0) }.filter { identity.matches($0.identity) }
      .sorted { ($0.node.utf8.count, $0.node) < ($1.node.utf8.count, $1.node) }
  }

  /// How to write this port among `others`: the shortest identity that no other port has, or a path if there is none.
  func name(_ port: Port, among others: [Port]) -> String {
    var identity = port.identity
    identity.interface = nil
    for name in [identity, port.identity] {
      let isWritable = !(name.serial ?? "").unicodeScalars.contains { Suggestion.isControl($0) }
      if isWritable, others.count(where: { name.matches($0.identity) }) == 1 { return name.url }
    }
    // Cheap adapters have no serial number, or all the same one: the USB socket they are plugged into identifies them.
    return "tty://\(links("by-path", to: port.node).first ?? port.node)"
  }

  /// udev's names for a port, from the folder "by-id" or "by-path".
  func links(_ folder: String, to node: String) -> [String] {
    let folder = "\(dev)/serial/\(folder)"
    return FileSystem.names(in: folder).sorted().map { "\(folder)/\($0)" }.filter { link in
      FileSystem.target(of: link).map { FileSystem.lastName(of: $0) == FileSystem.lastName(of: node) } ?? false
    }
  }

  /// `device` leads to the interface (ttyACM) or to the driver's port below it (ttyUSB); the USB device is further up.
  func port(_ name: String) -> Port? {
    guard var folder = FileSystem.realPath("\(sysfs)/class/tty/\(name)/device") else { return nil }
    var interface: Int?
    for _ in 0..<Self.mostLevels {
      interface = interface ?? FileSystem.line(of: "\(folder)/bInterfaceNumber").flatMap { Int($0, radix: 16) }
      if let vendor = FileSystem.line(of: "\(folder)/idVendor"),
        let product = FileSystem.line(of: "\(folder)/idProduct")
      {
        let identity = USBIdentity(
          vendor: vendor, product: product, serial: FileSystem.line(of: "\(folder)/serial"), interface: interface)
        return Port(node: "\(dev)/\(name.replacing("!", with: "/"))", identity: identity, device: folder)
      }
      guard let slash = folder.lastIndex(of: "/") else { return nil }
      folder = String(folder[..<slash])
    }
    return nil
  }

  /// What the adapter of a port reports about itself; empty if there is none.
  func facts(of path: String) -> DeviceFacts {
    var facts = DeviceFacts()
    guard let node = FileSystem.realPath(path), let port = port(String(FileSystem.lastName(of: node))) else {
      return facts
    }
    func text(_ file: String) -> String? {
      FileSystem.line(of: "\(port.device)/\(file)").flatMap { DeviceFacts.text($0.utf8) }
    }
    facts.manufacturer = text("manufacturer")
    facts.model = text("product")
    facts.serialNumber = text("serial")
    return facts
  }

  // The driver's port, the interface, the device; further up is the hub that it is plugged into.
  private static let mostLevels = 3
}
