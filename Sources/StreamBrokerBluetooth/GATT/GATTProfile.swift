// Which characteristics of a BLE service carry the bytes: Nordic UART, HM-10 and others. There is no standard for
// serial ports over GATT, only conventions.

/// What an endpoint asks of a device.
struct GATTWish: Hashable, Sendable {
  enum Writing: Hashable, Sendable {
    case command, request
  }
  let service: BluetoothUUID
  var profile = GATTProfile.auto
  /// Nil: commands if the characteristic accepts them.
  var writing: Writing?
  var mtu = ATTMessage.mostMTU
}

enum GATTProfile: Hashable, Sendable {
  /// The first that notifies or indicates, and the first that can be written. Most such services have one of each, or
  /// one that does both.
  case auto
  /// By their UUIDs: the one to read from, and the one to write to.
  case characteristics(rx: BluetoothUUID, tx: BluetoothUUID)

  /// By its name in a URL; nil if the name is unknown.
  init?(_ word: String) {
    if word == "auto" {
      self = .auto
      return
    }
    guard let known = SerialService.all.lazy.compactMap(\.profile).first(where: { $0.word == word }) else { return nil }
    self = .characteristics(rx: known.rx, tx: known.tx)
  }

  /// The characteristic to read from and the one to write to.
  func choose(from all: [GATTCharacteristic]) throws(GATTLookUp.Fault) -> (
    rx: GATTCharacteristic, tx: GATTCharacteristic
  ) {
    switch self {
    case .auto:
      guard let rx = all.first(where: \.tells) else { throw .noNotifier }
      guard let tx = all.first(where: \.canBeWritten) else { throw .nothingToWrite }
      return (rx, tx)
    case .characteristics(let rxUUID, let txUUID):
      guard let rx = all.first(where: { $0.uuid == rxUUID }) else { throw .missing(rxUUID) }
      guard let tx = all.first(where: { $0.uuid == txUUID }) else { throw .missing(txUUID) }
      guard rx.tells else { throw .silent(rxUUID) }
      guard tx.canBeWritten else { throw .readOnly(txUUID) }
      return (rx, tx)
    }
  }
}

/// A GATT service that is known to carry bytes as a serial port does, and its characteristics if a URL can name them.
/// `profile=auto` finds the characteristics of all of them. To open a device that advertises one of them, the service
/// is enough.
struct SerialService: Sendable {
  /// The name it is commonly known by.
  let name: String
  let uuid: BluetoothUUID
  /// Its characteristics and their word in URLs; nil if only `auto` finds them.
  let profile: (word: String, rx: BluetoothUUID, tx: BluetoothUUID)?

  private init(_ name: String, _ uuid: String, _ profile: (word: String, rx: String, tx: String)? = nil) {
    func known(_ text: String) -> BluetoothUUID {
      guard let uuid = BluetoothUUID(text) else { preconditionFailure("a UUID of the table") }
      return uuid
    }
    self.name = name
    self.uuid = known(uuid)
    self.profile = profile.map { ($0.word, known($0.rx), known($0.tx)) }
  }

  static let all = [
    SerialService(
      "Nordic UART", "6E400001-B5A3-F393-E0A9-E50E24DCCA9E",
      ("nus", rx: "6E400003-B5A3-F393-E0A9-E50E24DCCA9E", tx: "6E400002-B5A3-F393-E0A9-E50E24DCCA9E")),
    SerialService("HM-10", "FFE0", ("hm10", rx: "FFE1", tx: "FFE1")),
    SerialService("serial FFF0", "FFF0", ("fff0", rx: "FFF1", tx: "FFF2")),
    SerialService("serial FF00", "FF00", ("ff00", rx: "FF01", tx: "FF02")),
    SerialService("OBD 18F0", "18F0"),
    SerialService("Espressif SPP", "ABF0"),
    SerialService("Microchip UART", "49535343-FE7D-4AE5-8FA9-9FAFD205E455"),
    SerialService("u-blox SPS", "2456E1B9-26E2-8F83-E744-F34F01E9D701"),
    SerialService("Laird VSP", "569A1101-B87F-490C-92CB-11BA5EA5167C"),
    SerialService("serial E7810A71", "E7810A71-73AE-499D-8C15-FAA9AEF0C3F2"),
  ]

  private static let names = Dictionary(uniqueKeysWithValues: all.map { ($0.uuid, $0.name) })

  /// Nil for a service that is not known as a serial one.
  static func name(of service: BluetoothUUID) -> String? { names[service] }
}

/// A characteristic's declaration (Bluetooth Core, Vol 3, Part G, section 3.3.1).
struct GATTCharacteristic: Hashable, Sendable {
  let declaration: UInt16
  let properties: UInt8
  let value: UInt16
  let uuid: BluetoothUUID

  init?(_ item: ATTMessage.HandleAndValue) {
    let content = item.value
    guard content.count == 5 || content.count == 19, let properties = content.first,
      let uuid = BluetoothUUID(reversed: content.dropFirst(3))
    else { return nil }
    declaration = item.handle
    self.properties = properties
    value = LittleEndian.word(content.dropFirst())
    self.uuid = uuid
  }

  var takesCommands: Bool { properties & 0x04 != 0 }
  var takesRequests: Bool { properties & 0x08 != 0 }
  var notifies: Bool { properties & 0x10 != 0 }
  var indicates: Bool { properties & 0x20 != 0 }
  var tells: Bool { notifies || indicates }
  var canBeWritten: Bool { takesCommands || takesRequests }
}
