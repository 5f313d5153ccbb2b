// How a recording's events become the bytes of a file. One encoder for each file.

protocol CaptureEncoder {
  /// What a file begins with.
  mutating func begin(_ subject: CaptureSubject, at time: UInt64, to output: inout [UInt8])
  mutating func add(_ record: CaptureRecord, to output: inout [UInt8])
  /// Bytes of a line that has begun, which are not in the output yet.
  var unfinished: Int { get }
  /// Ends such a line.
  mutating func finishLine(to output: inout [UInt8])
}

extension CaptureEncoder {
  mutating func begin(_ subject: CaptureSubject, at time: UInt64, to output: inout [UInt8]) {}
  var unfinished: Int { 0 }
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
  /// The event in words; empty for data.
  var words: String { kind.isData ? "" : String(decoding: bytes, as: UTF8.self) }
}
