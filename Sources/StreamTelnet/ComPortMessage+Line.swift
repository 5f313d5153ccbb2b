// The numbers of RFC 2217 section 3, as values of a serial line: the one table of both ends.

import ByteStreams

extension ComPortMessage {
  /// What a message is about. An answer has the kind of its request.
  package enum Kind: Hashable {
    case signature, baudRate, dataSize, parity, stopSize
    case flowControl, inboundFlowControl, breakState, dtr, rts
    case lineState, modemState, pause, lineStateMask, modemStateMask, purge
  }

  package var kind: Kind {
    switch self {
    case .signature: .signature
    case .baudRate: .baudRate
    case .dataSize: .dataSize
    case .parity: .parity
    case .stopSize: .stopSize
    case .control(0...3), .control(17), .control(19): .flowControl
    case .control(4...6): .breakState
    case .control(7...9): .dtr
    case .control(10...12): .rts
    case .control: .inboundFlowControl
    case .lineState: .lineState
    case .modemState: .modemState
    case .suspend, .resume: .pause
    case .lineStateMask: .lineStateMask
    case .modemStateMask: .modemStateMask
    case .purge: .purge
    }
  }

  /// The command's name in RFC 2217.
  package var name: String {
    switch self {
    case .signature: "SIGNATURE"
    case .baudRate: "SET-BAUDRATE"
    case .dataSize: "SET-DATASIZE"
    case .parity: "SET-PARITY"
    case .stopSize: "SET-STOPSIZE"
    case .control: "SET-CONTROL"
    case .lineState: "NOTIFY-LINESTATE"
    case .modemState: "NOTIFY-MODEMSTATE"
    case .suspend: "FLOWCONTROL-SUSPEND"
    case .resume: "FLOWCONTROL-RESUME"
    case .lineStateMask: "SET-LINESTATE-MASK"
    case .modemStateMask: "SET-MODEMSTATE-MASK"
    case .purge: "PURGE-DATA"
    }
  }

  /// About `LineSettings` or DTR and RTS.
  package var isSetting: Bool {
    switch kind {
    case .baudRate, .dataSize, .parity, .stopSize, .flowControl, .dtr, .rts: true
    default: false
    }
  }
}

extension LineSettings {
  private static let parities: [Parity] = [.none, .odd, .even, .mark, .space]
  private static let stopSizes: [StopBits] = [.one, .two, .oneAndHalf]
  private static let flowControls: [FlowControl] = [.none, .xonxoff, .rtscts]

  /// The requests for all of them. Numbers begin with 1.
  package var messages: [ComPortMessage] {
    func number<Value: Equatable>(_ value: Value, _ all: [Value]) -> UInt8 {
      UInt8((all.firstIndex(of: value) ?? 0) + 1)
    }
    return [
      .baudRate(bitsPerSecond), .dataSize(UInt8(clamping: dataBits)), .parity(number(parity, Self.parities)),
      .stopSize(number(stopBits, Self.stopSizes)), .control(number(flowControl, Self.flowControls)),
    ]
  }

  /// Takes over the setting that a server reports. False if it reports none that exists here.
  package mutating func take(_ message: ComPortMessage) -> Bool {
    func value<Value>(_ number: UInt8, _ all: [Value]) -> Value? {
      all.indices.contains(Int(number) - 1) ? all[Int(number) - 1] : nil
    }
    switch message {
    case .baudRate(let rate) where rate > 0: bitsPerSecond = rate
    case .dataSize(let count) where (5...8).contains(count): dataBits = Int(count)
    case .parity(let number):
      guard let value = value(number, Self.parities) else { return false }
      parity = value
    case .stopSize(let number):
      guard let value = value(number, Self.stopSizes) else { return false }
      stopBits = value
    case .control(let number) where message.kind == .flowControl:
      guard let value = value(number, Self.flowControls) else { return false }
      flowControl = value
    default: return false
    }
    return true
  }
}

extension ModemOutputStates {
  /// The same for DTR and RTS.
  package mutating func take(_ message: ComPortMessage) -> Bool {
    for line in [ModemOutput.dtr, .rts] {
      for isOn in [true, false] where message == line.message(isOn) {
        self[line] = isOn
        return true
      }
    }
    return false
  }
}

extension ModemOutput {
  package var query: ComPortMessage { .control(self == .dtr ? 7 : 10) }

  package func message(_ isOn: Bool) -> ComPortMessage {
    switch self {
    case .dtr: .control(isOn ? 8 : 9)
    case .rts: .control(isOn ? 11 : 12)
    }
  }
}

extension Purge {
  /// Nil for a number that RFC 2217 does not have.
  package init?(code: UInt8) {
    guard let what = [Purge.input, .output, .both].first(where: { $0.code == code }) else { return nil }
    self = what
  }

  package var code: UInt8 {
    switch self {
    case .input: 1
    case .output: 2
    case .both: 3
    }
  }
}

extension ModemInputs {
  private static let bits: [(bit: UInt8, input: ModemInputs)] = [(0x10, .cts), (0x20, .dsr), (0x40, .ri), (0x80, .dcd)]

  /// The upper half of a UART's modem status register. The lower half has a bit for each line that has changed.
  package var modemStatus: UInt8 { Self.bits.reduce(0) { contains($1.input) ? $0 | $1.bit : $0 } }

  package init(modemStatus: UInt8) {
    self = []
    for (bit, input) in Self.bits where modemStatus & bit != 0 { insert(input) }
  }
}
