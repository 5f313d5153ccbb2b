// The kernel's Bluetooth management channel: its commands and events (BlueZ's doc/mgmt-api). Values only.

/// A command to an adapter, or to none in particular.
struct ManagementCommand: Hashable, Sendable {
  enum Code: UInt16, Sendable {
    case indexList = 0x0003
    case information = 0x0004
    case setPowered = 0x0005
    case setLE = 0x000D
    case confirm = 0x001C
    case startDiscovery = 0x0023
    case stopDiscovery = 0x0024
    case confirmName = 0x0025
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
  static func discovery(_ isOn: Bool, _ adapter: UInt16, of kinds: DiscoveryKinds = .lowEnergy) -> ManagementCommand {
    ManagementCommand(code: isOn ? .startDiscovery : .stopDiscovery, adapter: adapter, parameters: [kinds.rawValue])
  }

  /// That the name of a device that was heard is not known, so that the kernel asks for it.
  static func askName(_ device: FoundDevice, _ adapter: UInt16) -> ManagementCommand {
    let place = device.address.bytes.reversed() + [device.kind.rawValue]
    return ManagementCommand(code: .confirmName, adapter: adapter, parameters: place + [0])
  }

  /// Yes to a pairing in which nobody has anything to compare.
  static func confirm(_ device: LEAddress, _ adapter: UInt16) -> ManagementCommand {
    let place = device.address.bytes.reversed() + [device.isRandom ? 2 : 1]
    return ManagementCommand(code: .confirm, adapter: adapter, parameters: place)
  }

  var encoded: [UInt8] {
    [code.rawValue, adapter, UInt16(parameters.count)].flatMap(ATTMessage.bytes) + parameters
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
    /// A pairing under way waits for a yes; "just works" is one without a number that somebody had to compare.
    case asksToPair(LEAddress, justWorks: Bool)
    case other(UInt16)
  }

  init(adapter: UInt16, content: Content) {
    self.adapter = adapter
    self.content = content
  }

  /// Nil when it is cut off.
  init?(_ bytes: [UInt8]) {
    guard bytes.count >= 6, Int(ATTMessage.word(bytes[4...])) == bytes.count - 6 else { return nil }
    adapter = ATTMessage.word(bytes[2...])
    let parameters = bytes[6...]
    let code = ATTMessage.word(bytes[...])
    switch code {
    case 0x0001, 0x0002:
      guard parameters.count >= 3 else { return nil }
      content = .answer(to: ATTMessage.word(parameters), status: parameters[8], parameters.dropFirst(3))
    case 0x0004: content = .adapterAdded
    case 0x0005: content = .adapterRemoved
    case 0x000F:
      guard parameters.count == 12 else { return nil }
      let address = BluetoothAddress(parameters[6..<12].reversed())
      let isLE = parameters[12] == 1 || parameters[12] == 2
      content =
        isLE
        ? .asksToPair(LEAddress(address: address, isRandom: parameters[12] == 2), justWorks: parameters[13] == 1)
        : .other(code)
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

/// An adapter as the kernel describes it.
struct ManagedAdapter: Hashable, Sendable, CustomStringConvertible {
  let index: UInt16
  let address: BluetoothAddress
  let hasLE: Bool
  let isOn: Bool
  let speaksLE: Bool
  let speaksClassic: Bool

  // Bits of the settings.
  private static let powered: UInt32 = 1 << 0
  private static let classic: UInt32 = 1 << 7
  private static let lowEnergy: UInt32 = 1 << 9

  /// From the answer to `information`: address, version, manufacturer, settings that can be, settings that are.
  init?(_ index: UInt16, _ answer: ArraySlice<UInt8>) {
    guard answer.count >= 17 else { return nil }
    let bytes = Array(answer)
    func settings(_ place: Int) -> UInt32 { (0..<4).reduce(0) { $0 | UInt32(bytes[place + $1]) << UInt32(8 * $1) } }
    self.index = index
    address = BluetoothAddress(bytes[..<6].reversed())
    hasLE = settings(9) & Self.lowEnergy != 0
    isOn = settings(13) & Self.powered != 0
    speaksLE = settings(13) & Self.lowEnergy != 0
    speaksClassic = settings(13) & Self.classic != 0
  }

  var name: String { "hci\(index)" }
  var description: String { "\(name) (\(address))" }
}

/// Where an LE device is: public and random addresses are two worlds.
struct LEAddress: Hashable, Sendable, CustomStringConvertible {
  let address: BluetoothAddress
  let isRandom: Bool

  var description: String { "\(address)" }
}
