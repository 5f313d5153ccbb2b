// rfcomm://00:0A:3A:22:68:73:3, or without the channel, which is looked up then by the service's UUID at each opening: devices
// give their services other channels from time to time.

import ByteStreams
import Glibc
import StreamBroker

public struct RFCOMMConnector: BondingConnector {
  public static let scheme = "rfcomm"
  public static let isLine = true

  /// What a URL asks for, and what its user adds.
  struct Plan: Sendable {
    let device: BluetoothAddress
    let channel: UInt8?
    let uuid: BluetoothUUID
    let adapter: String?
    let security: BluetoothTarget.Security?
    var connectPatience = ConnectFlow.standardPatience
    var bonds: BondKeeper?
  }
  private var plan: Plan

  public init(_ url: EndpointURL) throws(URLProblem) {
    // The grammar of the scheme has read both already.
    plan = Plan(
      device: BluetoothAddress(url.host) ?? BluetoothAddress([UInt8](repeating: 0, count: 6)),
      channel: url.port.map { UInt8(clamping: $0) },
      uuid: url.string("uuid").flatMap { BluetoothUUID($0) } ?? BluetoothUUID(0x1101),
      adapter: url.string("adapter"), security: BluetoothTarget.Security(named: url.string("security")))
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
    let lookUp = plan.channel == nil ? plan.connectPatience + SDPConversation.wholePatience : .zero
    return AdapterFlow.patience + lookUp
  }

  /// There is nothing to discard: what the device says before it is connected, it says to nobody.
  public func open(
    on poller: Poller, discardingInput: Bool, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    let opening = RFCOMMOpening(plan, on: poller, done)
    opening.start()
    return opening
  }
}
