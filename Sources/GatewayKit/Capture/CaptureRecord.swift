// One event of a recording, as the lane hands it to the writer. The numbers of the kinds are those of LINKTYPE_RTAC_SERIAL
// (250), the link type for serial lines of tcpdump.org; the text formats show the same events as lines.

import ByteStreams

struct CaptureRecord {
  enum Kind: UInt8, Sendable {
    /// The endpoint's state, its settings, or a modem line has changed.
    case change = 0
    /// Bytes that the endpoint has taken.
    case toDevice = 1
    /// Bytes that the endpoint has sent.
    case fromDevice = 2
    /// Something is missing here.
    case lost = 5
    /// The recording ends here in order.
    case complete = 6
    case framingError = 7
    case parityError = 8
    /// A break, sent or received.
    case serialBreak = 9
    case overrun = 10

    var isData: Bool { self == .toDevice || self == .fromDevice }
  }

  let kind: Kind
  /// The modem lines at that moment.
  let lines: ControlLines
  /// Nanoseconds since 1970.
  let time: UInt64
  /// Data, or for the other kinds a text; in the buffer a `CaptureLoss` for `lost`.
  let bytes: UnsafeRawBufferPointer
}

/// What is not in a recording.
package struct CaptureLoss: Hashable, Sendable {
  /// Of clients and device.
  var bytes: UInt64 = 0
  /// Of the link and its line.
  var events: UInt64 = 0

  var isNothing: Bool { self == CaptureLoss() }

  mutating func add(_ kind: CaptureRecord.Kind, _ count: Int) {
    if kind.isData { bytes &+= UInt64(count) } else { events &+= 1 }
  }

  mutating func add(_ other: CaptureLoss) {
    bytes &+= other.bytes
    events &+= other.events
  }

  /// For the place in the recording. `cause` is why it had stopped; nil for one that has not.
  func words(_ cause: SystemError?, because reason: String = "the disk was too slow") -> String {
    let parts = [(bytes, "byte"), (events, "event")].filter { $0.0 > 0 }
    let what = parts.map { Figures.count(Int(clamping: $0), $1) }.joined(separator: " and ")
    return "missing here: \(what); " + (cause.map { "the recording had stopped: \($0)" } ?? reason)
  }
}

/// The lines that are on, as bits of the link type.
struct ControlLines: OptionSet, Hashable, Sendable {
  let rawValue: UInt8
  static let cts = ControlLines(rawValue: 1)
  static let dcd = ControlLines(rawValue: 2)
  static let dsr = ControlLines(rawValue: 4)
  static let rts = ControlLines(rawValue: 8)
  static let dtr = ControlLines(rawValue: 16)
  static let ring = ControlLines(rawValue: 32)

  /// "dtr on rts off …"
  var words: String { Self.names.map { "\($0.name) \(contains($0.lines) ? "on" : "off")" }.joined(separator: " ") }

  static let names: [(lines: ControlLines, name: String)] = [
    (.dtr, "dtr"), (.rts, "rts"), (.cts, "cts"), (.dsr, "dsr"), (.dcd, "dcd"), (.ring, "ri"),
  ]
}
