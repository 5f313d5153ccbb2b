// What `baudway scan` shows: devices that were heard, in the order in which they were heard first, as a table, as lines, as JSON.

import StreamBrokerBluetooth

struct NearbyList: Sendable {
  private(set) var adapter: String?
  private(set) var devices: [NearbyDevice] = []
  private var places: [Place: Int] = [:]
  /// Only those that offer it are listed.
  let service: BluetoothUUID?
  /// The adapter that was asked for, which the URLs then name.
  private let wanted: String?
  private var hasPassedOver = false

  private struct Place: Hashable {
    let address: BluetoothAddress
    let kind: AddressKind
  }
  private static let mostNames = 4
  private static let longestName = 32

  init(service: BluetoothUUID? = nil, adapter wanted: String? = nil) {
    self.service = service
    self.wanted = wanted
  }

  mutating func begins(on adapter: String) { self.adapter = adapter }

  /// False for one that is not wanted.
  mutating func note(_ device: NearbyDevice) -> Bool {
    if let service, !device.offers(service) {
      hasPassedOver = true
      return false
    }
    let place = Place(address: device.address, kind: device.kind)
    if let index = places[place] {
      devices[index] = device
    } else {
      places[place] = devices.count
      devices.append(device)
    }
    return true
  }

  private func ways(to device: NearbyDevice) -> [NearbyDevice.Way] { device.ways(to: service, by: wanted) }

  // MARK: - For people

  /// What there is to say of an empty list; nil where there is something in it.
  var lack: String? {
    guard devices.isEmpty else { return nil }
    if let service, hasPassedOver {
      return "Nothing that was heard says that it has the service \(service); without --service all of it is listed."
    }
    return "Nothing was heard. Some devices are silent while they are connected, or until a button is pressed."
  }

  /// Those that can be opened first. Lines without line ends; nothing in them moves a terminal's cursor.
  func table(_ paint: Paint) -> [String] {
    var table = TextTable(["NAME", "ADDRESS", "KIND", "DBM", "SERVICES"], paint)
    table.alignRight(3...3)
    let all = devices.map { (device: $0, ways: ways(to: $0)) }
    for (device, ways) in all.filter({ !$0.ways.isEmpty }) + all.filter(\.ways.isEmpty) {
      table.add([
        .init(shown(device.name), device.name == nil ? .dim : .bold), .init("\(device.address)"),
        .init(device.kind.words),
        .init(device.strength.map { "\($0)" } ?? "-"), .init(services(of: device, ways), .dim),
      ])
      for way in ways { table.note("  " + ShellWord.quoted(way.url), way.isSure ? .green : .yellow) }
    }
    return table.lines()
  }

  private func shown(_ name: String?) -> String {
    guard let name else { return "-" }
    return name.count > Self.longestName ? name.prefix(Self.longestName - 1) + "…" : name
  }

  /// One line for each way to open it, or one that ends in "-": address, kind, dBm, name, services, URL, with tabs between them.
  func lines(for device: NearbyDevice) -> [String] {
    let ways = ways(to: device)
    let urls = ways.isEmpty ? ["-"] : ways.map { ShellWord.quoted($0.url) }
    let words = [
      "\(device.address)", device.kind.words, device.strength.map { "\($0)" } ?? "-", device.name ?? "-",
      services(of: device, ways),
    ].map { TextTable.Cell($0).text }
    return urls.map { (words + [$0]).joined(separator: "\t") }
  }

  private func services(of device: NearbyDevice, _ ways: [NearbyDevice.Way]) -> String {
    let likely = ways.compactMap { way in way.isSure ? nil : way.service.map { "\($0)?" } }
    let names = likely + device.services.map { NearbyDevice.name(of: $0) ?? "\($0)" }
    guard !names.isEmpty else { return "-" }
    let more = names.count - Self.mostNames
    return names.prefix(Self.mostNames).joined(separator: ", ") + (more > 0 ? ", \(more) more" : "")
  }

  // MARK: - For programs

  /// One object of JSON, in one line, without its end.
  var json: String {
    JSONValue.object([
      "adapter": adapter.map { .text($0) }, "devices": .array(devices.map { $0.json(ways(to: $0)) }),
    ]).description
  }
}

extension AddressKind {
  fileprivate var words: String {
    switch self {
    case .classic: "Classic"
    case .lePublic: "LE"
    case .leRandom: "LE random"
    }
  }
}

extension NearbyDevice {
  fileprivate func json(_ ways: [Way]) -> JSONValue {
    .object([
      "address": .text("\(address)"), "kind": .text(kind == .classic ? "classic" : "le"),
      "address-type": kind == .classic ? nil : .text(kind == .leRandom ? "random" : "public"),
      "name": name.map { .text($0) }, "rssi": strength.map { .signed($0) },
      "class": deviceClass.map { .integer(UInt64($0)) },
      "services": .array(services.map { .text("\($0)") }),
      "endpoints": .array(
        ways.map { way in
          .object([
            "url": .text(way.url), "service": way.service.map { .text($0) }, "sure": .bool(way.isSure),
          ])
        }),
    ])
  }
}
