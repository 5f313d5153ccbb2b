// What is published about our services: records, answers to look-ups, and what is registered with bluetoothd.

import Testing

@testable import StreamBrokerBluetooth

@Suite("A list of services")
struct ServiceListTests {
  private static let serial = BluetoothUUID(0x1101)
  private static let everything: [UInt8] = [0x35, 5, 0x0A, 0, 0, 0xFF, 0xFF]

  /// A request: its kind, and its parameters before the continuation.
  static func request(_ kind: UInt8, _ parameters: [UInt8], continuation: [UInt8] = []) -> [UInt8] {
    let all = parameters + [UInt8(continuation.count)] + continuation
    return [kind, 0xAB, 0xCD] + DataElement.bigEndian(UInt64(all.count), 2) + all
  }
  private static func pattern(_ uuids: BluetoothUUID...) -> [UInt8] {
    DataElement.sequence(uuids.map { .uuid($0) }).encoded
  }
  static func searchAttributes(_ uuid: BluetoothUUID, most: [UInt8] = [0xFF, 0xFF], continuation: [UInt8] = [])
    -> [UInt8]
  {
    request(6, pattern(uuid) + most + everything, continuation: continuation)
  }
  private static func content(_ answer: [UInt8]?) -> [UInt8]? { answer.map { Array($0[5...]) } }
  private static let tooMany: [UInt8] = [0x35, 39] + (0..<13).flatMap { _ in [0x19, 0x11, 0x01] as [UInt8] }
  private static func refusal(_ code: UInt8) -> [UInt8] { [1, 0xAB, 0xCD, 0, 2, 0, code] }

  static func filled() -> ServiceList {
    var list = ServiceList()
    _ = list.add(serial, channel: 3, name: "gps")
    _ = list.add(BluetoothUUID("E1F9F7A0-1111-4222-8333-444455556666")!, channel: 5, name: "board")
    return list
  }

