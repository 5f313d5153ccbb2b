// The service list that others read: requests in, answers out (Bluetooth Core, SDP, section 4). Values only, without
// state per client: a request for the next piece of an answer contains its position. Every byte of a request is
// hostile.

struct ServiceList: Sendable {
  private struct Entry {
    let handle: UInt32
    let record: ServiceRecord
  }
  private var entries: [Entry] = []
  private var lastHandle: UInt32 = 0xFFFF
  /// Changes with the list: pieces of an answer that were read before a change may not fit those after it.
  private var edition: UInt16 = 0

  /// SDP_ERROR_RSP's codes (section 4.4.1).
  private struct Refusal: Error {
    let code: UInt16
    static let handle = Refusal(code: 2)
    static let syntax = Refusal(code: 3)
    static let size = Refusal(code: 4)
    static let continuation = Refusal(code: 5)
  }

  // Section 4.5.1: the most UUIDs in a pattern.
  private static let longestPattern = 12
  private static let headerSize = 5
  // The size of what surrounds a piece: its length before it, the continuation after it.
  private static let around = 2 + 1 + Self.continuationSize
  private static let continuationSize = 4
  /// The least MTU there is (Bluetooth Core, L2CAP, section 5.1), for channels that do not report theirs.
  static let leastMTU = 48

  // MARK: - Contents

  /// Returns the handle for `remove`.
  mutating func add(_ uuid: BluetoothUUID, channel: UInt8, name: String) -> UInt32 {
    lastHandle += 1
    edition &+= 1
    entries.append(
      Entry(
        handle: lastHandle, record: ServiceRecord(uuid, channel: channel, name: name, handle: lastHandle)))
    return lastHandle
  }

  mutating func remove(_ handle: UInt32) {
    entries.removeAll { $0.handle == handle }
    edition &+= 1
  }

  // MARK: - Requests

  /// The answer to a message, of at most `mtu` bytes; nil if the message is shorter than a header.
  func answer(_ message: [UInt8], mtu: Int) -> [UInt8]? {
    guard message.count >= Self.headerSize else { return nil }
    let header = message[1..<3]
    do throws(Refusal) {
      guard Int(message[3]) << 8 | Int(message[4]) == message.count - Self.headerSize else { throw .size }
      var parameters = message[Self.headerSize...]
      let content =
        switch message[0] {
        case 0x02: try search(&parameters, mtu)
        case 0x04: try attributes(&parameters, mtu)
        case 0x06: try searchAttributes(&parameters, mtu)
        default: throw .syntax
        }
      return [message[0] + 1] + header + DataElement.bigEndian(UInt64(content.count), 2) + content
    } catch {
      return [0x01] + header + [0, 2] + DataElement.bigEndian(UInt64(error.code), 2)
    }
  }

  /// SDP_SERVICE_SEARCH_REQ: handles of the records that match a pattern.
  private func search(_ parameters: inout ArraySlice<UInt8>, _ mtu: Int) throws(Refusal) -> [UInt8] {
    let pattern = try Self.pattern(&parameters)
    let most = Int(try Self.word(&parameters))
    guard most > 0 else { throw .syntax }
    let found = entries.filter { $0.record.matches(pattern) }.prefix(most)
    let handles = found.flatMap { DataElement.bigEndian(UInt64($0.handle), 4) }
    let start = try continuation(&parameters, in: handles.count)
    // Whole handles, after the count of all.
    let room = (mtu - Self.headerSize - Self.around - 2) / 4 * 4
    let end = min(handles.count, start + room)
    return DataElement.bigEndian(UInt64(found.count), 2) + DataElement.bigEndian(UInt64((end - start) / 4), 2)
      + handles[start..<end] + goOn(end, handles.count)
  }

  /// SDP_SERVICE_ATTR_REQ: attributes of one record.
  private func attributes(_ parameters: inout ArraySlice<UInt8>, _ mtu: Int) throws(Refusal) -> [UInt8] {
    let handle = UInt32(try Self.word(&parameters)) << 16 | UInt32(try Self.word(&parameters))
    let most = try Self.most(&parameters)
    let wanted = try Self.ids(&parameters)
    guard let entry = entries.first(where: { $0.handle == handle }) else { throw .handle }
    return try piece(of: (entry.record.list(wanted) ?? .sequence([])).encoded, most, &parameters, mtu)
  }

