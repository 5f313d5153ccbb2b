// rfcomm://00:0A:3A:22:68:73:3. Without the channel, each opening looks it up by the service's UUID: devices give their
// services other channels from time to time.

import ByteStreams
import Glibc
import StreamBrokerCore

/// Connects to the serial services of Bluetooth Classic devices: `rfcomm://00:0A:3A:22:68:73`, or channel 3 of one:
/// `rfcomm://00:0A:3A:22:68:73:3`.
public struct RFCOMMConnector: BondingConnector {
  public static let grammar = EndpointSchemes.rfcomm
  public static let isLine = true

  /// The settings of a URL.
  struct Plan: Sendable {
    let device: BluetoothAddress
    let channel: UInt8?
    let uuid: BluetoothUUID
    var link: BluetoothLinkSettings
  }
  private var plan: Plan

  public init(_ url: EndpointURL) throws(URLProblem) {
    // The grammar of the scheme has validated both already.
    plan = Plan(
      device: BluetoothAddress(url.host) ?? BluetoothAddress([UInt8](repeating: 0, count: 6)),
      channel: url.port.map { UInt8(clamping: $0) },
      uuid: url.string("uuid").flatMap { BluetoothUUID($0) } ?? BluetoothUUID(0x1101),
      link: BluetoothLinkSettings(url))
  }

  public var bonds: BondKeeper? {
    get { plan.link.bonds }
    set { plan.link.bonds = newValue }
  }

  public func longestOpening(connectTimeout: Duration) -> Duration? {
    let lookUp = plan.channel == nil ? connectTimeout + SDPExchange.totalTimeout : .zero
    return AdapterFlow.timeout + lookUp + connectTimeout
  }

  /// There is nothing to discard: no bytes can arrive before the device is connected.
  public func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    let opening = RFCOMMOpening(plan, request, on: poller, done)
    opening.start()
    return opening
  }
}
