// rfcomm://00:0A:3A:22:68:73:3, or without the channel, which is looked up then by the service's UUID at each opening: devices
// give their services other channels from time to time.

import ByteStreams
import Glibc
import StreamBroker

public struct RFCOMMConnector: Connector {
  public static let scheme = "rfcomm"
  public static let isLine = true

  private let device: BluetoothAddress
  private let channel: UInt8?
  private let uuid: BluetoothUUID
  private let adapter: AdapterChoice
  private let security: BluetoothTarget.Security?

  public init(_ url: EndpointURL) throws(URLProblem) {
    // The grammar of the scheme has read both already.
    device = BluetoothAddress(url.host) ?? BluetoothAddress([UInt8](repeating: 0, count: 6))
    uuid = url.string("uuid").flatMap { BluetoothUUID($0) } ?? BluetoothUUID(0x1101)
    channel = url.port.map { UInt8(clamping: $0) }
    adapter = AdapterChoice(wanted: url.string("adapter"))
    security = BluetoothTarget.Security(named: url.string("security"))
  }

  /// There is nothing to discard: what the device says before it is connected, it says to nobody.
  public func open(
    on poller: Poller, discardingInput: Bool, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    let opening = RFCOMMOpening(target, on: poller, done)
    if let channel { opening.connect(to: channel) } else { opening.lookUp(uuid) }
    return opening
  }

  private func target(_ service: BluetoothTarget.Service) -> BluetoothTarget {
    BluetoothTarget(device: device, service: service, adapter: adapter, security: security)
  }
}
