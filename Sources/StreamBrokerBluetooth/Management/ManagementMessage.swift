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
  /// To those who look around, without an end.
  static func showAlways(_ adapter: UInt16) -> ManagementCommand {
    ManagementCommand(code: .setDiscoverable, adapter: adapter, parameters: [1, 0, 0])
  }
  static func discovery(_ isOn: Bool, _ adapter: UInt16, of kinds: DiscoveryKinds = .lowEnergy) -> ManagementCommand {
    ManagementCommand(code: isOn ? .startDiscovery : .stopDiscovery, adapter: adapter, parameters: [kinds.rawValue])
  }

  /// That the name of a device that was heard is not known, so that the kernel asks for it.
  static func askName(_ device: FoundDevice, _ adapter: UInt16) -> ManagementCommand {
    let place = device.address.bytes.reversed() + [device.kind.rawValue]
    return ManagementCommand(code: .confirmName, adapter: adapter, parameters: place + [0])
  }

  /// How strong the signal of a link is, besides.
  static func askSignal(_ device: PairedAddress, _ adapter: UInt16) -> ManagementCommand {
    ManagementCommand(code: .connectionInformation, adapter: adapter, parameters: device.encoded)
  }

  /// Yes to a pairing in which nobody has anything to compare.
  static func confirm(_ device: PairedAddress, _ adapter: UInt16) -> ManagementCommand {
    ManagementCommand(code: .confirm, adapter: adapter, parameters: device.encoded)
  }
  /// No to one in which somebody would have to compare a number, or type one in.
  static func refuse(_ code: Code, _ device: PairedAddress, _ adapter: UInt16) -> ManagementCommand {
    ManagementCommand(code: code, adapter: adapter, parameters: device.encoded)
  }

  var encoded: [UInt8] {
    [code.rawValue, adapter, UInt16(parameters.count)].flatMap(LittleEndian.bytes) + parameters
  }
}

/// Why a command was not carried out. Those that matter by name.
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

/// What the kernel answers or tells.
struct ManagementEvent: Hashable, Sendable {
  let adapter: UInt16
  let content: Content

  enum Content: Hashable, Sendable {
    /// The end of a command.
    case answer(to: UInt16, status: UInt8, ArraySlice<UInt8>)
    case adapterAdded
    case adapterRemoved
    case found(FoundDevice)
    /// Whether a discovery is under way, ours or another's.
    case discovering(Bool)
    /// Its settings are others now, as bits.
    case settings(AdapterSettings)
    case pairing(PairingNews)
    /// A pairing under way waits for a yes; "just works" is one without a number that somebody had to compare.
    case asksToPair(PairedAddress, justWorks: Bool)
    case other(UInt16)
  }

  init(adapter: UInt16, content: Content) {
    self.adapter = adapter
    self.content = content
  }

  /// Nil when it is cut off.
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
      guard let news = PairingNews(code, parameters) else { return nil }
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

/// What an adapter can, or does: bits of the management channel's settings.
struct AdapterSettings: OptionSet, Hashable, Sendable {
  let rawValue: UInt32

  static let powered = AdapterSettings(rawValue: 1 << 0)
  /// To others, over Classic.
  static let connectable = AdapterSettings(rawValue: 1 << 1)
  static let discoverable = AdapterSettings(rawValue: 1 << 3)
  static let bondable = AdapterSettings(rawValue: 1 << 4)
  static let simplePairing = AdapterSettings(rawValue: 1 << 6)
  static let classic = AdapterSettings(rawValue: 1 << 7)
  static let lowEnergy = AdapterSettings(rawValue: 1 << 9)
  static let secureConnections = AdapterSettings(rawValue: 1 << 11)

  init(rawValue: UInt32) { self.rawValue = rawValue }

  /// Nil when it is cut off.
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

  /// From the answer to `information`: address, version, manufacturer, settings that can be, settings that are.
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
