// This machine's Bluetooth adapters, for those who list them. Asking the kernel may wait: not on a lane.

internal import CBluetooth
import ByteStreams
import Glibc
import StreamBroker

public struct Adapter: Hashable, Sendable {
  /// "hci0"
  public let name: String
  public let address: BluetoothAddress
  public let isOn: Bool

  /// All there are; may block. Throws EAFNOSUPPORT where the kernel has no Bluetooth, or keeps it from a container.
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
