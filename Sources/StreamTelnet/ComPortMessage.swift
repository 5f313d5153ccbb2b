// The subnegotiations of RFC 2217 (COM-PORT-OPTION): a serial port's settings and lines. One value for both directions,
// since a server's answer has the form of the request; its code is 100 higher.

/// A message about the line. Numbers have the meaning of RFC 2217 section 3.
package enum ComPortMessage: Hashable, Sendable {
  /// Text about the software; empty: a request for the other side's.
  case signature([UInt8])
  /// Bits per second; 0 asks for the value in force.
  case baudRate(UInt32)
  /// 5 to 8; 0 asks.
  case dataSize(UInt8)
  /// 1 to 5: none, odd, even, mark, space; 0 asks.
  case parity(UInt8)
  /// 1, 2, and 3 for one and a half; 0 asks.
  case stopSize(UInt8)
  /// Flow control, break, DTR and RTS, with their queries: 0 to 19.
  case control(UInt8)
  /// LSR bits that occurred. From a client: a request for them.
  case lineState(UInt8)
  /// MSR bits with their changes. From a client: a request for them.
  case modemState(UInt8)
  /// The other side must stop to send data.
  case suspend
  case resume
  /// Which bits of `lineState` the server reports.
  case lineStateMask(UInt8)
  case modemStateMask(UInt8)
  /// 1: what came from the device, 2: what was not sent to it yet, 3: both.
  case purge(UInt8)

  /// What the server adds to a code.
  private static let answer: UInt8 = 100

  private static func decode(_ code: UInt8, _ value: [UInt8]) -> ComPortMessage? {
    if code == 0 { return .signature(value) }
    if code == 8 { return .suspend }
    if code == 9 { return .resume }
    if code == 1 {
      guard value.count == 4 else { return nil }
      return .baudRate(value.reduce(0) { $0 << 8 | UInt32($1) })
    }
    // RFC 2217 has no request without a value for these two. Some clients send it.
    guard let byte = value.first ?? (code == 6 || code == 7 ? 0 : nil) else { return nil }
    switch code {
    case 2: return .dataSize(byte)
    case 3: return .parity(byte)
    case 4: return .stopSize(byte)
    case 5: return .control(byte)
    case 6: return .lineState(byte)
    case 7: return .modemState(byte)
    case 10: return .lineStateMask(byte)
    case 11: return .modemStateMask(byte)
    case 12: return .purge(byte)
    default: return nil
    }
  }

  /// Nil for content that is no message of the other side.
  package init?(_ content: [UInt8], from side: TelnetRole) {
    guard let first = content.first, side == .client || first >= Self.answer else { return nil }
    let code = side == .client ? first : first - Self.answer
    guard let message = Self.decode(code, Array(content.dropFirst())) else { return nil }
    self = message
  }

  private var codeAndValue: (UInt8, [UInt8]) {
    switch self {
    case .signature(let text): (0, text)
    case .baudRate(let rate): (1, withUnsafeBytes(of: rate.bigEndian) { Array($0) })
    case .dataSize(let value): (2, [value])
    case .parity(let value): (3, [value])
    case .stopSize(let value): (4, [value])
    case .control(let value): (5, [value])
    case .lineState(let value): (6, [value])
    case .modemState(let value): (7, [value])
    case .suspend: (8, [])
    case .resume: (9, [])
    case .lineStateMask(let value): (10, [value])
    case .modemStateMask(let value): (11, [value])
    case .purge(let value): (12, [value])
    }
  }

  /// The subnegotiation's content, as `role` sends it.
  package func content(from role: TelnetRole) -> [UInt8] {
    let (code, value) = codeAndValue
    return [role == .server ? code + Self.answer : code] + value
  }

  /// The whole subnegotiation, as `role` sends it.
  package func bytes(from role: TelnetRole) -> [UInt8] {
    let iac = TelnetCommand.iac.rawValue
    var bytes = [iac, TelnetCommand.subnegotiation.rawValue, TelnetOption.comPort.rawValue]
    for byte in content(from: role) { bytes += byte == iac ? [iac, iac] : [byte] }
    return bytes + [iac, TelnetCommand.subnegotiationEnd.rawValue]
  }
}

/// Which end of a telnet connection.
package enum TelnetRole: Sendable {
  case server
  case client
}
