// The serial-line part of a URL. A reload asks whether two URLs differ only in settings that an open port can change.

import ByteStreams

extension EndpointURL {
  /// Parameters that `SerialLine` can change while the port is open.
  private static let lineParameters: Set = ["baud", "data", "parity", "stop", "flow", "dtr", "rts"]

  /// Whether both URLs are the same port with the same other settings: only bit rate, format or line states may differ.
  package func differsInLineOnly(from other: EndpointURL) -> Bool {
    func rest(_ url: EndpointURL) -> [Setting] {
      url.settingsInForce.filter { !Self.lineParameters.contains($0.name) }
    }
    return target == other.target && rest(self) == rest(other)
  }

  /// DTR and RTS, in that order, where this URL sets them differently from `old`. Lines with `keep` are left out.
  package func outputs(changedFrom old: EndpointURL) -> [(line: ModemOutput, isOn: Bool)] {
    [("dtr", ModemOutput.dtr), ("rts", .rts)].compactMap { name, line in
      guard let word = string(name), word != old.string(name), word != "keep" else { return nil }
      return (line, word == "on")
    }
  }
}
