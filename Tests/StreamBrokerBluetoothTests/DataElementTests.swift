// SDP data elements: examples of the specification, and malformed bytes.

import Testing

@testable import StreamBrokerBluetooth

@Suite("A data element")
struct DataElementTests {
  static let examples: [(DataElement, [UInt8])] = [
    (.null, [0x00]),
    (.unsigned(3, bytes: 1), [0x08, 3]),
    (.unsigned(0x0102, bytes: 2), [0x09, 1, 2]),
    (.unsigned(0x0102_0304, bytes: 4), [0x0A, 1, 2, 3, 4]),
    (.unsigned(.max, bytes: 8), [0x0B] + [UInt8](repeating: 0xFF, count: 8)),
    (.signed(0xFF, bytes: 1), [0x10, 0xFF]),
    (.wide(Array(0..<16), kind: 1), [0x0C] + Array(0..<16)),
    (.uuid(BluetoothUUID(0x1101)), [0x19, 0x11, 0x01]),
    (.uuid(BluetoothUUID(0x0001_1101)), [0x1A, 0, 1, 0x11, 0x01]),
    (.uuid(BluetoothUUID([UInt8](1...16))!), [0x1C] + Array(1...16)),
    (.text([0x41]), [0x25, 1, 0x41]),
    (.flag(true), [0x28, 1]),
    (.sequence([.null, .flag(false)]), [0x35, 3, 0, 0x28, 0]),
    (.alternative([]), [0x3D, 0]),
    (.url([0x68]), [0x45, 1, 0x68]),
  ]

  @Test("reads and writes each of its kinds", arguments: examples)
  func kinds(element: DataElement, bytes: [UInt8]) throws {
    #expect(try DataElement.read(all: bytes) == element)
    #expect(element.encoded == bytes)
  }

  @Test("is the same whether its length has one, two or four bytes")
  func lengths() throws {
    let text = DataElement.text([1, 2])
    for bytes: [UInt8] in [[0x25, 2, 1, 2], [0x26, 0, 2, 1, 2], [0x27, 0, 0, 0, 2, 1, 2]] {
      #expect(try DataElement.read(all: bytes) == text)
    }
    for count in [255, 256, 65_535, 65_536] {
      let long = DataElement.text([UInt8](repeating: 7, count: count))
      #expect(try DataElement.read(all: long.encoded) == long)
    }
  }

  @Test(
    "is not read from invalid bytes",
    arguments: [
      [], [0x01], [0x08], [0x09, 1], [0x1B, 1, 2, 3, 4, 5, 6, 7, 8], [0x18, 1], [0x1D, 2, 0x11, 0x01], [0x20, 1],
      [0x25], [0x25, 2, 1], [0x26, 1], [0x27, 0xFF, 0xFF, 0xFF, 0xFF], [0x29, 0, 1], [0x35, 1, 0x09], [0x48, 1], [0xFF],
      [0x00, 0x00],
    ] as [[UInt8]])
  func broken(bytes: [UInt8]) {
    #expect(throws: DataElementFault.self) { try DataElement.read(all: bytes) }
  }

  @Test("may be nested, up to a limit")
  func depth() throws {
    func nested(_ depth: Int) -> [UInt8] {
      (0..<depth).reduce([0] as [UInt8]) { bytes, _ in [0x36] + DataElement.bigEndian(UInt64(bytes.count), 2) + bytes }
    }
    #expect(throws: Never.self) { try DataElement.read(all: nested(16)) }
    #expect(throws: DataElementFault.self) { try DataElement.read(all: nested(17)) }
    #expect(throws: DataElementFault.self) { try DataElement.read(all: nested(5000)) }
  }
}

@Suite("A Bluetooth UUID")
struct BluetoothUUIDTests {
  @Test(
    "of 16 or 32 bits is short for one of 128 bits",
    arguments: ["1101", "00001101", "00001101-0000-1000-8000-00805F9B34FB", "00001101-0000-1000-8000-00805f9b34fb"])
  func base(text: String) {
    #expect(BluetoothUUID(text) == BluetoothUUID(0x1101))
    #expect(BluetoothUUID(text)?.description == "1101")
  }

  @Test("of 128 bits of its own is kept unchanged")
  func own() {
    let text = "E1F9F7A0-1111-4222-8333-444455556666"
    #expect(BluetoothUUID(text)?.description == text)
    #expect(BluetoothUUID("12345678")?.description == "12345678")
  }

  @Test("is not read from other text", arguments: ["", "110", "11 01", "+101", "110101", "0x1101", "zzzz"])
  func broken(text: String) {
    #expect(BluetoothUUID(text) == nil)
  }

  @Test("and an address are read and written in the same byte order")
  func address() {
    #expect(BluetoothAddress("00:0a:3A:22:68:73")?.bytes == [0, 0x0A, 0x3A, 0x22, 0x68, 0x73])
    #expect(BluetoothAddress("00:0a:3A:22:68:73")?.description == "00:0A:3A:22:68:73")
    for text in ["", "hci0", "00:0A:3A:22:68", "00:0A:3A:22:68:73:01", "0:0A:3A:22:68:73", "00:0A:3A:22:68:+3"] {
      #expect(BluetoothAddress(text) == nil)
    }
  }
}
