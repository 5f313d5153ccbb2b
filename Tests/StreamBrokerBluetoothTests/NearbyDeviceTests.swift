// Advertisements of devices, and the URLs made of them.

import StreamBroker
import Testing

@testable import StreamBrokerBluetooth

@Suite("What a device advertises")
struct AdvertisementTests {
  private func read(_ parts: [UInt8]...) -> Advertisement {
    Advertisement((parts.flatMap { [UInt8($0.count)] + $0 })[...])
  }

  @Test("has services of all lengths, a name and a class")
  func all() throws {
    let long = try #require(BluetoothUUID("6E400001-B5A3-F393-E0A9-E50E24DCCA9E"))
    let reported = read(
      [1, 6], [2, 0x0A, 0x18, 0xE0, 0xFF], [3, 0x01, 0x11], [4, 1, 2, 3, 4], [5, 5, 6, 7, 8], [6] + long.attribute,
      [9] + Array("BMW-Däta".utf8), [0x0D, 0x04, 0x02, 0x5A])
    #expect(
      reported.services.map(\.description).sorted() == [
        "04030201", "08070605", "1101", "180A", long.description, "FFE0",
      ])
    #expect(reported.name == "BMW-Däta" && reported.isNameComplete)
    #expect(reported.deviceClass == 0x5A_0204)
  }

  @Test("has the complete name, whatever the order, without padding zeros")
  func names() {
    let (short, whole): ([UInt8], [UInt8]) = ([8] + Array("HC".utf8), [9] + Array("HC-05".utf8) + [0, 0, 0x41])
    #expect(read(short).name == "HC" && !read(short).isNameComplete)
    #expect(read(short, whole).name == "HC-05")
    #expect(read(whole, short).name == "HC-05")
    #expect(read([9]).name == nil)
    #expect(read([9, 0, 0x41]).name == nil)
    #expect(read([9, 0xFF, 0xFE]).name == "\u{FFFD}\u{FFFD}")
  }

  @Test("ends where it is cut off, and parts of a wrong length are skipped")
  func cutOff() {
    #expect(Advertisement([3, 2, 0xE0]) == Advertisement([]))
    #expect(Advertisement([0, 3, 2, 0xE0, 0xFF]) == Advertisement([]))
    #expect(Advertisement([255]) == Advertisement([]))
    #expect(read([2, 0xE0]).services.isEmpty)
    #expect(read([2, 0xE0, 0xFF, 0xE1]).services.map(\.description) == ["FFE0"])
    #expect(read([6, 1, 2, 3]).services.isEmpty)
    #expect(read([0x0D, 1, 2]).deviceClass == nil)
    #expect(read([]).services.isEmpty)
  }
}

/// Devices as the kernel reports them.
enum Heard {
  static func device(
    _ kind: UInt8, at address: [UInt8] = [0xC0, 0, 0, 0, 0, 2], strength: Int8 = -60, _ parts: [UInt8]...
  ) -> FoundDevice? {
    let data = parts.flatMap { [UInt8($0.count)] + $0 }
    let head = address.reversed() + [kind, UInt8(bitPattern: strength), 0, 0, 0, 0]
    return FoundDevice((head + LittleEndian.bytes(UInt16(data.count)) + data)[...])
  }
  static func name(_ text: String) -> [UInt8] { [9] + Array(text.utf8) }
  static func services(_ uuids: UInt16...) -> [UInt8] { [3] + uuids.flatMap(LittleEndian.bytes) }
  static func service(_ uuid: String) -> [UInt8] { [7] + (BluetoothUUID(uuid)?.bytes.reversed() ?? []) }
}

@Suite("A device nearby")
struct NearbyDeviceTests {
  private static let nus = "6E400001-B5A3-F393-E0A9-E50E24DCCA9E"
  private static let own = "E1F9F7A0-1111-4222-8333-444455556666"

