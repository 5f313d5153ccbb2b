// The elements of SDP's attributes (Bluetooth Core, SDP, section 3). All input from a device is read with bounds, and
// no length is trusted.

indirect enum DataElement: Hashable, Sendable {
  case null
  /// Of 1, 2, 4 or 8 bytes.
  case unsigned(UInt64, bytes: Int)
  /// Of 1, 2, 4 or 8 bytes, as its bit pattern.
  case signed(UInt64, bytes: Int)
  /// An integer of 16 bytes: kind 1 is unsigned, 2 signed.
  case wide([UInt8], kind: UInt8)
  case uuid(BluetoothUUID)
  case text([UInt8])
  case flag(Bool)
  case sequence([DataElement])
  case alternative([DataElement])
  case url([UInt8])
}

/// The bytes are not a data element.
struct DataElementFault: Error, Hashable, Sendable {
  let what: String
}

// MARK: - Reading

extension DataElement {
  /// Nested sequences; records have four levels.
  private static let deepest = 16

  /// Reads one from the front of `bytes`, which then holds the rest.
  static func read(_ bytes: inout ArraySlice<UInt8>) throws(DataElementFault) -> DataElement {
    try read(&bytes, depth: 0)
  }

  /// Reads all of `bytes` as one element.
  static func read(all bytes: [UInt8]) throws(DataElementFault) -> DataElement {
    var rest = bytes[...]
    let element = try read(&rest)
    guard rest.isEmpty else { throw DataElementFault(what: "bytes after a data element") }
    return element
  }

  private static func read(_ bytes: inout ArraySlice<UInt8>, depth: Int) throws(DataElementFault) -> DataElement {
    guard depth <= deepest else { throw DataElementFault(what: "data elements nested too deeply") }
    guard let header = bytes.popFirst() else { throw DataElementFault(what: "a data element is missing") }
    let kind = header >> 3
    guard kind != 0 else {
      guard header == 0 else { throw DataElementFault(what: "a null with a size") }
      return .null
    }
    var content = try readContent(&bytes, size: header & 7)
    switch (kind, content.count) {
    case (1, 1), (1, 2), (1, 4), (1, 8): return .unsigned(number(content), bytes: content.count)
    case (2, 1), (2, 2), (2, 4), (2, 8): return .signed(number(content), bytes: content.count)
    case (1, 16), (2, 16): return .wide(Array(content), kind: kind)
    case (3, _):
      guard header & 7 <= 4, let uuid = BluetoothUUID(content) else { break }
      return .uuid(uuid)
    case (4, _) where header & 7 >= 5: return .text(Array(content))
    case (5, 1) where header & 7 == 0: return .flag(content.first != 0)
    case (6, _) where header & 7 >= 5: return .sequence(try readAll(&content, depth: depth))
    case (7, _) where header & 7 >= 5: return .alternative(try readAll(&content, depth: depth))
    case (8, _) where header & 7 >= 5: return .url(Array(content))
    default: break
    }
    throw DataElementFault(what: "a data element of type \(kind) and size \(header & 7)")
  }

  private static func readAll(
    _ content: inout ArraySlice<UInt8>, depth: Int
  ) throws(DataElementFault) -> [DataElement] {
    var elements: [DataElement] = []
    while !content.isEmpty { elements.append(try read(&content, depth: depth + 1)) }
    return elements
  }

  /// Size indices 0 to 4 mean 1, 2, 4, 8 and 16 bytes; with 5 to 7 the length follows, in 1, 2 or 4 bytes.
  private static func readContent(
    _ bytes: inout ArraySlice<UInt8>, size: UInt8
  ) throws(DataElementFault) -> ArraySlice<UInt8> {
    var count = 1 << Int(size)
    if size >= 5 {
      let width = 1 << Int(size - 5)
      guard bytes.count >= width else { throw DataElementFault(what: "a length is cut off") }
      count = Int(number(bytes.prefix(width)))
      bytes = bytes.dropFirst(width)
    }
    guard bytes.count >= count else { throw DataElementFault(what: "a data element is cut off") }
    defer { bytes = bytes.dropFirst(count) }
    return bytes.prefix(count)
  }

  private static func number(_ bytes: ArraySlice<UInt8>) -> UInt64 { bytes.reduce(0) { $0 << 8 | UInt64($1) } }
}

// MARK: - Writing

extension DataElement {
  var encoded: [UInt8] {
    switch self {
    case .null: return [0]
    case .unsigned(let value, let count): return Self.fixed(1, Self.bigEndian(value, count))
    case .signed(let value, let count): return Self.fixed(2, Self.bigEndian(value, count))
    case .wide(let bytes, let kind): return Self.fixed(kind, bytes)
    case .uuid(let uuid): return Self.fixed(3, Array(uuid.shortest))
    case .flag(let isSet): return Self.fixed(5, [isSet ? 1 : 0])
    case .text(let bytes): return Self.counted(4, bytes)
    case .sequence(let elements): return Self.counted(6, elements.flatMap(\.encoded))
    case .alternative(let elements): return Self.counted(7, elements.flatMap(\.encoded))
    case .url(let bytes): return Self.counted(8, bytes)
    }
  }

  static func bigEndian(_ value: UInt64, _ count: Int) -> [UInt8] {
    (1...count).map { UInt8(truncatingIfNeeded: value >> UInt64(8 * (count - $0))) }
  }

  private static func fixed(_ kind: UInt8, _ content: [UInt8]) -> [UInt8] {
    [kind << 3 | UInt8(content.count.trailingZeroBitCount)] + content  // 1, 2, 4, 8 and 16 are sizes 0 to 4
  }

  private static func counted(_ kind: UInt8, _ content: [UInt8]) -> [UInt8] {
    let width = content.count < 1 << 8 ? 1 : content.count < 1 << 16 ? 2 : 4
    return [kind << 3 | UInt8(5 + width.trailingZeroBitCount)] + bigEndian(UInt64(content.count), width) + content
  }
}
