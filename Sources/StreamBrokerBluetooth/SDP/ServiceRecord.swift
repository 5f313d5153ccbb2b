// The record of one of our serial ports in a service list (Bluetooth Core, SDP, section 5.1; the Serial Port Profile,
// section 6).

struct ServiceRecord: Hashable, Sendable {
  struct Attribute: Hashable, Sendable {
    let id: UInt16
    let value: DataElement
  }
  /// In ascending order of ids.
  let attributes: [Attribute]

  private static let handleID: UInt16 = 0x0000
  private static let serialPort = BluetoothUUID(0x1101)

  /// A service of class `uuid` on an RFCOMM channel. `handle` is its number in a list, 0x00010000 at least; nil if
  /// another program keeps the list and assigns the number.
  init(_ uuid: BluetoothUUID, channel: UInt8, name: String, handle: UInt32? = nil) {
    var attributes: [Attribute] = []
    if let handle { attributes.append(Attribute(id: Self.handleID, value: .unsigned(UInt64(handle), bytes: 4))) }
    attributes += [
      Attribute(id: 0x0001, value: .sequence([.uuid(uuid)])),  // classes
      Attribute(
        id: 0x0004,  // protocols
        value: .sequence([
          .sequence([.uuid(BluetoothUUID(0x0100))]),
          .sequence([.uuid(BluetoothUUID(0x0003)), .unsigned(UInt64(channel), bytes: 1)]),
        ])),
      Attribute(id: 0x0005, value: .sequence([.uuid(BluetoothUUID(0x1002))])),  // the public browse group
      // Texts from 0x0100 on are English, in UTF-8.
      Attribute(
        id: 0x0006,
        value: .sequence([.unsigned(0x656E, bytes: 2), .unsigned(106, bytes: 2), .unsigned(0x0100, bytes: 2)])),
    ]
    if uuid == Self.serialPort {
      let profile = DataElement.sequence([.uuid(uuid), .unsigned(0x0102, bytes: 2)])
      attributes.append(Attribute(id: 0x0009, value: .sequence([profile])))
    }
    attributes.append(Attribute(id: 0x0100, value: .text(Array(name.utf8))))
    self.attributes = attributes
  }

  /// Whether each of the UUIDs occurs somewhere in the record: how a search finds records (section 2.6.3).
  func matches(_ uuids: [BluetoothUUID]) -> Bool {
    uuids.allSatisfy { uuid in attributes.contains { $0.value.names(uuid) } }
  }

  /// Ids and values of the attributes that are wanted, as one sequence; nil if there are none.
  func list(_ wanted: [ClosedRange<UInt16>]) -> DataElement? {
    let found = attributes.filter { attribute in wanted.contains { $0.contains(attribute.id) } }
    guard !found.isEmpty else { return nil }
    return .sequence(found.flatMap { [.unsigned(UInt64($0.id), bytes: 2), $0.value] })
  }

  /// The whole record.
  var element: DataElement { list([0...0xFFFF]) ?? .sequence([]) }
}

extension DataElement {
  fileprivate func names(_ wanted: BluetoothUUID) -> Bool {
    switch self {
    case .uuid(let uuid): uuid == wanted
    case .sequence(let elements), .alternative(let elements): elements.contains { $0.names(wanted) }
    default: false
    }
  }
}
