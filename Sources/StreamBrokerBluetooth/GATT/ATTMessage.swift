// The messages of the Attribute Protocol (Bluetooth Core, Vol 3, Part F, section 3.4): what we ask a device, and what it says.
// Values only; whatever a device sends is read with bounds.

/// What a device sends.
enum ATTMessage: Hashable, Sendable {
  /// ATT_ERROR_RSP: which request it is about, and why not.
  case refusal(of: UInt8, code: UInt8)
  case mtuRequest(Int)
  case mtu(Int)
  /// ATT_FIND_INFORMATION_RSP: attributes and their types.
  case types([TypedHandle])
  /// ATT_FIND_BY_TYPE_VALUE_RSP: the groups that were asked for.
  case groups([ClosedRange<UInt16>])
  /// ATT_READ_BY_TYPE_RSP: attributes and their values.
  case values([HandleAndValue])
  /// ATT_READ_RSP or ATT_READ_BLOB_RSP: so much of a value.
  case part(ArraySlice<UInt8>)
  case written
  case notification(UInt16, ArraySlice<UInt8>)
  case indication(UInt16, ArraySlice<UInt8>)
  /// A request that we have no answer for but a refusal.
  case request(UInt8)
  /// A command, or an answer to what we never ask.
  case other(UInt8)

  struct TypedHandle: Hashable, Sendable {
    let handle: UInt16
    let type: BluetoothUUID
  }
  struct HandleAndValue: Hashable, Sendable {
    let handle: UInt16
    let value: ArraySlice<UInt8>
  }
  struct Fault: Error, Hashable, Sendable {
    let what: String
  }

  /// Every server has at least this much (section 5.2.1 of Part G), and before anything is agreed it is what holds.
  static let leastMTU = 23
  /// An attribute has 512 bytes at most (section 3.2.9): more than this is of no use.
  static let mostMTU = 517
  static let longestValue = 512
  static let notificationOpcode: UInt8 = 0x1B
  static let confirmation: [UInt8] = [0x1E]

  init(_ bytes: ArraySlice<UInt8>) throws(Fault) {
    guard let opcode = bytes.first else { throw Fault(what: "an empty message") }
    let content = bytes.dropFirst()
    switch opcode {
    case 0x01:
      guard content.count == 4 else { throw Fault(what: "a refusal of another length") }
      self = .refusal(of: content[content.startIndex], code: content[content.startIndex + 3])
    case 0x02, 0x03:
      guard content.count == 2 else { throw Fault(what: "an MTU of another length") }
      self = opcode == 0x02 ? .mtuRequest(Int(LittleEndian.word(content))) : .mtu(Int(LittleEndian.word(content)))
    case 0x05: self = .types(try Self.types(content))
    case 0x07: self = .groups(try Self.groups(content))
    case 0x09: self = .values(try Self.values(content))
    case 0x0B, 0x0D: self = .part(content)
    case 0x13: self = .written
    case 0x1B, 0x1D:
      guard content.count >= 2 else { throw Fault(what: "a value without a handle") }
      let handle = LittleEndian.word(content)
      self =
        opcode == 0x1B ? .notification(handle, content.dropFirst(2)) : .indication(handle, content.dropFirst(2))
    // Even ones are a client's (section 3.3); those with bit 6 are commands, and are not answered.
    case _ where opcode & 1 == 0 && opcode & 0x40 == 0 && opcode != 0x1E: self = .request(opcode)
    default: self = .other(opcode)
    }
  }

  /// What has to be said to a request of the device, who may be a client as well; nil to all else. We have no attributes.
  func answer(mtu: Int) -> [UInt8]? {
    switch self {
    case .mtuRequest: [0x03] + LittleEndian.bytes(UInt16(clamping: mtu))
    case .request(let opcode): [0x01, opcode, 0, 0, 0x06]  // request not supported
    case .indication: Self.confirmation
    default: nil
    }
  }

  private static func types(_ content: ArraySlice<UInt8>) throws(Fault) -> [TypedHandle] {
    guard let format = content.first, format == 1 || format == 2 else { throw Fault(what: "types of no known form") }
    return try items(content.dropFirst(), of: format == 1 ? 4 : 18).compactMap { item in
      BluetoothUUID(reversed: item.dropFirst(2)).map { TypedHandle(handle: LittleEndian.word(item), type: $0) }
    }
  }

