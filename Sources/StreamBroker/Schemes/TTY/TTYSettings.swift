// What the URL of a serial port says: tty:///dev/ttyUSB0?baud=115200&parity=even&dtr=off
// Names, defaults and ranges stand in EndpointSchemes; here they become values. Opens nothing.

import ByteStreams

struct TTYSettings: Hashable, Sendable {
  var line = LineSettings()
  /// Nil keeps the line as opening leaves it. Linux itself raises both when a port is opened that nobody had open.
  var dtr: Bool?
  var rts: Bool?
  /// Drop DTR and RTS at the last close (HUPCL). Many boards take that for a reset.
  var hangsUpOnClose = false
  /// Keep other programs out.
  var isExclusive = true
  /// Ask the driver to hand on each byte at once: FTDI adapters collect for 16 ms otherwise.
  var isLowLatency = true

  init() {}

  init(_ url: EndpointURL) {
    line = LineSettings(url)
    dtr = Self.output(url.string("dtr"))
    rts = Self.output(url.string("rts"))
    hangsUpOnClose = url.flag("hupcl") ?? hangsUpOnClose
    isExclusive = url.flag("exclusive") ?? isExclusive
    isLowLatency = url.flag("low-latency") ?? isLowLatency
  }

  private static func output(_ word: String?) -> Bool? {
    switch word {
    case "on": true
    case "off": false
    default: nil
    }
  }
}

extension LineSettings {
  /// The line parameters of a URL whose scheme has them.
  public init(_ url: EndpointURL) {
    self.init()
    bitsPerSecond = url.integer("baud").flatMap { UInt32(exactly: $0) } ?? bitsPerSecond
    dataBits = url.integer("data") ?? dataBits
    parity = url.string("parity").flatMap { Parity(rawValue: $0) } ?? parity
    stopBits = url.string("stop").flatMap { StopBits(rawValue: $0) } ?? stopBits
    flowControl = url.string("flow").flatMap { FlowControl(rawValue: $0) } ?? flowControl
  }
}
