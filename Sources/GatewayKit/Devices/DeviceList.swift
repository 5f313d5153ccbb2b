// The output of `baudway devices`: the serial ports and Bluetooth adapters of this machine, with URLs to paste into a
// configuration.

import ByteStreams
import Glibc
import StreamBroker
import StreamBrokerBluetooth

package struct DeviceList: Sendable {
  let ports: [SerialPort]
  /// The adapters, or why they can't be listed.
  let adapters: Result<[Adapter], SystemError>

  /// The present devices. Blocks for a few reads of sysfs and procfs.
  package static func survey() -> DeviceList {
    DeviceList(
      ports: SerialPort.all(), adapters: Result { () throws(SystemError) -> [Adapter] in try Adapter.all() })
  }

  /// Serial ports as URLs, with what they are.
  package var serialURLs: [(url: String, summary: String)] { ports.map { ($0.url, $0.summary) } }
  package var adapterNames: [String] { ((try? adapters.get()) ?? []).map(\.name) }

  // MARK: - Text

  /// Lines without line ends. They contain nothing that moves a terminal's cursor.
  package func lines(hasColours: Bool) -> [String] {
    let paint = Paint(isOn: hasColours)
    return portLines(paint) + [""] + adapterLines(paint)
  }

  private func portLines(_ paint: Paint) -> [String] {
    guard !ports.isEmpty else { return ["No serial ports."] }
    var table = TextTable(["SERIAL PORT", "NODE", "WHAT IT IS", "HELD BY"], paint)
    for port in ports {
      let holders = port.holders.map { "\($0.program ?? "a program") (\($0.process))" }
      table.add([
        .init(port.url, .green), .init(port.node), .init(port.summary),
        holders.isEmpty ? .init("-", .dim) : .init(holders.joined(separator: ", "), .yellow),
      ])
      for link in port.links where !port.url.hasSuffix(link) { table.note("  \(link)") }
      if let advice = port.advice { table.note("  \(advice)") }
    }
    return table.lines()
  }

  private func adapterLines(_ paint: Paint) -> [String] {
    switch adapters {
    case .failure(let error) where error.errno == EAFNOSUPPORT:
      return ["No Bluetooth: the kernel does not support it, or this container or unit may not use it (AF_BLUETOOTH)."]
    case .failure(let error): return ["No Bluetooth: \(error)"]
    case .success(let adapters) where adapters.isEmpty: return ["No Bluetooth adapters."]
    case .success(let adapters):
      var table = TextTable(["BLUETOOTH ADAPTER", "ADDRESS", "STATE", "IN A URL"], paint)
      for adapter in adapters {
        table.add([
          .init(adapter.name, .green), .init("\(adapter.address)"),
          adapter.isOn ? .init("on", .green) : .init("off", .yellow), .init("rfcomm://ADDRESS?adapter=\(adapter.name)"),
        ])
      }
      return table.lines()
    }
  }

  // MARK: - JSON

  /// A JSON object in one line, without the line end.
  package var json: String {
    var reason: JSONValue?
    if case .failure(let error) = adapters { reason = .text("\(error)") }
    return JSONValue.object([
      "serial": .array(ports.map(\.json)), "bluetooth": .array(((try? adapters.get()) ?? []).map(\.json)),
      "bluetooth-error": reason,
    ]).description
  }
}

extension SerialPort {
  fileprivate var json: JSONValue {
    .object([
      "url": .text(url), "node": .text(node), "links": .array(links.map { .text($0) }), "usb": usb?.json,
      "driver": driver.map { .text($0) },
      "held-by": .array(
        holders.map { .object(["pid": .integer($0.process), "program": $0.program.map { .text($0) }]) }),
      "error": obstacle.map { .text("\($0)") },
    ])
  }
}

extension SerialPort.USB {
  fileprivate var json: JSONValue {
    .object([
      "vendor": .text(vendor), "product": .text(product), "serial": serial.map { .text($0) },
      "interface": interface.map { .integer($0) }, "manufacturer": manufacturer.map { .text($0) },
      "name": name.map { .text($0) },
    ])
  }
}

extension Adapter {
  fileprivate var json: JSONValue {
    .object(["adapter": .text(name), "address": .text("\(address)"), "on": .bool(isOn)])
  }
}
