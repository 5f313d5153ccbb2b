// A recording as pcapng (draft-ietf-opsawg-pcapng) with LINKTYPE_RTAC_SERIAL, which Wireshark and tshark read. Each
// event is one packet: 12 bytes of header, big-endian, and the data. What has no place there is a comment on the
// packet.
//
//   seconds since the file's beginning: 4   microseconds: 4   event: 1   modem lines: 1   zeros: 2

import StreamBroker

struct PcapngEncoder: CaptureEncoder {
  static let linkType: UInt16 = 250
  private static let header = 12
  // Directions in epb_flags, as seen from the gateway.
  private static let inbound: UInt32 = 1
  private static let outbound: UInt32 = 2
  private enum Option {
    static let end: UInt16 = 0
    static let comment: UInt16 = 1
    static let interfaceName: UInt16 = 2
    static let interfaceDescription: UInt16 = 3
    static let program: UInt16 = 4
    static let timeUnit: UInt16 = 9
    static let flags: UInt16 = 2
  }

  private var start: UInt64 = 0

  mutating func begin(_ subject: CaptureSubject, at time: UInt64, to output: inout [UInt8]) {
    start = time
    Self.block(0x0A0D_0D0A, to: &output) { output in
      output.add(UInt32(0x1A2B_3C4D))  // readers take the byte order from this
      output.add(UInt16(1))
      output.add(UInt16(0))
      output.add(UInt64.max)  // the section's length: not given
      Self.option(Option.program, "Baudway \(Version.text)", to: &output)
      Self.endOfOptions(to: &output)
    }
    Self.block(1, to: &output) { output in
      output.add(Self.linkType)
      output.add(UInt16(0))
      output.add(UInt32(CaptureBuffer.mostBytes + Self.header))
      Self.option(Option.interfaceName, subject.route, to: &output)
      Self.option(Option.interfaceDescription, subject.endpoint, to: &output)
      output.add(Option.timeUnit)
      output.add(UInt16(1))
      output.append(contentsOf: [9, 0, 0, 0])  // 10^-9 s
      Self.endOfOptions(to: &output)
    }
  }

  mutating func add(_ record: CaptureRecord, to output: inout [UInt8]) {
    let data = record.kind.isData ? record.bytes : UnsafeRawBufferPointer(start: nil, count: 0)
    let words = record.words
    start = min(start, record.time)  // the first events may be older than their file
    Self.block(6, to: &output) { output in
      output.add(UInt32(0))  // the interface
      output.add(UInt32(truncatingIfNeeded: record.time >> 32))
      output.add(UInt32(truncatingIfNeeded: record.time))
      let length = UInt32(Self.header + data.count)
      output.add(length)
      output.add(length)
      let passed = (record.time &- start) / 1000
      output.add(UInt32(truncatingIfNeeded: passed / 1_000_000).bigEndian)
      output.add(UInt32(truncatingIfNeeded: passed % 1_000_000).bigEndian)
      output.append(contentsOf: [record.kind.rawValue, record.lines.rawValue, 0, 0])
      output.append(contentsOf: data)
      output.pad(data.count)
      switch record.kind {
      case .toDevice: Self.flags(Self.outbound, to: &output)
      case .fromDevice: Self.flags(Self.inbound, to: &output)
      default: if !words.isEmpty { Self.option(Option.comment, words, to: &output) }
      }
      Self.endOfOptions(to: &output)
    }
  }

  /// Type and total length around the body; the length stands at both ends.
  private static func block(_ type: UInt32, to output: inout [UInt8], _ body: (inout [UInt8]) -> Void) {
    let beginning = output.count
    output.add(type)
    output.add(UInt32(0))
    body(&output)
    let length = UInt32(output.count - beginning + 4)
    output.add(length)
    withUnsafeBytes(of: length) { length in
      for (offset, byte) in length.enumerated() { output[beginning + 4 + offset] = byte }
    }
  }

  private static func flags(_ flags: UInt32, to output: inout [UInt8]) {
    output.add(Option.flags)
    output.add(UInt16(4))
    output.add(flags)
  }

  private static func option(_ code: UInt16, _ text: String, to output: inout [UInt8]) {
    let bytes = text.utf8.prefix(Int(UInt16.max))
    output.add(code)
    output.add(UInt16(bytes.count))
    output.append(contentsOf: bytes)
    output.pad(bytes.count)
  }

  private static func endOfOptions(to output: inout [UInt8]) { output.add(UInt32(Option.end)) }
}

extension [UInt8] {
  /// In the machine's byte order, which pcapng allows.
  fileprivate mutating func add(_ number: some FixedWidthInteger) {
    Swift.withUnsafeBytes(of: number) { append(contentsOf: $0) }
  }

  /// Zeros up to the next multiple of four after `count` bytes.
  fileprivate mutating func pad(_ count: Int) { for _ in 0..<((4 - count % 4) % 4) { append(0) } }
}
