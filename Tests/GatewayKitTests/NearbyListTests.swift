import Testing

@testable import GatewayKit
@testable import StreamBrokerBluetooth

@Suite("The list of devices nearby")
struct NearbyListTests {
  private func device(
    _ kind: UInt8, _ last: UInt8, strength: Int8 = -60, name: String? = nil, services: [UInt16] = []
  ) throws -> NearbyDevice {
    var data: [UInt8] = []
    if let name { data += [UInt8(name.utf8.count + 1), 9] + Array(name.utf8) }
    if !services.isEmpty { data += [UInt8(2 * services.count + 1), 3] + services.flatMap(LittleEndian.bytes) }
    let head: [UInt8] = [last, 0, 0, 0, 0, 0xC0, kind, UInt8(bitPattern: strength), 0, 0, 0, 0]
    return NearbyDevice(try #require(FoundDevice((head + LittleEndian.bytes(UInt16(data.count)) + data)[...])))
  }

  private func list(_ devices: NearbyDevice..., service: String? = nil) -> NearbyList {
    var list = NearbyList(service: service.flatMap { BluetoothUUID($0) })
    list.begins(on: "hci0")
    for device in devices { _ = list.note(device) }
    return list
  }

  @Test("is a table with URLs to paste under devices that can be opened, without control characters")
  func table() throws {
    let list = list(
      try device(2, 9, name: "lamp\u{1b}[2J", services: [0x180F]),
      try device(2, 2, name: "HMSoft", services: [0x180A, 0xFFE0]), try device(0, 1, strength: 127))
    #expect(
      list.table(Paint(isOn: false)) == [
        "NAME      ADDRESS            KIND       DBM  SERVICES",
        "HMSoft    C0:00:00:00:00:02  LE random  -60  180A, HM-10",
        "  'ble://FFE0/C0:00:00:00:00:02?address-type=random'",
        "-         C0:00:00:00:00:01  Classic      -  Serial Port?",
        "  rfcomm://C0:00:00:00:00:01",
        "lamp?[2J  C0:00:00:00:00:09  LE random  -60  180F",
      ])
    #expect(
      list.table(Paint(isOn: true))[2] == "\u{1b}[32m  'ble://FFE0/C0:00:00:00:00:02?address-type=random'\u{1b}[0m")
  }

  @Test("keeps its order when a device is found again, and updates its row")
  func steady() throws {
    let list = list(
      try device(1, 1, services: [0xFFE0]), try device(1, 2, services: [0xFFE0]),
      try device(1, 1, strength: -30, name: "late", services: [0xFFE0]), try device(2, 1))
    let rows = list.table(Paint(isOn: false)).filter { !$0.hasPrefix(" ") }
    #expect(rows.count == 4)
    #expect(rows[1].hasPrefix("late  C0:00:00:00:00:01  LE         -30"))
    #expect(rows[2].hasPrefix("-     C0:00:00:00:00:02"))
    let long = self.list(try device(1, 1, name: String(repeating: "x", count: 100)))
    #expect(long.table(Paint(isOn: false))[1].hasPrefix(String(repeating: "x", count: 31) + "…  C0:"))
    #expect(rows[3].hasPrefix("-     C0:00:00:00:00:01  LE random"))
  }

  @Test("has a line for each way to open a device, or one that ends in a dash")
  func lines() throws {
    let list = list()
    #expect(
      list.lines(for: try device(1, 2, name: "a\tb", services: [0xFFE0, 0xFFF0])) == [
        "C0:00:00:00:00:02\tLE\t-60\ta?b\tHM-10, serial FFF0\tble://FFE0/C0:00:00:00:00:02",
        "C0:00:00:00:00:02\tLE\t-60\ta?b\tHM-10, serial FFF0\tble://FFF0/C0:00:00:00:00:02",
      ])
    #expect(list.lines(for: try device(1, 2, strength: 127)) == ["C0:00:00:00:00:02\tLE\t-\t-\t-\t-"])
    let many = try device(1, 2, services: [1, 2, 3, 4, 5, 6])
    #expect(list.lines(for: many)[0].hasSuffix("\t0001, 0002, 0003, 0004, 2 more\t-"))
  }

  @Test("is a JSON object without unknown values")
  func json() throws {
    let list = list(try device(2, 2, name: "HM\u{7f}", services: [0xFFE0]), try device(0, 1, strength: 127))
    #expect(
      list.json
        == #"{"adapter":"hci0","devices":[{"address":"C0:00:00:00:00:02","kind":"le","address-type":"random","#
        + #""name":"HM\u007f","rssi":-60,"services":["FFE0"],"endpoints":[{"#
        + #""url":"ble://FFE0/C0:00:00:00:00:02?address-type=random","service":"HM-10","sure":true}]},"#
        + #"{"address":"C0:00:00:00:00:01","kind":"classic","services":[],"endpoints":[{"#
        + #""url":"rfcomm://C0:00:00:00:00:01","service":"Serial Port","sure":false}]}]}"#)
    #expect(NearbyList().json == #"{"devices":[]}"#)
  }

  @Test("with a service has only devices that offer it, and opens them by it")
  func filtered() throws {
    var list = list(try device(1, 1, services: [0xFFE0]), service: "180F")
    #expect(list.devices.isEmpty)
    #expect(list.note(try device(1, 2, services: [0x180F])))
    #expect(list.lines(for: list.devices[0]).map { $0.hasSuffix("\tble://180F/C0:00:00:00:00:02") } == [true])
    #expect(NearbyScan.Wish(service: "180F") != nil)
    #expect(NearbyScan.Wish(service: "180") == nil)
    #expect(NearbyScan.Wish(service: "Serial Port") == nil)
  }

  @Test("explains why it is empty")
  func lack() throws {
    var list = list(service: "FFE0")
    #expect(list.lack?.hasPrefix("No device found.") == true)
    #expect(!list.note(try device(1, 1, services: [0x180F])))
    #expect(list.lack?.hasPrefix("No device found that advertises the service FFE0;") == true)
    #expect(list.note(try device(1, 2, services: [0xFFE0])))
    #expect(list.lack == nil)
  }

  @Test("names the requested adapter, and bounds the memory for lines that are not read")
  func scan() throws {
    let scan = try NearbyScan(try #require(NearbyScan.Wish(adapter: "hci1")), keepsLines: true)
    #expect(scan.listensSince == nil)
    scan.handle(.listening(adapter: "hci1"))
    #expect(scan.listensSince != nil)
    let device = try device(1, 1, services: [0xFFE0])
    scan.handle(.found(device))
    #expect(scan.takeLines().map { $0.hasSuffix("\t'ble://FFE0/C0:00:00:00:00:01?adapter=hci1'") } == [true])
    for _ in 0..<NearbyScan.mostLines + 10 { scan.handle(.found(device)) }
    #expect(scan.takeLines().count == NearbyScan.mostLines)
    #expect(scan.json.contains("?adapter=hci1"))
  }

  @Test(
    "quotes URLs that a shell would interpret",
    arguments: [
      ("rfcomm://00:AA:01:00:00:01", "rfcomm://00:AA:01:00:00:01"), ("a?b", "'a?b'"), ("a&b", "'a&b'"), ("", "''"),
      ("it's", #"'it'\''s'"#), ("a b", "'a b'"), ("x=1", "'x=1'"), ("~", "'~'"), ("é", "'é'"),
    ])
  func quoting(text: String, quoted: String) { #expect(ShellWord.quoted(text) == quoted) }
}
