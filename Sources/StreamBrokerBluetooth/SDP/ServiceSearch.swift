// The one transaction of SDP that we need (Bluetooth Core, SDP, section 4.7): all records that name a service, with
// some of their attributes, in one answer or several. Values only; uses no socket.

/// SDP_SERVICE_SEARCH_ATTR_REQ.
struct ServiceSearchRequest: Hashable, Sendable {
  var transaction: UInt16
  var uuid: BluetoothUUID
  /// In ascending order.
  var attributes: [UInt16]
  /// The continuation of the previous answer; empty the first time.
  var continuation: [UInt8]

  static let kind: UInt8 = 0x06

  var encoded: [UInt8] {
    let list = DataElement.sequence(attributes.map { .unsigned(UInt64($0), bytes: 2) })
    let parameters =
      DataElement.sequence([.uuid(uuid)]).encoded + [0xFF, 0xFF]  // as many bytes of attributes as the device likes
      + list.encoded + [UInt8(continuation.count)] + continuation
    return [Self.kind] + DataElement.bigEndian(UInt64(transaction), 2)
      + DataElement.bigEndian(UInt64(parameters.count), 2) + parameters
  }
}

/// The answer to it.
struct ServiceSearchAnswer: Hashable, Sendable {
  let transaction: UInt16
  let content: Content

  enum Content: Hashable, Sendable {
    /// A piece of the attribute lists; with a continuation, more follow.
    case piece(ArraySlice<UInt8>, continuation: ArraySlice<UInt8>)
    /// The code of an SDP_ERROR_RSP.
    case refused(UInt16)
  }

  private static let refusal: UInt8 = 0x01
  private static let answer: UInt8 = 0x07
  // Section 4.3: the continuation information has at most 16 bytes.
  private static let longestContinuation = 16

  init(_ bytes: [UInt8]) throws(DataElementFault) {
    guard bytes.count >= 5 else { throw DataElementFault(what: "an answer without a header") }
    transaction = Self.word(bytes[1...])
    guard Int(Self.word(bytes[3...])) == bytes.count - 5 else {
      throw DataElementFault(what: "an answer of another length")
    }
    let parameters = bytes[5...]
    guard parameters.count >= 2 else { throw DataElementFault(what: "an answer that is cut off") }
    let first = Self.word(parameters)
    switch bytes[0] {
    case Self.refusal: content = .refused(first)
    case Self.answer:
      let rest = parameters.dropFirst(2)
      guard rest.count > Int(first) else { throw DataElementFault(what: "an answer that is cut off") }
      let continuation = rest.dropFirst(Int(first))
      let length = Int(continuation.first ?? 0)
      guard length <= Self.longestContinuation, continuation.count == 1 + length else {
        throw DataElementFault(what: "a continuation of another length")
      }
      content = .piece(rest.prefix(Int(first)), continuation: continuation.dropFirst())
    default: throw DataElementFault(what: "an answer of kind \(bytes[0])")
    }
  }

  private static func word(_ bytes: ArraySlice<UInt8>) -> UInt16 {
    bytes.prefix(2).reduce(0) { $0 << 8 | UInt16($1) }
  }
}