  /// SDP_SERVICE_SEARCH_ATTR_REQ: both in one.
  private func searchAttributes(_ parameters: inout ArraySlice<UInt8>, _ mtu: Int) throws(Refusal) -> [UInt8] {
    let pattern = try Self.pattern(&parameters)
    let most = try Self.most(&parameters)
    let wanted = try Self.ids(&parameters)
    let lists = entries.filter { $0.record.matches(pattern) }.compactMap { $0.record.list(wanted) }
    return try piece(of: DataElement.sequence(lists).encoded, most, &parameters, mtu)
  }

  private func piece(
    of whole: [UInt8], _ most: Int, _ parameters: inout ArraySlice<UInt8>, _ mtu: Int
  ) throws(Refusal) -> [UInt8] {
    let start = try continuation(&parameters, in: whole.count)
    let end = min(whole.count, start + min(most, mtu - Self.headerSize - Self.around))
    return DataElement.bigEndian(UInt64(end - start), 2) + whole[start..<end] + goOn(end, whole.count)
  }

  // MARK: - Continuations

  /// Where to continue, from the end of the request.
  private func continuation(_ parameters: inout ArraySlice<UInt8>, in count: Int) throws(Refusal) -> Int {
    guard let length = parameters.popFirst() else { throw .syntax }
    guard parameters.count == length else { throw .size }
    guard length > 0 else { return 0 }
    guard length == Self.continuationSize, try Self.word(&parameters) == edition else { throw .continuation }
    let start = Int(try Self.word(&parameters))
    guard start < count, start > 0 else { throw .continuation }
    return start
  }

  private func goOn(_ end: Int, _ count: Int) -> [UInt8] {
    guard end < count else { return [0] }
    return [UInt8(Self.continuationSize)] + DataElement.bigEndian(UInt64(edition), 2)
      + DataElement.bigEndian(UInt64(end), 2)
  }

  // MARK: - Parts of requests

  private static func word(_ bytes: inout ArraySlice<UInt8>) throws(Refusal) -> UInt16 {
    guard let high = bytes.popFirst(), let low = bytes.popFirst() else { throw .syntax }
    return UInt16(high) << 8 | UInt16(low)
  }

  private static func most(_ bytes: inout ArraySlice<UInt8>) throws(Refusal) -> Int {
    let most = Int(try word(&bytes))
    guard most >= 7 else { throw .syntax }  // section 4.6.1
    return most
  }

  private static func sequence(_ bytes: inout ArraySlice<UInt8>) throws(Refusal) -> [DataElement] {
    guard let element = try? DataElement.read(&bytes), case .sequence(let elements) = element, !elements.isEmpty else {
      throw .syntax
    }
    return elements
  }

  private static func pattern(_ bytes: inout ArraySlice<UInt8>) throws(Refusal) -> [BluetoothUUID] {
    let elements = try sequence(&bytes)
    guard elements.count <= longestPattern else { throw .syntax }
    var uuids: [BluetoothUUID] = []
    for element in elements {
      guard case .uuid(let uuid) = element else { throw .syntax }
      uuids.append(uuid)
    }
    return uuids
  }

  /// Single ids, and ranges of ids.
  private static func ids(_ bytes: inout ArraySlice<UInt8>) throws(Refusal) -> [ClosedRange<UInt16>] {
    var ids: [ClosedRange<UInt16>] = []
    for element in try sequence(&bytes) {
      switch element {
      case .unsigned(let id, bytes: 2): ids.append(UInt16(id)...UInt16(id))
      case .unsigned(let both, bytes: 4):
        let (first, last) = (UInt16(both >> 16), UInt16(truncatingIfNeeded: both))
        guard first <= last else { throw .syntax }
        ids.append(first...last)
      default: throw .syntax
      }
    }
    return ids
  }
}
