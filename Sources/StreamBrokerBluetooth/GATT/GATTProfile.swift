// Which characteristics of a service carry the bytes. There is no standard for serial ports over GATT, only habits.

/// What an endpoint wants of a device.
struct GATTWish: Hashable, Sendable {
  enum Writing: Hashable, Sendable {
    case command, request
  }
  let service: BluetoothUUID
  var profile = GATTProfile.auto
  /// Nil takes commands where the characteristic has them.
  var writing: Writing?
  var mtu = ATTMessage.mostMTU
}

enum GATTProfile: Hashable, Sendable {
  /// The first that tells, and the first that can be written: of most such services there is one of each, or one that does both.
  case auto
  /// By their UUIDs: what is read from, and what is written to.
  case characteristics(rx: BluetoothUUID, tx: BluetoothUUID)

  /// By the name a URL has for it; nil for one that it has not.
  init?(_ name: String) {
    switch name {
    case "auto": self = .auto
    case "nus": self = .pair("6E400003-B5A3-F393-E0A9-E50E24DCCA9E", "6E400002-B5A3-F393-E0A9-E50E24DCCA9E")
    case "hm10": self = .pair("FFE1", "FFE1")
    case "fff0": self = .pair("FFF1", "FFF2")
    case "ff00": self = .pair("FF01", "FF02")
    default: return nil
    }
  }

  private static func pair(_ rx: String, _ tx: String) -> GATTProfile {
    guard let rx = BluetoothUUID(rx), let tx = BluetoothUUID(tx) else { preconditionFailure("a profile's own UUIDs") }
    return .characteristics(rx: rx, tx: tx)
  }

  /// The one to read from and the one to write to.
  func choose(from all: [GATTCharacteristic]) throws(GATTLookUp.Fault) -> (
    rx: GATTCharacteristic, tx: GATTCharacteristic
  ) {
    switch self {
    case .auto:
      guard let rx = all.first(where: \.tells) else { throw .nothingTells }
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