  @Test("describes a serial port as the Serial Port Profile requires")
  func record() {
    let record = ServiceRecord(Self.serial, channel: 3, name: "gps", handle: 0x10000)
    #expect(
      record.element.encoded == [
        0x35, 0x4C,
        0x09, 0, 0, 0x0A, 0, 1, 0, 0,  // handle
        0x09, 0, 1, 0x35, 3, 0x19, 0x11, 0x01,  // classes
        0x09, 0, 4, 0x35, 12, 0x35, 3, 0x19, 0x01, 0x00, 0x35, 5, 0x19, 0, 3, 0x08, 3,  // protocols
        0x09, 0, 5, 0x35, 3, 0x19, 0x10, 0x02,  // browse group
        0x09, 0, 6, 0x35, 9, 0x09, 0x65, 0x6E, 0x09, 0, 106, 0x09, 1, 0,  // language
        0x09, 0, 9, 0x35, 8, 0x35, 6, 0x19, 0x11, 0x01, 0x09, 1, 2,  // profile
        0x09, 1, 0, 0x25, 3, 0x67, 0x70, 0x73,  // name
      ])
    let other = ServiceRecord(BluetoothUUID(0x1234), channel: 3, name: "gps")
    #expect(other.attributes.map(\.id) == [1, 4, 5, 6, 0x100])
  }

  @Test("is found by any UUIDs in a record, if all of a pattern match")
  func patterns() {
    let list = Self.filled()
    let handles = { (pattern: [UInt8]) in Self.content(list.answer(Self.request(2, pattern + [0, 9]), mtu: 672)) }
    let (first, second): ([UInt8], [UInt8]) = ([0, 1, 0, 0], [0, 1, 0, 1])
    #expect(handles(Self.pattern(Self.serial)) == [0, 1, 0, 1] + first + [0])
    #expect(handles(Self.pattern(BluetoothUUID(0x0003))) == [0, 2, 0, 2] + first + second + [0])
    #expect(handles(Self.pattern(BluetoothUUID(0x1002), Self.serial)) == [0, 1, 0, 1] + first + [0])
    #expect(handles(Self.pattern(BluetoothUUID(0x1112))) == [0, 0, 0, 0, 0])
    // The same UUID in 128 bits gives the same result.
    let long = [0x35, 17, 0x1C] + Self.serial.bytes
    #expect(handles(long) == [0, 1, 0, 1] + first + [0])
    let one = list.answer(Self.request(2, Self.pattern(BluetoothUUID(3)) + [0, 1]), mtu: 672)
    #expect(Self.content(one) == [0, 1, 0, 1] + first + [0])
  }

  @Test("returns the requested attributes of a record")
  func attributes() {
    let list = Self.filled()
    let ask = { (handle: UInt8, ids: [UInt8]) in
      list.answer(Self.request(4, [0, 1, 0, handle, 0xFF, 0xFF] + ids), mtu: 672)
    }
    let name: [UInt8] = [0, 10, 0x35, 8, 0x09, 1, 0, 0x25, 3, 0x67, 0x70, 0x73, 0]
    #expect(Self.content(ask(0, [0x35, 3, 0x09, 1, 0])) == name)
    #expect(Self.content(ask(0, [0x35, 5, 0x0A, 1, 0, 1, 9])) == name)
    #expect(Self.content(ask(0, [0x35, 3, 0x09, 2, 0])) == [0, 2, 0x35, 0, 0])
    #expect(ask(7, Self.everything) == Self.refusal(2))
  }

  @Test("is understood by our own look-up", arguments: [48, 49, 64, 672])
  func lookedUp(mtu: Int) {
    let list = Self.filled()
    for (uuid, channel) in [(Self.serial, 3), (BluetoothUUID("E1F9F7A0-1111-4222-8333-444455556666")!, 5)]
      as [(BluetoothUUID, UInt8)]
    {
      var lookUp = ChannelLookUp(uuid)
      var request = lookUp.firstRequest
      var step = ChannelLookUp.Step.wait
      for _ in 0..<100 {
        guard let answer = list.answer(request, mtu: mtu) else { break }
        #expect(answer.count <= mtu)
        step = lookUp.handle(answer)
        guard case .send(let next) = step else { break }
        request = next
      }
      #expect(step == .found(channel))
    }
  }

  @Test("is returned in pieces of the requested size, which join correctly")
  func pieces() throws {
    let list = Self.filled()
    let whole = try #require(list.answer(Self.searchAttributes(BluetoothUUID(3)), mtu: 672))
    #expect(whole.last == 0)
    var joined: [UInt8] = []
    var continuation: [UInt8] = []
    repeat {
      let request = Self.searchAttributes(BluetoothUUID(3), most: [0, 7], continuation: continuation)
      let answer = try #require(list.answer(request, mtu: 672))
      #expect(answer[0] == 7 && answer[1...2] == [0xAB, 0xCD])
      let count = Int(answer[6])
      joined += answer[7..<7 + count]
      continuation = Array(answer[(8 + count)...])
    } while !continuation.isEmpty && joined.count < 1000
    #expect(joined == Array(whole[7..<whole.count - 1]))
  }

  @Test("does not continue an answer whose content has changed")
  func editions() throws {
    var list = Self.filled()
    let first = try #require(list.answer(Self.searchAttributes(BluetoothUUID(3), most: [0, 7]), mtu: 672))
    let again = Self.searchAttributes(BluetoothUUID(3), most: [0, 7], continuation: Array(first.suffix(4)))
    #expect(list.answer(again, mtu: 672)?[0] == 7)
    list.remove(0x10000)
    #expect(list.answer(again, mtu: 672) == Self.refusal(5))
    let none = list.answer(Self.request(2, Self.pattern(Self.serial) + [0, 9]), mtu: 672)
    #expect(Self.content(none) == [0, 0, 0, 0, 0])
  }

  @Test(
    "refuses invalid requests",
    arguments: [
      (request(3, []), 3), (request(0x75, []), 3),
      (request(2, [0x35, 0, 0, 9]), 3), (request(2, [0x19, 0x11, 0x01, 0, 9]), 3),
      (request(2, [0x35, 2, 0x08, 1, 0, 9]), 3), (request(2, pattern(serial) + [0, 0]), 3),
      (request(2, tooMany + [0, 9]), 3),
      (request(4, [0, 1, 0, 0, 0, 6] + everything), 3), (request(4, [0, 1, 0, 0, 0, 7, 0x35, 2, 0x08, 1]), 3),
      (request(4, [0, 1, 0, 0, 0, 7, 0x35, 5, 0x0A, 0, 2, 0, 1]), 3),
      (request(6, pattern(serial) + [0, 7]), 3),
      (searchAttributes(serial, continuation: [1]), 5), (searchAttributes(serial, continuation: [9, 9, 0, 1]), 5),
      (searchAttributes(serial, continuation: [0, 2, 0, 0]), 5),
      (searchAttributes(serial, continuation: [0, 2, 9, 9]), 5),
      (searchAttributes(serial) + [0], 4), (Array(searchAttributes(serial).dropLast()) + [3], 4),
      (Array(searchAttributes(serial).dropLast(2)), 4),
    ] as [([UInt8], UInt8)])
  func hostile(message: [UInt8], code: UInt8) {
    #expect(Self.filled().answer(message, mtu: 672) == Self.refusal(code))
  }

  @Test("handles every prefix of a request")
  func cutOff() {
    let list = Self.filled()
    for whole in [Self.searchAttributes(Self.serial), Self.request(2, Self.pattern(Self.serial) + [0, 9])] {
      for count in whole.indices {
        let answer = list.answer(Array(whole[..<count]), mtu: 48)
        #expect(count < 5 ? answer == nil : answer == Self.refusal(4))
        // The same piece with a correct length.
        if count > 5 {
          var cut = Array(whole[..<count])
          cut[4] = UInt8(count - 5)
          #expect(list.answer(cut, mtu: 48)?[0] == 1)
        }
      }
    }
  }

  @Test("is registered with bluetoothd in BlueZ's format")
  func registration() {
    let record = ServiceRecord(Self.serial, channel: 3, name: "x")
    let request = ServiceRegistration.request(record, transaction: 7)
    #expect(Array(request[..<6]) == [0x75, 0, 7, 0, UInt8(1 + record.element.encoded.count), 0])
    #expect(Array(request[6...]) == record.element.encoded)
    #expect(ServiceRegistration.answer([0x76, 0, 7, 0, 4, 0, 1, 0, 5]) == .registered(handle: 0x10005))
    #expect(ServiceRegistration.answer([0x01, 0, 7, 0, 2, 0, 3]) == .refused(code: 3))
    for hostile in [[], [0x76], [0x76, 0, 7, 0, 4], [0x76, 0, 7, 0, 3, 0, 1, 0], [0x77, 0, 7, 0, 4, 0, 1, 0, 5]]
      as [[UInt8]]
    {
      #expect(ServiceRegistration.answer(hostile) == .malformed)
    }
  }
}
