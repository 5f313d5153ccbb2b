// From a service to a channel: the requests, and the result of each answer.

import Testing

@testable import StreamBrokerBluetooth

@Suite("A look-up of a channel")
struct ChannelLookUpTests {
  private static let serial = BluetoothUUID(0x1101)

  /// A record: its classes, and the protocols under it.
  static func record(_ classes: [UInt32], _ protocols: DataElement) -> DataElement {
    .sequence([
      .unsigned(1, bytes: 2), .sequence(classes.map { .uuid(BluetoothUUID($0)) }), .unsigned(4, bytes: 2), protocols,
    ])
  }

  static func rfcomm(_ channel: UInt64) -> DataElement {
    .sequence([
      .sequence([.uuid(BluetoothUUID(0x0100))]),
      .sequence([.uuid(BluetoothUUID(0x0003)), .unsigned(channel, bytes: 1)]),
    ])
  }

  static func answer(_ transaction: UInt16, _ piece: [UInt8], continuation: [UInt8] = []) -> [UInt8] {
    let parameters =
      DataElement.bigEndian(UInt64(piece.count), 2) + piece + [UInt8(continuation.count)] + continuation
    return [7] + DataElement.bigEndian(UInt64(transaction), 2) + DataElement.bigEndian(UInt64(parameters.count), 2)
      + parameters
  }

  private func outcome(_ records: [DataElement]) -> ChannelLookUp.Step {
    var lookUp = ChannelLookUp(Self.serial)
    return lookUp.handle(Self.answer(1, DataElement.sequence(records).encoded))
  }

  @Test("asks for classes and protocols of the records that name the service")
  func request() {
    #expect(
      ChannelLookUp(Self.serial).firstRequest == [
        0x06, 0, 1, 0, 16,
        0x35, 3, 0x19, 0x11, 0x01,  // the search pattern
        0xFF, 0xFF,
        0x35, 6, 0x09, 0, 1, 0x09, 0, 4,  // the attributes
        0,
      ])
  }

  @Test("finds the channel")
  func found() {
    #expect(outcome([Self.record([0x1101], Self.rfcomm(3))]) == .found(3))
    #expect(outcome([Self.record([0x1101], Self.rfcomm(30))]) == .found(30))
  }

  @Test("prefers a record of that class to one that only names it")
  func classes() {
    #expect(outcome([Self.record([0x1200], Self.rfcomm(1)), Self.record([0x1101], Self.rfcomm(2))]) == .found(2))
    #expect(outcome([Self.record([0x1200], Self.rfcomm(1)), Self.record([0x1201], Self.rfcomm(2))]) == .found(1))
  }

  @Test("looks into lists to choose from, and beyond records without RFCOMM")
  func alternatives() {
    let psm = DataElement.sequence([.sequence([.uuid(BluetoothUUID(0x0100)), .unsigned(25, bytes: 2)])])
    let choice = DataElement.alternative([psm, Self.rfcomm(9)])
    #expect(outcome([Self.record([0x1101], psm), Self.record([0x1101], choice)]) == .found(9))
    #expect(outcome([Self.record([0x1101], psm)]) == .giveUp(.notOverRFCOMM))
  }

  @Test("takes no channel that there can't be", arguments: [0, 31, 255])
  func channel(number: UInt64) {
    #expect(outcome([Self.record([0x1101], Self.rfcomm(number))]) == .giveUp(.notOverRFCOMM))
  }

  @Test("reports that there is no such service")
  func none() {
    #expect(outcome([]) == .giveUp(.noSuchService))
  }

  @Test("joins an answer in pieces, wherever it is cut", arguments: 1...20)
  func pieces(size: Int) throws {
    let lists = DataElement.sequence([Self.record([0x1101], Self.rfcomm(5))]).encoded
    var lookUp = ChannelLookUp(Self.serial)
    var transaction: UInt16 = 1
    var rest = lists[...]
    while rest.count > size {
      let mark = [UInt8(rest.count)]
      let step = lookUp.handle(Self.answer(transaction, Array(rest.prefix(size)), continuation: mark))
      transaction += 1
      guard case .send(let request) = step else { throw DataElementFault(what: "no further request: \(step)") }
      #expect(Array(request.suffix(2)) == [1] + mark)
      #expect(Array(request[1...2]) == DataElement.bigEndian(UInt64(transaction), 2))
      rest = rest.dropFirst(size)
    }
    #expect(lookUp.handle(Self.answer(transaction, Array(rest))) == .found(5))
  }

  @Test("ends though the pieces never end", arguments: [0, 600])
  func endless(size: Int) {
    var lookUp = ChannelLookUp(Self.serial)
    var rounds = 0
    while rounds < 10_000 {
      let number = UInt16(truncatingIfNeeded: rounds + 1)
      let step = lookUp.handle(Self.answer(number, [UInt8](repeating: 0, count: size), continuation: [1]))
      rounds += 1
      guard case .send = step else {
        #expect(step == .giveUp(.endless))
        break
      }
    }
    #expect(rounds <= 1025)
  }

  @Test("ignores answers to other requests")
  func strangers() {
    var lookUp = ChannelLookUp(Self.serial)
    #expect(lookUp.handle(Self.answer(7, [])) == .wait)
    #expect(lookUp.handle(Self.answer(1, [0x35, 0])) == .giveUp(.noSuchService))
  }

  @Test("reports a refusal with its code")
  func refused() {
    var lookUp = ChannelLookUp(Self.serial)
    #expect(lookUp.handle([1, 0, 1, 0, 2, 0, 6]) == .giveUp(.refused(code: 6)))
  }

  @Test(
    "gives up on an invalid answer",
    arguments: [
      [], [7], [7, 0, 1, 0], [7, 0, 1, 0, 0], [7, 0, 1, 0, 9, 0, 0, 0], [7, 0, 1, 0, 2, 0, 0],
      [7, 0, 1, 0, 3, 0, 1, 0],
      [7, 0, 1, 0, 3, 0, 0, 1], [7, 0, 1, 0, 20, 0, 0, 17] + [UInt8](repeating: 1, count: 17), [9, 0, 1, 0, 2, 0, 0],
      ChannelLookUpTests.answer(1, []), ChannelLookUpTests.answer(1, [0x08, 1]),
      ChannelLookUpTests.answer(1, [0x35, 2, 0x08, 1]), ChannelLookUpTests.answer(1, [0x35, 0, 0]),
    ] as [[UInt8]])
  func broken(message: [UInt8]) {
    var lookUp = ChannelLookUp(Self.serial)
    guard case .giveUp(.malformed(let what)) = lookUp.handle(message) else {
      Issue.record("\(message) was taken for an answer")
      return
    }
    #expect(!what.isEmpty)
  }
}
