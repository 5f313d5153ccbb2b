// The identity that the adapter of a serial port reports: 0403:6001/A50285BI/0. Text only; USBPorts finds the port.

import ByteStreams

/// Vendor and product, and more if there are several adapters of a kind.
struct USBIdentity: Hashable, Sendable {
  /// Four hexadecimal digits in lower case, as in sysfs.
  let vendor: String
  let product: String
  /// As the device reports it, so it may contain anything; nil for any.
  var serial: String?
  /// bInterfaceNumber, for adapters with several ports; nil for any.
  var interface: Int?

  init(vendor: String, product: String, serial: String? = nil, interface: Int? = nil) {
    self.vendor = vendor.lowercased()
    self.product = product.lowercased()
    self.serial = serial
    self.interface = interface
  }

  /// From "0403:6001", then a serial number and an interface in decimal, if any. Nil for anything else.
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

  /// From the path of a URL that was checked.
  init?(path: String) {
    self.init(path.dropFirst().split(separator: "/", omittingEmptySubsequences: false).map { Self.decode($0) })
  }

  /// "/0403:6001/A50285BI/0", with escapes in the serial number where needed.
  var path: String {
    var path = "/\(vendor):\(product)"
    if let serial { path += "/" + EndpointURL.escape(serial, also: "/&") }
    if let interface { path += "/\(interface)" }
    return path
  }

  /// The URL to copy into a configuration.
  var url: String { "tty://usb\(path)" }

  /// Whether `found`, a complete identity, fits this one.
  func matches(_ found: USBIdentity) -> Bool {
    found.vendor == vendor && found.product == product && (serial == nil || found.serial == serial)
      && (interface == nil || found.interface == interface)
  }

  private static func decode(_ text: Substring) -> String {
    String(decoding: PercentEncoding.decode(text.utf8) { _ in }, as: UTF8.self)
  }
}
