// The kernel's Bluetooth management channel: its commands and events (BlueZ's doc/mgmt-api). Values only.

/// A command to an adapter, or to none in particular.
struct ManagementCommand: Hashable, Sendable {
  enum Code: UInt16, Sendable {
    case indexList = 0x0003
    case information = 0x0004
    case setPowered = 0x0005
    case setDiscoverable = 0x0006
    case setConnectable = 0x0007
    case setBondable = 0x0009
    case setSimplePairing = 0x000B
    case setLE = 0x000D
    case loadLinkKeys = 0x0012
    case loadLongTermKeys = 0x0013
    case connections = 0x0015
    case refusePIN = 0x0017
    case setInputOutput = 0x0018
    case confirm = 0x001C
    case refuse = 0x001D
    case refuseNumber = 0x001F
    case startDiscovery = 0x0023
    case stopDiscovery = 0x0024
    case confirmName = 0x0025
    case setSecureConnections = 0x002D
    case loadIdentities = 0x0030
    case connectionInformation = 0x0031
  }
  var code: Code
  var adapter: UInt16
  var parameters: [UInt8]

  static let noAdapter: UInt16 = 0xFFFF

  static let list = ManagementCommand(code: .indexList, adapter: noAdapter, parameters: [])
  static func ask(_ adapter: UInt16) -> ManagementCommand {
    ManagementCommand(code: .information, adapter: adapter, parameters: [])
  }
  static func turnOn(_ code: Code, of adapter: UInt16) -> ManagementCommand {
    ManagementCommand(code: code, adapter: adapter, parameters: [1])
  }
  /// Makes the adapter discoverable, without a time limit.
  static func showAlways(_ adapter: UInt16) -> ManagementCommand {
    ManagementCommand(code: .setDiscoverable, adapter: adapter, parameters: [1, 0, 0])
  }
  static func discovery(_ isOn: Bool, _ adapter: UInt16, of kinds: DiscoveryKinds = .lowEnergy) -> ManagementCommand {
    ManagementCommand(code: isOn ? .startDiscovery : .stopDiscovery, adapter: adapter, parameters: [kinds.rawValue])
  }

  /// Replies that the name of a found device is not known, so that the kernel asks for it.
  static func askName(_ device: FoundDevice, _ adapter: UInt16) -> ManagementCommand {
    let identity = device.address.bytes.reversed() + [device.kind.rawValue]
    return ManagementCommand(code: .confirmName, adapter: adapter, parameters: identity + [0])
  }

  /// Asks for the signal strength of a link, among other values.
  static func askSignal(_ device: PairedAddress, _ adapter: UInt16) -> ManagementCommand {
    ManagementCommand(code: .connectionInformation, adapter: adapter, parameters: device.encoded)
  }

  /// Accepts a pairing in which there is nothing to compare.
  static func confirm(_ device: PairedAddress, _ adapter: UInt16) -> ManagementCommand {
    ManagementCommand(code: .confirm, adapter: adapter, parameters: device.encoded)
  }
  /// Refuses a pairing, with the command for its kind.
  static func refuse(_ code: Code, _ device: PairedAddress, _ adapter: UInt16) -> ManagementCommand {
    ManagementCommand(code: code, adapter: adapter, parameters: device.encoded)
  }

  var encoded: [UInt8] {
    [code.rawValue, adapter, UInt16(parameters.count)].flatMap(LittleEndian.bytes) + parameters
  }
}

/// How a command ended: only the codes that matter here.
enum ManagementStatus {
  static let success: UInt8 = 0x00
  static let failed: UInt8 = 0x03
  static let busy: UInt8 = 0x0A
  static let rejected: UInt8 = 0x0B
  static let notPowered: UInt8 = 0x0F
  static let invalidIndex: UInt8 = 0x11
  static let blocked: UInt8 = 0x12
  static let permissionDenied: UInt8 = 0x14
}

/// An answer or an event of the kernel.
struct ManagementEvent: Hashable, Sendable {
  let adapter: UInt16
  let content: Content

