// Which options both sides have agreed upon (RFC 854, with the states of RFC 1143, which rule out endless loops). A
// value: what arrived goes in, the answer comes out. Baudway asks for options at the beginning and never asks for an
// end, so the states for that are missing.

package struct TelnetNegotiation: Sendable {
  /// Which end performs an option.
  package enum Side: Sendable {
    case local
    case remote
  }

  package enum State: Equatable, Sendable {
    case off
    /// We have asked, and wait for the answer.
    case asked
    case on
    /// The other side has answered that it does not want it.
    case refused
  }

  /// What this end agrees to, if the other side asks.
  package struct Policy: Sendable {
    package var local: Set<TelnetOption>
    package var remote: Set<TelnetOption>

    /// A port that clients connect to. It performs ECHO: a terminal must not show what is typed, the device does.
    package static func server(comPort: Bool) -> Policy {
      Policy(
        local: [.binary, .echo, .suppressGoAhead] + (comPort ? [.comPort] : []),
        remote: [.binary, .suppressGoAhead] + (comPort ? [.comPort] : []))
    }

    /// A client of such a port.
    package static func client(comPort: Bool) -> Policy {
      Policy(
        local: [.binary, .suppressGoAhead] + (comPort ? [.comPort] : []),
        remote: [.binary, .echo, .suppressGoAhead] + (comPort ? [.comPort] : []))
    }

    private init(local: [TelnetOption], remote: [TelnetOption]) {
      self.local = Set(local)
      self.remote = Set(remote)
    }
  }

  // Few, so a list is smaller than a table.
  private var local: [(option: TelnetOption, state: State)]
  private var remote: [(option: TelnetOption, state: State)]

  package init(_ policy: Policy) {
    local = TelnetOption.allCases.filter(policy.local.contains).map { ($0, .off) }
    remote = TelnetOption.allCases.filter(policy.remote.contains).map { ($0, .off) }
  }

  /// Off also for an option that this end never agrees to.
  package func state(of option: TelnetOption, _ side: Side) -> State {
    (side == .local ? local : remote).first { $0.option == option }?.state ?? .off
  }

  /// COM-PORT is on, at whichever end: RFC 2217 has the client perform it, but pyserial asks for both.
  package var hasComPort: Bool { state(of: .comPort, .local) == .on || state(of: .comPort, .remote) == .on }

  /// COM-PORT is not on, but may still be agreed to.
  package var hopesForComPort: Bool {
    !hasComPort && (state(of: .comPort, .local) == .asked || state(of: .comPort, .remote) == .asked)
  }

  /// No answer about BINARY is missing: how data is encoded stays as it is now, unless the other side asks.
  package var isBinarySettled: Bool {
    state(of: .binary, .local) != .asked && state(of: .binary, .remote) != .asked
  }

  /// Asks for an option that is off. Appends the question to `answer`.
  package mutating func ask(for option: TelnetOption, _ side: Side, _ answer: inout [UInt8]) {
    guard state(of: option, side) == .off else { return }
    set(option, side, .asked)
    Self.append(side == .local ? .will : .do, option.rawValue, &answer)
  }

  /// Asks for all options that this end agrees to.
  package mutating func askForAll(_ answer: inout [UInt8]) {
    for (option, _) in local { ask(for: option, .local, &answer) }
    for (option, _) in remote where option != .echo { ask(for: option, .remote, &answer) }
  }

  /// The other side's word about an option. Appends the answer, if one is due.
  package mutating func receive(_ verb: TelnetCommand, _ code: UInt8, _ answer: inout [UInt8]) {
    let side = verb == .do || verb == .dont ? Side.local : .remote
    let agrees = verb == .do || verb == .will
    let (yes, no): (TelnetCommand, TelnetCommand) = side == .local ? (.will, .wont) : (.do, .dont)
    guard let option = TelnetOption(rawValue: code), isAllowed(option, side) else {
      if agrees { Self.append(no, code, &answer) }
      return
    }
    switch (state(of: option, side), agrees) {
    case (.off, true), (.refused, true):
      set(option, side, .on)
      Self.append(yes, code, &answer)
    case (.asked, true): set(option, side, .on)
    case (.asked, false): set(option, side, .refused)
    case (.on, false):
      set(option, side, .off)
      Self.append(no, code, &answer)
    case (.on, true), (.off, false), (.refused, false): break
    }
  }

  /// The other side uses COM-PORT, which we have asked for, without an answer: pyserial takes our question for the
  /// answer to its own, which it has not sent yet. Returns whether COM-PORT is on.
  package mutating func isUsingComPort() -> Bool {
    for side in [Side.local, .remote] where !hasComPort && state(of: .comPort, side) == .asked {
      set(.comPort, side, .on)
    }
    return hasComPort
  }

  private func isAllowed(_ option: TelnetOption, _ side: Side) -> Bool {
    (side == .local ? local : remote).contains { $0.option == option }
  }

  private mutating func set(_ option: TelnetOption, _ side: Side, _ state: State) {
    switch side {
    case .local: for index in local.indices where local[index].option == option { local[index].state = state }
    case .remote: for index in remote.indices where remote[index].option == option { remote[index].state = state }
    }
  }

  private static func append(_ verb: TelnetCommand, _ option: UInt8, _ answer: inout [UInt8]) {
    answer += [TelnetCommand.iac.rawValue, verb.rawValue, option]
  }
}
