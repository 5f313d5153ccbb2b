// How a recording's events become the bytes of a file. One encoder for each file.

protocol CaptureEncoder {
  /// What a file begins with.
  mutating func begin(_ subject: CaptureSubject, at time: UInt64, to output: inout [UInt8])
  mutating func add(_ record: CaptureRecord, to output: inout [UInt8])
  /// Whether a line has begun that may still grow.
  var hasUnfinishedLine: Bool { get }
  /// Ends such a line.
  mutating func finishLine(to output: inout [UInt8])
}

extension CaptureEncoder {
  mutating func begin(_ subject: CaptureSubject, at time: UInt64, to output: inout [UInt8]) {}
  var hasUnfinishedLine: Bool { false }
  mutating func finishLine(to output: inout [UInt8]) {}
}

/// What is recorded.
struct CaptureSubject: Hashable, Sendable {
  var route: String
  /// Secrets masked.
  var endpoint: String
}

extension Config.Capture.Format {
  func encoder() -> any CaptureEncoder {
    switch self {
    case .pcapng: PcapngEncoder()
    case .text: LineEncoder(.text)
    case .hex: LineEncoder(.hex)
    case .raw: RawEncoder()
    }
  }

  /// The usual ending of such a file's name.
  var ending: String {
    switch self {
    case .pcapng: "pcapng"
    case .text: "txt"
    case .hex: "hex"
    case .raw: "raw"
    }
  }
}

/// The bytes of both directions, as they came, and nothing else.
struct RawEncoder: CaptureEncoder {
  mutating func add(_ record: CaptureRecord, to output: inout [UInt8]) {
    if record.kind.isData { output.append(contentsOf: record.bytes) }
  }
}

extension CaptureRecord {
  /// How many bytes are missing.
  var countLost: UInt64 { kind == .lost && bytes.count == 8 ? bytes.loadUnaligned(as: UInt64.self) : 0 }

  /// The event in words; empty for data.
  var words: String {
    switch kind {
    case .toDevice, .fromDevice: ""
    case .lost: "\(countLost) bytes are missing here: they were not recorded, because the disk was too slow"
    case .complete: "the recording ends here"
    default: String(decoding: bytes, as: UTF8.self)
    }
  }
}
