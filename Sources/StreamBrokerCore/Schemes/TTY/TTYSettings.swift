// The settings in the URL of a serial port, such as tty:///dev/ttyUSB0?baud=115200&parity=even&dtr=off. Names, defaults
// and ranges are in EndpointSchemes; here they become values. Opens nothing.

import ByteStreams
import CLinux

struct TTYSettings: Hashable, Sendable {
  var line = LineSettings()
  /// Nil keeps the line as opening leaves it. Linux itself raises both when it opens a port that no program had open.
  var dtr: Bool?
  var rts: Bool?
  /// Drop DTR and RTS at the last close (HUPCL). Many boards reset on that.
  var hangsUpOnClose = false
  /// Keep other programs out.
  var isExclusive = true
  /// Do not open the port while another program has it open, also without a lock.
  var refusesHolders = false
  /// Ask the driver to pass on each byte at once: FTDI adapters otherwise collect bytes for 16 ms.
  var isLowLatency = true
  /// Nil is off: a mode found in force is switched off.
  var rs485: RS485?

  init() {}

  init(_ url: EndpointURL) {
    line = LineSettings(url)
    dtr = Self.output(url.string("dtr"))
    rts = Self.output(url.string("rts"))
    hangsUpOnClose = url.flag("hupcl") ?? hangsUpOnClose
    isExclusive = url.flag("exclusive") ?? isExclusive
    refusesHolders = url.string("exclusive") == "strict"
    isLowLatency = url.flag("low-latency") ?? isLowLatency
    rs485 = RS485(url)
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
  package init(_ url: EndpointURL) {
    self.init()
    bitsPerSecond = url.integer("baud").flatMap { UInt32(exactly: $0) } ?? bitsPerSecond
    dataBits = url.integer("data") ?? dataBits
    parity = url.string("parity").flatMap { Parity(rawValue: $0) } ?? parity
    stopBits = url.string("stop").flatMap { StopBits(rawValue: $0) } ?? stopBits
    flowControl = url.string("flow").flatMap { FlowControl(rawValue: $0) } ?? flowControl
  }
}

/// The mode of a driver that switches the direction of an RS-485 transceiver by RTS.
struct RS485: Hashable, Sendable {
  /// Whether RTS is up while bytes are sent; otherwise it is up at all other times.
  var rtsIsUpOnSend: Bool
  /// The time from RTS to the first bit, and from the last bit to RTS.
  var delayBefore = Duration.zero
  var delayAfter = Duration.zero

  init(rtsIsUpOnSend: Bool, delayBefore: Duration = .zero, delayAfter: Duration = .zero) {
    self.rtsIsUpOnSend = rtsIsUpOnSend
    self.delayBefore = delayBefore
    self.delayAfter = delayAfter
  }

  /// Nil if the URL has `off`, or nothing.
  init?(_ url: EndpointURL) {
    switch url.string("rs485") {
    case "rts-on-send": rtsIsUpOnSend = true
    case "rts-after-send": rtsIsUpOnSend = false
    default: return nil
    }
    delayBefore = url.duration("rs485-delay-before") ?? .zero
    delayAfter = url.duration("rs485-delay-after") ?? .zero
  }

  /// In the kernel's form, in whole milliseconds.
  var mode: linux_rs485 {
    linux_rs485(
      on: 1, rts_on_send: rtsIsUpOnSend ? 1 : 0, rts_after_send: rtsIsUpOnSend ? 0 : 1,
      milliseconds_before: UInt32(delayBefore.nanoseconds / 1_000_000),
      milliseconds_after: UInt32(delayAfter.nanoseconds / 1_000_000))
  }
}

extension linux_rs485 {
  func isSame(as other: linux_rs485) -> Bool { refusal(of: other) == nil }

  /// The part of `asked` that differs from this mode, which is in force: "a delay of 200 ms (it takes 100 ms)", or nil.
  func refusal(of asked: linux_rs485) -> String? {
    if on != asked.on { return "RS-485" }
    if rts_on_send != asked.rts_on_send || rts_after_send != asked.rts_after_send {
      return "RTS \(asked.rts_on_send != 0 ? "on" : "after") send, only the opposite"
    }
    for (mine, other) in [
      (milliseconds_before, asked.milliseconds_before), (milliseconds_after, asked.milliseconds_after),
    ] where mine != other {
      return "a delay of \(other) ms (it uses \(mine) ms)"
    }
    return nil
  }
}