  private static func groups(_ content: ArraySlice<UInt8>) throws(Fault) -> [ClosedRange<UInt16>] {
    var groups: [ClosedRange<UInt16>] = []
    for item in try items(content, of: 4) {
      let (first, last) = (LittleEndian.word(item), LittleEndian.word(item.dropFirst(2)))
      guard 1 <= first, first <= last else { throw Fault(what: "a group from \(first) to \(last)") }
      groups.append(first...last)
    }
    return groups
  }

  private static func values(_ content: ArraySlice<UInt8>) throws(Fault) -> [HandleAndValue] {
    guard let length = content.first, length >= 2 else { throw Fault(what: "values without handles") }
    return try items(content.dropFirst(), of: Int(length)).map {
      HandleAndValue(handle: LittleEndian.word($0), value: $0.dropFirst(2))
    }
  }

  private static func items(_ content: ArraySlice<UInt8>, of size: Int) throws(Fault) -> [ArraySlice<UInt8>] {
    guard !content.isEmpty, content.count.isMultiple(of: size) else { throw Fault(what: "a list that is cut off") }
    return stride(from: content.startIndex, to: content.endIndex, by: size).map { content[$0..<$0 + size] }
  }
}

/// What we send and get an answer to; one at a time (section 3.3.2).
enum ATTRequest: Hashable, Sendable {
  case exchangeMTU(Int)
  /// ATT_FIND_BY_TYPE_VALUE_REQ for primary services of a UUID.
  case service(BluetoothUUID)
  /// ATT_READ_BY_TYPE_REQ for declarations of characteristics.
  case characteristics(ClosedRange<UInt16>)
  /// ATT_FIND_INFORMATION_REQ.
  case types(ClosedRange<UInt16>)
  case write(UInt16, [UInt8])
  /// ATT_READ_BY_TYPE_REQ for values of a type, wherever they are.
  case values(of: BluetoothUUID)
  /// ATT_READ_REQ, and ATT_READ_BLOB_REQ for what lies behind so many bytes.
  case read(UInt16)
  case readOn(UInt16, from: Int)

  var opcode: UInt8 {
    switch self {
    case .exchangeMTU: 0x02
    case .types: 0x04
    case .service: 0x06
    case .characteristics, .values: Self.readByType
    case .write: 0x12
    case .read: Self.readValue
    case .readOn: Self.readBlob
    }
  }

  static let readByType: UInt8 = 0x08
  static let readValue: UInt8 = 0x0A
  static let readBlob: UInt8 = 0x0C
  static let writeRequest: UInt8 = 0x12
  static let writeCommand: UInt8 = 0x52

  // Assigned numbers: declarations and descriptors.
  private static let primaryService: UInt16 = 0x2800
  private static let characteristic: UInt16 = 0x2803

  var encoded: [UInt8] {
    let words: [UInt16] =
      switch self {
      case .exchangeMTU(let mtu): [UInt16(clamping: mtu)]
      case .service: [1, 0xFFFF, Self.primaryService]
      case .characteristics(let range): [range.lowerBound, range.upperBound, Self.characteristic]
      case .types(let range): [range.lowerBound, range.upperBound]
      case .write(let handle, _), .read(let handle): [handle]
      case .readOn(let handle, let offset): [handle, UInt16(clamping: offset)]
      case .values: [1, 0xFFFF]
      }
    let tail: [UInt8] =
      switch self {
      case .service(let uuid), .values(let uuid): uuid.attribute
      case .write(_, let value): value
      default: []
      }
    return [opcode] + words.flatMap(LittleEndian.bytes) + tail
  }
}

extension BluetoothUUID {
  /// As ATT has it: the last byte first.
  init?(reversed bytes: some BidirectionalCollection<UInt8>) { self.init(Array(bytes.reversed())) }

  /// The same, to be sent: two bytes where that is enough, else all. ATT knows no UUID of four (Part F, section 3.2.1).
  var attribute: [UInt8] { shortest.count == 2 ? shortest.reversed() : bytes.reversed() }
}
