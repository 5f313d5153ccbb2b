// Facts about a device, as the log, `status` and its JSON show them.

import ByteStreams

extension DeviceFacts {
  /// The known facts, with their names in the log.
  var named: [(name: String, text: String)] {
    let all: [(String, String?)] = [
      ("name", name), ("manufacturer", manufacturer), ("model", model), ("serial", serialNumber),
      ("firmware", firmware),
      ("dbm", signalStrength.map { "\($0)" }), ("mtu", mtu.map { "\($0)" }),
    ]
    return all.compactMap { name, text in text.map { (name, $0) } }
  }

  /// "HMSoft, ACME X1, serial 42, firmware 1.2, -50 dBm, MTU 517"
  var summary: String {
    let make = [manufacturer, model].compactMap(\.self).joined(separator: " ")
    let parts = [
      name, make.isEmpty ? nil : make, serialNumber.map { "serial \($0)" }, firmware.map { "firmware \($0)" },
      signalStrength.map { "\($0) dBm" }, mtu.map { "MTU \($0)" },
      lostMessages.map { "\($0) notifications lost" }, sharedWith.map { "port shared with \($0)" },
    ]
    return parts.compactMap(\.self).joined(separator: ", ")
  }

  var json: JSONValue {
    .object([
      "name": name.map { .text($0) }, "manufacturer": manufacturer.map { .text($0) }, "model": model.map { .text($0) },
      "serial": serialNumber.map { .text($0) }, "firmware": firmware.map { .text($0) },
      "rssi": signalStrength.map { .signed($0) }, "mtu": mtu.map { .integer($0) },
      "lost": lostMessages.map { .integer($0) }, "sharedWith": sharedWith.map { .text($0) },
    ])
  }

  /// Nil when it is no object or has no known fact.
  init?(_ json: JSONValue) {
    guard json.members != nil else { return nil }
    self.init()
    name = json["name"]?.text
    manufacturer = json["manufacturer"]?.text
    model = json["model"]?.text
    serialNumber = json["serial"]?.text
    firmware = json["firmware"]?.text
    signalStrength = json["rssi"]?.signedInteger
    mtu = json["mtu"]?.integer.map { Int(clamping: $0) }
    lostMessages = json["lost"]?.integer.map { Int(clamping: $0) }
    sharedWith = json["sharedWith"]?.text
    if isEmpty { return nil }
  }
}
