// What of a URL is the serial line's: a reload asks whether two URLs differ in more than what an open port can be told.

import ByteStreams

extension EndpointURL {
  /// Parameters that `SerialLine` can change while the port is open.
  private static let lineParameters: Set = ["baud", "data", "parity", "stop", "flow", "dtr", "rts"]

  /// The same port, and the same ways to treat it, but another bit rate, format or state of its lines.
  public func differsInLineOnly(from other: EndpointURL) -> Bool {
    func rest(_ url: EndpointURL) -> [Setting] {
      url.settingsInForce.filter { !Self.lineParameters.contains($0.name) }
    }
    return place == other.place && rest(self) == rest(other)
  }

  /// DTR and RTS where this says something else of them than `old`, in the order of DTR, RTS; not those that are kept.
  public func outputs(changedFrom old: EndpointURL) -> [(line: ModemOutput, isOn: Bool)] {
    [("dtr", ModemOutput.dtr), ("rts", .rts)].compactMap { name, line in
      guard let word = string(name), word != old.string(name), word != "keep" else { return nil }
      return (line, word == "on")
    }
  }
}
