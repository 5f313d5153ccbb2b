// The messages of the Attribute Protocol (Bluetooth Core, Vol 3, Part F, section 3.4): our requests, and what a device
// sends. Values only. All input from a device is read with bounds.

/// A message from a device.
enum ATTMessage: Hashable, Sendable {
  /// ATT_ERROR_RSP: the request that is refused, and why.
  case refusal(of: UInt8, code: UInt8)
  case mtuRequest(Int)
  case mtu(Int)
  /// ATT_FIND_INFORMATION_RSP: attributes and their types.
  case types([TypedHandle])
  /// ATT_FIND_BY_TYPE_VALUE_RSP: the groups asked for.
  case groups([ClosedRange<UInt16>])
  /// ATT_READ_BY_TYPE_RSP: attributes and their values.
  case values([HandleAndValue])
  /// ATT_READ_RSP or ATT_READ_BLOB_RSP: part of a value.
  case part(ArraySlice<UInt8>)
  case written
  case notification(UInt16, ArraySlice<UInt8>)
  case indication(UInt16, ArraySlice<UInt8>)
  /// A request that we can only refuse.
  case request(UInt8)
  /// A command, or the answer to a request that we never send.
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

  /// Every server has at least this MTU (section 5.2.1 of Part G). It applies until another one is agreed.
  static let leastMTU = 23
  /// An attribute has at most 512 bytes (section 3.2.9), so a larger MTU is of no use.
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
    // Even opcodes are a client's (section 3.3). Those with bit 6 are commands, which get no answer.
    case _ where opcode & 1 == 0 && opcode & 0x40 == 0 && opcode != 0x1E: self = .request(opcode)
    default: self = .other(opcode)
    }
  }

  /// The answer that a message of the device needs; nil for none. The device may be a client as well, but we have no
  /// attributes.
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

/// Our requests, which get an answer; one at a time (section 3.3.2).
enum ATTRequest: Hashable, Sendable {
  case exchangeMTU(Int)
  /// ATT_FIND_BY_TYPE_VALUE_REQ for primary services of a UUID.
  case service(BluetoothUUID)
  /// ATT_READ_BY_TYPE_REQ for declarations of characteristics.
  case characteristics(ClosedRange<UInt16>)
  /// ATT_FIND_INFORMATION_REQ.
  case types(ClosedRange<UInt16>)
  case write(UInt16, [UInt8])
  /// ATT_READ_BY_TYPE_REQ for values of a type, over all handles.
  case values(of: BluetoothUUID)
  /// ATT_READ_REQ; ATT_READ_BLOB_REQ for the rest of the value from an offset.
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
  /// In ATT's order: the last byte first.
  init?(reversed bytes: some BidirectionalCollection<UInt8>) { self.init(Array(bytes.reversed())) }

  /// The same, to send: two bytes if that is enough, else all 16. ATT has no UUIDs of four bytes (Part F, section
  /// 3.2.1).
  var attribute: [UInt8] { shortest.count == 2 ? shortest.reversed() : bytes.reversed() }
}