  private func urls(_ found: FoundDevice?, to service: String? = nil) throws -> [String] {
    let device = NearbyDevice(try #require(found))
    let ways = device.candidates(to: service.flatMap { BluetoothUUID($0) })
    for way in ways { #expect(throws: Never.self) { try EndpointURL(way.url) } }
    return ways.map { ($0.isSure ? "" : "maybe ") + $0.url }
  }

  @Test("with a known serial service has a URL that opens it; its own services come after those")
  func lowEnergy() throws {
    let place = "C0:00:00:00:00:02"
    #expect(try urls(Heard.device(2, Heard.service(Self.nus))) == ["ble://\(Self.nus)/\(place)?address-type=random"])
    #expect(try urls(Heard.device(1, Heard.services(0x180F, 0xFFE0))) == ["ble://FFE0/\(place)"])
    #expect(
      try urls(Heard.device(1, Heard.service(Self.own), Heard.services(0xFFF0)))
        == ["ble://FFF0/\(place)", "maybe ble://\(Self.own)/\(place)"])
    #expect(try urls(Heard.device(1, Heard.services(0x180F, 0x180A))).isEmpty)
    #expect(try urls(Heard.device(1, Heard.services(0x180F)), to: "180F") == ["ble://180F/\(place)"])
  }

  @Test("is opened through the named adapter", arguments: ["hci1", "00:AA:01:00:00:00"])
  func adapter(name: String) throws {
    for found in [
      Heard.device(0, Heard.services(0x1101), Heard.service(Self.own)), Heard.device(1, Heard.services(0xFFE0)),
      Heard.device(2, at: [0x7B, 1, 2, 3, 4, 5], Heard.services(0xFFE0), Heard.name("a b")),
    ] {
      let ways = NearbyDevice(try #require(found)).candidates(by: name)
      #expect(!ways.isEmpty)
      for way in ways { #expect(try EndpointURL(way.url).string("adapter") == name) }
    }
  }

  @Test("with a changing address is opened by name, if it sends its complete name")
  func changing() throws {
    let passing: [UInt8] = [0x7B, 1, 2, 3, 4, 5]
    #expect(
      try urls(Heard.device(2, at: passing, Heard.services(0xFFE0), Heard.name("Büro & 'Lab' 1")))
        == ["ble://FFE0?name=B%C3%BCro%20%26%20%27Lab%27%201"])
    // The name ends in '*': the URL also fits names that begin so, but it fits this one.
    let starred = Heard.device(2, at: passing, Heard.services(0xFFE0), Heard.name("Lab*"))
    #expect(try urls(starred) == ["ble://FFE0?name=Lab%2A"])
    #expect(
      ScanFlow.Wish(service: BluetoothUUID(0xFFE0), name: try EndpointURL("ble://FFE0?name=Lab%2A").string("name"))
        .fits(try #require(starred)))
    let unnamed = ["ble://FFE0/7B:01:02:03:04:05?address-type=random"]
    #expect(try urls(Heard.device(2, at: passing, Heard.services(0xFFE0), Heard.name("*"))) == unnamed)
    #expect(try urls(Heard.device(2, at: passing, Heard.services(0xFFE0))) == unnamed)
    #expect(try urls(Heard.device(2, at: passing, Heard.services(0xFFE0), [8, 0x41])) == unnamed)
    #expect(try urls(Heard.device(2, at: passing, Heard.services(0xFFE0), Heard.name("a\u{1b}[2J\u{FFFD}"))).count == 1)
  }

  @Test("of Classic has a Serial Port service, or one by its class")
  func classic() throws {
    let place = "rfcomm://00:AA:01:00:00:01"
    let address: [UInt8] = [0, 0xAA, 1, 0, 0, 1]
    #expect(try urls(Heard.device(0, at: address, Heard.services(0x1101))) == [place])
    #expect(try urls(Heard.device(0, at: address, Heard.services(0x110B))).isEmpty)
    #expect(try urls(Heard.device(0, at: address)) == ["maybe \(place)"])
    #expect(try urls(Heard.device(0, at: address, [0x0D, 0x00, 0x1F, 0x00])) == ["maybe \(place)"])
    #expect(try urls(Heard.device(0, at: address, [0x0D, 0x04, 0x04, 0x24])).isEmpty)  // a headset
    #expect(
      try urls(Heard.device(0, at: address, Heard.service(Self.own), [0x0D, 0x04, 0x05, 0x24])) == [
        "\(place)?uuid=\(Self.own)"
      ])
    #expect(try urls(Heard.device(0, at: address, Heard.services(0x1101)), to: "1101") == [place])
    #expect(try urls(Heard.device(0, at: address, Heard.services(0x1103)), to: "1103") == ["\(place)?uuid=1103"])
  }

  @Test("combines all its advertisements; a new signal strength is not a change")
  func together() throws {
    var device = NearbyDevice(try #require(Heard.device(1, [8] + Array("HM".utf8))))
    #expect(device.name == "HM" && device.strength == -60)
    func takes(strength: Int8 = -60, _ part: [UInt8]) throws -> Bool {
      device.take(try #require(Heard.device(1, strength: strength, part)))
    }
    #expect(try !takes(strength: -40, [1, 6]))
    #expect(device.strength == -40)
    #expect(try takes(Heard.services(0xFFE0)))
    #expect(try !takes(Heard.services(0xFFE0)))
    #expect(try takes(Heard.name("HMSoft")))
    #expect(try !takes([8] + Array("HM".utf8)))
    #expect(try !takes(strength: 127, [1, 6]))
    #expect(device.name == "HMSoft" && device.strength == -60 && device.services.map(\.description) == ["FFE0"])
  }

  @Test("can't fill memory with services")
  func many() throws {
    var device = NearbyDevice(try #require(Heard.device(1)))
    for number in 0..<1000 as Range<UInt16> { _ = device.take(try #require(Heard.device(1, Heard.services(number)))) }
    #expect(device.services.count == NearbyDevice.mostServices)
  }

  @Test("that is cut off, or has an unknown kind of address, is ignored")
  func hostile() {
    #expect(FoundDevice([]) == nil)
    #expect(FoundDevice([UInt8](repeating: 0, count: 13)[...]) == nil)
    #expect(FoundDevice([UInt8](repeating: 0, count: 15)[...]) == nil)
    #expect(Heard.device(3) == nil)
    #expect(FoundDevice([1] + [UInt8](repeating: 0, count: 13)[...])?.kind == .classic)
  }

  @Test("with an impossible address is ignored", arguments: [0, 0xFF] as [UInt8])
  func nobodysAddress(byte: UInt8) {
    #expect(Heard.device(1, at: [UInt8](repeating: byte, count: 6)) == nil)
    #expect(Heard.device(1, at: [UInt8](repeating: byte, count: 5) + [1]) != nil)
  }
}
