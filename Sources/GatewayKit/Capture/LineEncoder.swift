// A recording as lines of text: time, direction, bytes. `>` is to the device, `<` from it, `-` an event of the line.
//
//   text   2026-11-27T21:10:03.123456+00:00 < login: \r\n
//   hex    2026-11-27T21:10:03.123456+00:00 > 68 65 6c 6c 6f                                   |hello|
//
// In text, a line of the file has one line of the bytes, its line feed included, as the escape \n. So bytes of one
// direction, one after the other, are all of them, and nothing that a device sends can look like a line of ours.

struct LineEncoder: CaptureEncoder {
  enum Style { case text, hex }

  private let style: Style
  /// The line under way.
  private var line: [UInt8] = []
  private var kind = CaptureRecord.Kind.change
  private var time: UInt64 = 0
  private var times = CaptureTimes()
  /// The most bytes in a line.
  private var most: Int { style == .text ? 1024 : 16 }

  init(_ style: Style) { self.style = style }

  var unfinished: Int { line.count }

  mutating func add(_ record: CaptureRecord, to output: inout [UInt8]) {
    guard record.kind.isData else {
      finishLine(to: &output)
      begin(record.kind, record.time, to: &output)
      output.append(contentsOf: record.words.utf8)
      output.append(Self.lineFeed)
      return
    }
    if kind != record.kind { finishLine(to: &output) }
    for byte in record.bytes {
      if line.isEmpty { (kind, time) = (record.kind, record.time) }
      line.append(byte)
      if line.count == most || style == .text && byte == Self.lineFeed { finishLine(to: &output) }
    }
  }

  mutating func finishLine(to output: inout [UInt8]) {
    guard !line.isEmpty else { return }
    begin(kind, time, to: &output)
    switch style {
    case .text: for byte in line { Self.escape(byte, to: &output) }
    case .hex: hexadecimal(to: &output)
    }
    output.append(Self.lineFeed)
    line.removeAll(keepingCapacity: true)
  }

  private mutating func begin(_ kind: CaptureRecord.Kind, _ time: UInt64, to output: inout [UInt8]) {
    times.add(time, to: &output)
    let mark: Unicode.Scalar = kind == .toDevice ? ">" : kind == .fromDevice ? "<" : "-"
    output.append(contentsOf: [0x20, UInt8(ascii: mark), 0x20])
  }

  private static let lineFeed = UInt8(ascii: "\n")
  private static let digits = Array("0123456789abcdef".utf8)

  private static func escape(_ byte: UInt8, to output: inout [UInt8]) {
    switch byte {
    case UInt8(ascii: "\\"): output.append(contentsOf: [byte, byte])
    case 0x20...0x7E: output.append(byte)
    case lineFeed: output.append(contentsOf: [UInt8(ascii: "\\"), UInt8(ascii: "n")])
    case UInt8(ascii: "\r"): output.append(contentsOf: [UInt8(ascii: "\\"), UInt8(ascii: "r")])
    case UInt8(ascii: "\t"): output.append(contentsOf: [UInt8(ascii: "\\"), UInt8(ascii: "t")])
    default:
      output.append(contentsOf: [
        UInt8(ascii: "\\"), UInt8(ascii: "x"), digits[Int(byte >> 4)], digits[Int(byte & 15)],
      ])
    }
  }

  private func hexadecimal(to output: inout [UInt8]) {
    for byte in line { output.append(contentsOf: [Self.digits[Int(byte >> 4)], Self.digits[Int(byte & 15)], 0x20]) }
    for _ in line.count..<most { output.append(contentsOf: [0x20, 0x20, 0x20]) }
    output.append(UInt8(ascii: "|"))
    for byte in line { output.append((0x20...0x7E).contains(byte) ? byte : UInt8(ascii: ".")) }
    output.append(UInt8(ascii: "|"))
  }
}
