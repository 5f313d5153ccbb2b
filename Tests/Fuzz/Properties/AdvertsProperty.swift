// Nearby Bluetooth devices: an address, a kind and an advertisement, each preceded by its length. Every input must give
// one line of text and valid JSON, and its URLs must open unchanged.

import StreamBroker

@testable import GatewayKit
@testable import StreamBrokerBluetooth

enum AdvertsProperty {
  static func check(_ input: [UInt8]) throws(Broken) {
    var list = NearbyList()
    var devices: [BluetoothAddress: NearbyDevice] = [:]
    var rest = input[...]
    while let length = rest.popFirst() {
      let reported = rest.prefix(Int(length))
      rest = rest.dropFirst(reported.count)
      let kind = (reported.first ?? 0) & 3
      let address: [UInt8] = [reported.dropFirst().first ?? 0, 0x0A, 0x0A, 0x0A, 0x0A, 0x0A]
      let data = reported.dropFirst(2)
      let event = address + [kind, 0xC4, 1, 0, 0, 0] + LittleEndian.bytes(UInt16(data.count)) + data
      guard let found = FoundDevice(event[...]) else {
        try hold(kind == 3, "a device that is none")
        continue
      }
      var device = devices[found.address] ?? NearbyDevice(found)
      _ = device.take(found)
      try hold(!device.take(found), "news in what was said before")
      try hold(device.services.count <= NearbyDevice.mostServices, "\(device.services.count) services")
      devices[found.address] = device
      _ = list.note(device)
      for way in device.candidates() { try checkURL(way.url) }
      for line in list.lines(for: device) { try holdsCells(line) }
    }
    for line in list.table(Paint(isOn: false)) { try holdsOneLine(line, "a row") }
    do throws(JSONFault) { _ = try JSONReader.read(list.json.utf8) } catch { throw Broken("JSON: \(error.message)") }
  }

  private static func checkURL(_ text: String) throws(Broken) {
    do throws(URLProblem) { _ = try EndpointURL(text) } catch { throw Broken("\(text): \(error)") }
    try hold(!text.utf8.contains { $0 <= 0x20 || $0 >= 0x7F || $0 == UInt8(ascii: "'") }, "a URL that can't be pasted")
  }

  private static func holdsCells(_ line: String) throws(Broken) {
    let cells = line.split(separator: "\t", omittingEmptySubsequences: false)
    try hold(cells.count == 6, "\(cells.count) cells")
    for cell in cells { try holdsOneLine(String(cell), "a cell") }
  }
}
