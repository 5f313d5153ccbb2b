// This machine's Bluetooth adapters, for programs that list them. Call it off the lane: asking the kernel may block.

internal import CBluetooth
import ByteStreams
import Glibc
import StreamBrokerCore

/// A Bluetooth adapter.
public struct Adapter: Hashable, Sendable {
  /// "hci0", for `adapter=` of a URL.
  public let name: String
  /// Its own address, which `adapter=` takes, too.
  public let address: BluetoothAddress
  /// Whether it is switched on. Opening a device or a scan switches it on.
  public let isOn: Bool

  /// All adapters; may block. Throws EAFNOSUPPORT if the kernel has no Bluetooth, or hides it from a container.
  public static func all() throws(SystemError) -> [Adapter] {
    var found = [bluetooth_adapter](repeating: bluetooth_adapter(), count: 16)  // HCI_MAX_DEV of the kernel's interface
    let count = bluetooth_adapters(&found, Int32(found.count))
    guard count >= 0 else { throw SystemError("socket") }
    return found[..<Int(count)].map { adapter in
      let address = withUnsafeBytes(of: adapter.address) { BluetoothAddress(Array($0)) }
      return Adapter(name: "hci\(adapter.number)", address: address, isOn: adapter.is_on != 0)
    }
  }
}
