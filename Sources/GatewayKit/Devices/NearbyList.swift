// The output of `baudway scan`: the devices found, in the order they were first received, as a table, as lines, as
// JSON.

import StreamBrokerBluetooth

struct NearbyList: Sendable {
  private(set) var adapter: String?
  private(set) var devices: [NearbyDevice] = []
  private var indices: [Identity: Int] = [:]
  /// If set, only devices that offer it are listed.
  let service: BluetoothUUID?
  /// The adapter that the command names; the URLs then name it too.
  private let wanted: String?
  private var hasPassedOver = false

  private struct Identity: Hashable {
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

  /// Adds or updates a device. False if it lacks `service`.
  mutating func note(_ device: NearbyDevice) -> Bool {
    if let service, !device.offers(service) {
      hasPassedOver = true
      return false
    }
    let identity = Identity(address: device.address, kind: device.kind)
    if let index = indices[identity] {
      devices[index] = device
    } else {
      indices[identity] = devices.count
      devices.append(device)
    }
    return true
  }

  private func candidates(to device: NearbyDevice) -> [NearbyDevice.Candidate] {
    device.candidates(to: service, by: wanted)
  }

  // MARK: - Text

  /// The explanation of an empty list; nil if it is not empty.
  var lack: String? {
    guard devices.isEmpty else { return nil }
    if let service, hasPassedOver {
      return "No device found that advertises the service \(service); without --service all devices are listed."
    }
    return "No device found. Some devices are silent while they are connected, or until a button is pressed."
  }

  /// Lists first the devices that can be opened. Lines without line ends; nothing in them moves a terminal's cursor.
  func table(_ paint: Paint) -> [String] {
    var table = TextTable(["NAME", "ADDRESS", "KIND", "DBM", "SERVICES"], paint)
    table.alignRight(3...3)
    let all = devices.map { (device: $0, candidates: candidates(to: $0)) }
    for (device, candidates) in all.filter({ !$0.candidates.isEmpty }) + all.filter(\.candidates.isEmpty) {
      table.add([
        .init(shown(device.name), device.name == nil ? .dim : .bold), .init("\(device.address)"),
        .init(device.kind.words),
        .init(device.strength.map { "\($0)" } ?? "-"), .init(services(of: device, candidates), .dim),
      ])
      for candidate in candidates {
        table.note("  " + ShellWord.quoted(candidate.url), candidate.isSure ? .green : .yellow)
      }
    }
    return table.lines()
  }

  private func shown(_ name: String?) -> String {
    guard let name else { return "-" }
    return name.count > Self.longestName ? name.prefix(Self.longestName - 1) + "…" : name
  }

  /// One line per URL that may open the device, or one with "-" instead of the URL. Fields, separated by tabs: address,
  /// kind, dBm, name, services, URL.
  func lines(for device: NearbyDevice) -> [String] {
    let candidates = candidates(to: device)
    let urls = candidates.isEmpty ? ["-"] : candidates.map { ShellWord.quoted($0.url) }
    let words = [
      "\(device.address)", device.kind.words, device.strength.map { "\($0)" } ?? "-", device.name ?? "-",
      services(of: device, candidates),
    ].map { TextTable.Cell($0).text }
    return urls.map { (words + [$0]).joined(separator: "\t") }
  }

  private func services(of device: NearbyDevice, _ candidates: [NearbyDevice.Candidate]) -> String {
    let likely = candidates.compactMap { candidate in candidate.isSure ? nil : candidate.service.map { "\($0)?" } }
    let names = likely + device.services.map { NearbyDevice.name(of: $0) ?? "\($0)" }
    guard !names.isEmpty else { return "-" }
    let more = names.count - Self.mostNames
    return names.prefix(Self.mostNames).joined(separator: ", ") + (more > 0 ? ", \(more) more" : "")
  }

  // MARK: - JSON

  /// A JSON object in one line, without the line end.
  var json: String {
    JSONValue.object([
      "adapter": adapter.map { .text($0) }, "devices": .array(devices.map { $0.json(candidates(to: $0)) }),
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
  fileprivate func json(_ candidates: [Candidate]) -> JSONValue {
    .object([
      "address": .text("\(address)"), "kind": .text(kind == .classic ? "classic" : "le"),
      "address-type": kind == .classic ? nil : .text(kind == .leRandom ? "random" : "public"),
      "name": name.map { .text($0) }, "rssi": strength.map { .signed($0) },
      "class": deviceClass.map { .integer(UInt64($0)) },
      "services": .array(services.map { .text("\($0)") }),
      "endpoints": .array(
        candidates.map { candidate in
          .object([
            "url": .text(candidate.url), "service": candidate.service.map { .text($0) },
            "sure": .bool(candidate.isSure),
          ])
        }),
    ])
  }
}
