// ble://FFE0/00:0A:3A:22:68:73 uses the attributes of service FFE0 (GATT); ble://FFE0:128/… uses an L2CAP channel of
// its own. Without an address it connects to the first device that advertises the service, or has the name in the URL.

import ByteStreams
import StreamBrokerCore
import Synchronization

/// Connects to the serial services of Bluetooth Low Energy devices: `ble://FFE0/00:0A:3A:22:68:73`, or the first device
/// that offers the service: `ble://FFE0`.
public struct BLEConnector: BondingConnector {
  public static let grammar = EndpointSchemes.ble
  public static let isLine = true

  /// The settings of a URL.
  struct Plan: Sendable {
    var scan: ScanFlow.Wish
    /// Nil: a scan finds it.
    var device: LEAddress?
    var psm: UInt16?
    var gatt: GATTWish
    var link: BluetoothLinkSettings
    let learned = Learned()
  }

  /// What one opening found out, for the next ones.
  final class Learned: Sendable {
    /// The device accepts writes only over an encrypted link.
    let needsEncryption = Mutex(false)
  }
  private(set) var plan: Plan

  public init(_ url: EndpointURL) throws(URLProblem) {
    // The grammar of the scheme has validated the URL already.
    let service = BluetoothUUID(url.host) ?? BluetoothUUID(0)
    let address = BluetoothAddress(String(url.path.dropFirst()))
    var gatt = GATTWish(service: service, profile: url.string("profile").flatMap { GATTProfile($0) } ?? .auto)
    if let rx = url.string("rx").flatMap({ BluetoothUUID($0) }),
      let tx = url.string("tx").flatMap({ BluetoothUUID($0) })
    {
      gatt.profile = .characteristics(rx: rx, tx: tx)
    }
    gatt.writing = url.string("write").map { $0 == "request" ? .request : .command }
    gatt.mtu = url.integer("mtu").map { Int($0) } ?? ATTMessage.mostMTU
    let kind = url.string("address-type")
    plan = Plan(
      scan: ScanFlow.Wish(service: service, name: url.string("name"), address: address),
      device: address.flatMap { address in kind.map { LEAddress(address: address, isRandom: $0 == "random") } },
      psm: url.port.map { UInt16(clamping: $0) }, gatt: gatt, link: BluetoothLinkSettings(url))
  }

  public var bonds: BondKeeper? {
    get { plan.link.bonds }
    set { plan.link.bonds = newValue }
  }

  public func longestOpening(connectTimeout: Duration) -> Duration? {
    AdapterFlow.timeout + connectTimeout + (plan.device == nil ? ScanFlow.timeout : .zero)
      + (plan.psm == nil ? GATTExchange.totalTimeout : .zero)
  }

  /// There is nothing to discard: no bytes can arrive before the device is connected.
  public func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    let opening = BLEOpening(plan, request, on: poller, done)
    opening.start()
    return opening
  }
}