  enum Content: Hashable, Sendable {
    /// A command has ended.
    case answer(to: UInt16, status: UInt8, ArraySlice<UInt8>)
    case adapterAdded
    case adapterRemoved
    case found(FoundDevice)
    /// Whether a discovery is running, ours or another program's.
    case discovering(Bool)
    /// The adapter's settings have changed to these.
    case settings(AdapterSettings)
    case pairing(PairingEvent)
    /// A pairing waits for our consent. With "just works" there is no number to compare.
    case asksToPair(PairedAddress, justWorks: Bool)
    case other(UInt16)
  }

  init(adapter: UInt16, content: Content) {
    self.adapter = adapter
    self.content = content
  }

  /// Nil if it is cut off.
  init?(_ bytes: [UInt8]) {
    guard bytes.count >= 6, Int(LittleEndian.word(bytes[4...])) == bytes.count - 6 else { return nil }
    adapter = LittleEndian.word(bytes[2...])
    let parameters = bytes[6...]
    let code = LittleEndian.word(bytes[...])
    switch code {
    case 0x0001, 0x0002:
      guard parameters.count >= 3 else { return nil }
      content = .answer(to: LittleEndian.word(parameters), status: parameters[8], parameters.dropFirst(3))
    case 0x0004: content = .adapterAdded
    case 0x0005: content = .adapterRemoved
    case 0x000F:
      guard parameters.count == 12, let device = PairedAddress(parameters) else { return nil }
      content = .asksToPair(device, justWorks: parameters[13] == 1)
    case 0x0006:
      guard let settings = AdapterSettings(parameters) else { return nil }
      content = .settings(settings)
    case 0x0009...0x000C, 0x000E, 0x0010, 0x0011, 0x0018:
      guard let news = PairingEvent(code, parameters) else { return nil }
      content = .pairing(news)
    case 0x0012:
      guard let device = FoundDevice(parameters) else { return nil }
      content = .found(device)
    case 0x0013:
      guard parameters.count == 2 else { return nil }
      content = .discovering(parameters[7] != 0)
    default: content = .other(code)
    }
  }
}

/// What an adapter supports, or what is on: bits of the management channel's settings.
struct AdapterSettings: OptionSet, Hashable, Sendable {
  let rawValue: UInt32

  static let powered = AdapterSettings(rawValue: 1 << 0)
  /// Others can connect to it, over Classic.
  static let connectable = AdapterSettings(rawValue: 1 << 1)
  static let discoverable = AdapterSettings(rawValue: 1 << 3)
  static let bondable = AdapterSettings(rawValue: 1 << 4)
  static let simplePairing = AdapterSettings(rawValue: 1 << 6)
  static let classic = AdapterSettings(rawValue: 1 << 7)
  static let lowEnergy = AdapterSettings(rawValue: 1 << 9)
  static let secureConnections = AdapterSettings(rawValue: 1 << 11)

  init(rawValue: UInt32) { self.rawValue = rawValue }

  /// Nil if it is cut off.
  init?(_ bytes: ArraySlice<UInt8>) {
    guard bytes.count >= 4 else { return nil }
    rawValue = bytes.prefix(4).reversed().reduce(0) { $0 << 8 | UInt32($1) }
  }
}

/// An adapter as the kernel describes it.
struct ManagedAdapter: Hashable, Sendable, CustomStringConvertible {
  let index: UInt16
  let address: BluetoothAddress
  let can: AdapterSettings
  let does: AdapterSettings

  /// From the answer to `information`: address, version, manufacturer, supported settings, current settings.
  init?(_ index: UInt16, _ answer: ArraySlice<UInt8>) {
    guard answer.count >= 17, let can = AdapterSettings(answer.dropFirst(9)),
      let does = AdapterSettings(answer.dropFirst(13))
    else { return nil }
    self.index = index
    address = BluetoothAddress(answer.prefix(6).reversed())
    (self.can, self.does) = (can, does)
  }

  var isOn: Bool { does.contains(.powered) }
  var hasLE: Bool { can.contains(.lowEnergy) }
  var speaksLE: Bool { does.contains(.lowEnergy) }
  var speaksClassic: Bool { does.contains(.classic) }

  var name: String { "hci\(index)" }
  var description: String { "\(name) (\(address))" }
}
