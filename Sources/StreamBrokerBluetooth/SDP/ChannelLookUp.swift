// From "this service" to "that RFCOMM channel": what to ask, and what the answers mean. Uses no socket and no clock.

struct ChannelLookUp: Sendable {
  enum Step: Hashable, Sendable {
    case send([UInt8])
    case found(UInt8)
    case giveUp(Fault)
    /// An answer to another request.
    case wait
  }

  enum Fault: Error, Hashable, Sendable {
    case noSuchService
    /// There are records, but none over RFCOMM.
    case notOverRFCOMM
    case refused(code: UInt16)
    case malformed(String)
    case endless
  }

  let uuid: BluetoothUUID
  private let mostPieces: Int
  private var request: ServiceSearchRequest
  private var lists: [UInt8] = []
  private var pieces = 0

  // Attributes (Bluetooth Core, SDP, section 5.1), and the UUID of RFCOMM as a protocol.
  private static let classes: UInt16 = 0x0001
  private static let protocols: UInt16 = 0x0004
  private static let rfcomm = BluetoothUUID(0x0003)
  // A phone has some forty records; two attributes of each take 3 KiB.
  static let mostBytes = 64 << 10

  init(_ uuid: BluetoothUUID, mostPieces: Int = 1024) {
    self.uuid = uuid
    self.mostPieces = mostPieces
    request = ServiceSearchRequest(
      transaction: 1, uuid: uuid, attributes: [Self.classes, Self.protocols], continuation: [])
  }

  /// The request to send first.
  var firstRequest: [UInt8] { request.encoded }

  /// Handles one message of the device.
  mutating func handle(_ message: [UInt8]) -> Step {
    do throws(DataElementFault) {
      let answer = try ServiceSearchAnswer(message)
      guard answer.transaction == request.transaction else { return .wait }
      switch answer.content {
      case .refused(let code): return .giveUp(.refused(code: code))
      case .piece(let piece, let continuation):
        lists += piece
        pieces += 1
        guard lists.count <= Self.mostBytes, pieces <= mostPieces else { return .giveUp(.endless) }
        if continuation.isEmpty { return try conclude() }
        request.continuation = Array(continuation)
        request.transaction &+= 1
        return .send(request.encoded)
      }
    } catch {
      return .giveUp(.malformed(error.what))
    }
  }

  // A record of the class that was asked for has priority over one that names it elsewhere, as a profile or a protocol.
  private func conclude() throws(DataElementFault) -> Step {
    guard case .sequence(let records) = try DataElement.read(all: lists) else {
      throw DataElementFault(what: "an answer that is not a list")
    }
    var fallback: UInt8?
    for record in records {
      guard case .sequence(let pairs) = record else { throw DataElementFault(what: "a record that is not a list") }
      guard let channel = Self.value(Self.protocols, in: pairs).flatMap(Self.channel) else { continue }
      if case .sequence(let classes)? = Self.value(Self.classes, in: pairs), classes.contains(.uuid(uuid)) {
        return .found(channel)
      }
      fallback = fallback ?? channel
    }
    if let fallback { return .found(fallback) }
    return .giveUp(records.isEmpty ? .noSuchService : .notOverRFCOMM)
  }

  private static func value(_ attribute: UInt16, in pairs: [DataElement]) -> DataElement? {
    for index in stride(from: 0, to: pairs.count - 1, by: 2)
    where pairs[index] == .unsigned(UInt64(attribute), bytes: 2) {
      return pairs[index + 1]
    }
    return nil
  }

  /// From a list of protocols with their parameters, or from several such lists to choose from.
  private static func channel(_ protocols: DataElement) -> UInt8? {
    switch protocols {
    case .alternative(let stacks): return stacks.lazy.compactMap(channel).first
    case .sequence(let layers):
      for case .sequence(let layer) in layers where layer.first == .uuid(rfcomm) && layer.count > 1 {
        if case .unsigned(let number, bytes: _) = layer[1], (1...30).contains(number) { return UInt8(number) }
      }
      return nil
    default: return nil
    }
  }
}
