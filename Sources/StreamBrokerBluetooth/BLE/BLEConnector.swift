// ble://FFE0/00:0A:3A:22:68:73, over the attributes of a service; ble://FFE0:128/…, over a channel of its own. Without an
// address the first device that advertises the service, or has the name, is taken.

import ByteStreams
import StreamBroker
import Synchronization

public struct BLEConnector: RemarkingConnector, BondingConnector {
  public static let scheme = "ble"
  public static let isLine = true

  /// What a URL asks for, and what its user adds.
  struct Plan: Sendable {
    var scan: ScanFlow.Wish
    /// Nil where it has to be found out by a scan.
    var device: LEAddress?
    var psm: UInt16?
    var gatt: GATTWish
    var adapter: String?
    var security: BluetoothTarget.Security?
    var connectPatience = ConnectFlow.standardPatience
    var bonds: BondKeeper?
    let learned = Learned()
  }

  /// What one opening has found out, for the next ones.
  final class Learned: Sendable {
    /// The device takes what is written over an encrypted link only.
    let needsEncryption = Mutex(false)
  }
  private(set) var plan: Plan
  private var hear: @Sendable (EndpointRemark) -> Void = { _ in }

  public init(_ url: EndpointURL) throws(URLProblem) {
    // The grammar of the scheme has read all of it already.
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
      psm: url.port.map { UInt16(clamping: $0) }, gatt: gatt, adapter: url.string("adapter"),
      security: BluetoothTarget.Security(named: url.string("security")))
  }

  public func telling(_ hear: @escaping @Sendable (EndpointRemark) -> Void) -> any Connector {
    var connector = self
    connector.hear = hear
    return connector
  }

  public var connectPatience: Duration {
    get { plan.connectPatience }
    set { plan.connectPatience = newValue }
  }
  public var bonds: BondKeeper? {
    get { plan.bonds }
    set { plan.bonds = newValue }
  }

  public var otherSteps: Duration {
    AdapterFlow.patience + (plan.device == nil ? ScanFlow.patience : .zero)
      + (plan.psm == nil ? GATTConversation.wholePatience : .zero)
  }

  /// There is nothing to discard: what the device says before it is connected, it says to nobody.
  public func open(
    on poller: Poller, discardingInput: Bool, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    let opening = BLEOpening(plan, on: poller, hear: hear, done)
    opening.start()
    return opening
  }
}
