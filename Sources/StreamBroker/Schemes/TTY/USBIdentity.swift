// What the adapter of a serial port says it is: 0403:6001/A50285BI/0. Text only; USBPorts finds the port.

/// Vendor and product, and more where there are several of a kind.
struct USBIdentity: Hashable, Sendable {
  /// Four hexadecimal digits in lower case, as in sysfs.
  let vendor: String
  let product: String
  /// As the device says it, which may hold anything; nil for any.
  var serial: String?
  /// bInterfaceNumber, for adapters with several ports; nil for any.
  var interface: Int?

  init(vendor: String, product: String, serial: String? = nil, interface: Int? = nil) {
    self.vendor = vendor.lowercased()
    self.product = product.lowercased()
    self.serial = serial
    self.interface = interface
  }

  /// Of "0403:6001", then a serial number and an interface in decimal, if any. Nil when it is no such thing.
  init?(_ parts: [String]) {
    let numbers = parts.first?.split(separator: ":", omittingEmptySubsequences: false) ?? []
    guard (1...3).contains(parts.count), parts.allSatisfy({ !$0.isEmpty }), numbers.count == 2,
      numbers.allSatisfy({ BluetoothNames.isHex($0, count: 4) })
    else { return nil }
    self.init(vendor: String(numbers[0]), product: String(numbers[1]), serial: parts.count > 1 ? parts[1] : nil)
    guard parts.count > 2 else { return }
    guard case .integer(let number)? = try? ValueKind.integer(0...255).read(parts[2]) else { return nil }
    interface = number
  }

  /// Of the path of a URL that was checked.
  init?(path: String) {
    self.init(path.dropFirst().split(separator: "/", omittingEmptySubsequences: false).map { Self.decode($0) })
  }

  /// "/0403:6001/A50285BI/0", with escapes in the serial number where it needs them.
  var path: String {
    var path = "/\(vendor):\(product)"
    if let serial { path += "/" + EndpointURL.escape(serial, also: "/&") }
    if let interface { path += "/\(interface)" }
    return path
  }

  /// To be pasted.
  var url: String { "tty://usb\(path)" }

  /// Whether `found`, of which everything is known, is meant.
  func matches(_ found: USBIdentity) -> Bool {
    found.vendor == vendor && found.product == product && (serial == nil || found.serial == serial)
      && (interface == nil || found.interface == interface)
  }

  private static func decode(_ text: Substring) -> String {
    var bytes: [UInt8] = []
    var rest = text.utf8[...]
    while let byte = rest.popFirst() {
      if byte == UInt8(ascii: "%"), let code = UInt8(String(Substring(rest.prefix(2))), radix: 16) {
        bytes.append(code)
        rest = rest.dropFirst(2)
      } else {
        bytes.append(byte)
      }
    }
    return String(decoding: bytes, as: UTF8.self)
  }
}
