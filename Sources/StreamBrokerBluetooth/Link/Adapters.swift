// This machine's Bluetooth adapters, and which of them an endpoint uses. Asking the kernel may wait: not on a lane.

internal import CBluetooth
import ByteStreams
import Glibc
import StreamBroker

public struct Adapter: Hashable, Sendable {
  /// "hci0"
  public let name: String
  public let address: BluetoothAddress
  public let isOn: Bool

  /// All there are. Throws EAFNOSUPPORT where the kernel has no Bluetooth, or keeps it from a container.
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

/// Which adapter to use, decided before a connect that would only say EHOSTUNREACH.
struct AdapterChoice: Hashable, Sendable {
  /// "hci0" or an adapter's address; nil takes what the kernel takes.
  let wanted: String?

  /// The adapter to bind to; nil for the kernel's choice.
  func choose(from adapters: [Adapter]) throws(OpenFailure) -> Adapter? {
    guard !adapters.isEmpty else {
      throw failure("this machine has no Bluetooth adapter; it is waited for")
    }
    guard let wanted else {
      guard adapters.contains(where: \.isOn) else { throw isOff(adapters[0]) }
      return nil
    }
    let address = BluetoothAddress(wanted)
    guard let adapter = adapters.first(where: { $0.name == wanted || $0.address == address }) else {
      let others = adapters.map { "\($0.name) (\($0.address))" }.joined(separator: ", ")
      throw failure("there is no adapter \(wanted); there is \(others)")
    }
    guard adapter.isOn else { throw isOff(adapter) }
    return adapter
  }

  private func isOff(_ adapter: Adapter) -> OpenFailure {
    failure(
      "the adapter \(adapter.name) is off; 'bluetoothctl power on' switches it on, 'rfkill list' says whether it is blocked"
    )
  }

  private func failure(_ advice: String) -> OpenFailure {
    OpenFailure("choose an adapter", SystemError("connect", EHOSTUNREACH), advice: advice)
  }
}
