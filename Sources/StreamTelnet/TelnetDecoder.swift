// Data and commands from bytes as they come. Sees no stream. Data can be decoded in place, since it only gets shorter.

import Glibc

package struct TelnetDecoder: Sendable {
  /// What is between the data.
  package enum Token: Equatable, Sendable {
    case command(TelnetCommand)
    /// `verb` is will, wont, do or dont; the option may be unknown.
    case negotiation(TelnetCommand, option: UInt8)
    /// Without IAC in its content.
    case subnegotiation(option: UInt8, content: [UInt8])
  }

  /// How far decoding has come, in bytes of source and of output.
  package struct Progress {
    package var used = 0
    package var made = 0
    package init() {}
  }

  /// The longest subnegotiation that is kept; a longer one is dropped. COM-PORT's longest is a text for people.
  package static let longestContent = 256
  /// A subnegotiation longer than this breaks the connection: it may never end.
  package static let mostDropped = 64 << 10

  private enum State: Equatable {
    case data
    case iac
    case verb(TelnetCommand)
    case option
    case content
    case contentIAC
  }

  /// The other side sends data as it is. Otherwise NUL after CR is no data (RFC 854 page 11).
  package var isBinary = false {
    didSet { if isBinary != oldValue { lastWasCR = false } }
  }

  private var state = State.data
  private var lastWasCR = false
  private var option: UInt8 = 0
  private var content: [UInt8] = []
  private var contentCount = 0

  package init() {}

  /// Decodes from `source` into `run` until the source is used, the run is full (nil) or a token is complete. `run` may
  /// begin at the same address as `source`.
  package mutating func decode(
    _ source: UnsafeRawBufferPointer, into run: UnsafeMutableRawBufferPointer, _ progress: inout Progress
  ) throws(TelnetFault) -> Token? {
    while progress.used < source.count {
      if state == .data {
        guard copyData(source, run, &progress) else { return nil }
        continue
      }
      let byte = source[progress.used]
      if state == .iac && byte == TelnetCommand.iac.rawValue {
        guard progress.made < run.count else { return nil }
        run[progress.made] = byte
        progress.made += 1
        state = .data
        lastWasCR = false
      } else if let token = try take(byte) {
        progress.used += 1
        return token
      }
      progress.used += 1
    }
    return nil
  }

  /// Copies data up to the next command. False if the run is full.
  private mutating func copyData(
    _ source: UnsafeRawBufferPointer, _ run: UnsafeMutableRawBufferPointer, _ progress: inout Progress
  ) -> Bool {
    guard let from = source.baseAddress, let to = run.baseAddress else { return false }
    let left = source.count - progress.used
    let end = memchr(from + progress.used, Int32(TelnetCommand.iac.rawValue), left)
    let length = end.map { UnsafeRawPointer($0) - (from + progress.used) } ?? left
    let count = min(length, run.count - progress.made)
    if isBinary {
      if count > 0 && from + progress.used != UnsafeRawPointer(to + progress.made) {
        memmove(to + progress.made, from + progress.used, count)
      }
      progress.made += count
    } else {
      for byte in source[progress.used..<progress.used + count] {
        let isPadding = lastWasCR && byte == 0
        lastWasCR = byte == 0x0D
        guard !isPadding else { continue }
        run[progress.made] = byte
        progress.made += 1
      }
    }
    progress.used += count
    guard count == length else { return false }
    if end != nil {
      progress.used += 1
      state = .iac
    }
    return true
  }

  /// One byte of a command.
  private mutating func take(_ byte: UInt8) throws(TelnetFault) -> Token? {
    switch state {
    case .data: break
    case .iac:
      state = .data
      switch TelnetCommand(rawValue: byte) {
      case .will?, .wont?, .do?, .dont?: state = .verb(TelnetCommand(rawValue: byte) ?? .dont)
      case .subnegotiation?: state = .option
      case let command?: return .command(command)
      case nil: break  // a command that Baudway does not have
      }
    case .verb(let verb):
      state = .data
      return .negotiation(verb, option: byte)
    case .option:
      option = byte
      content = []
      contentCount = 0
      state = .content
    case .content:
      if byte == TelnetCommand.iac.rawValue { state = .contentIAC } else { try keep(byte) }
    case .contentIAC:
      if byte == TelnetCommand.iac.rawValue {
        state = .content
        try keep(byte)
        return nil
      }
      guard byte == TelnetCommand.subnegotiationEnd.rawValue else {
        // No subnegotiation contains a command, so its end is missing.
        state = .iac
        return try take(byte)
      }
      state = .data
      guard contentCount <= Self.longestContent else { return nil }
      defer { content = [] }
      return .subnegotiation(option: option, content: content)
    }
    return nil
  }

  private mutating func keep(_ byte: UInt8) throws(TelnetFault) {
    contentCount += 1
    if contentCount <= Self.longestContent { content.append(byte) }
    guard contentCount <= Self.mostDropped else { throw TelnetFault("a telnet subnegotiation does not end") }
  }
}
