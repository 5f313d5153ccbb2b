// The optional interface of a stream over a serial line: settings, modem lines, break, purge. Listeners, commands and
// reload use it and need not know ttys. Any call can take long (USB adapters), so each reports its result on the lane
// later.

import Glibc

/// The format of characters on the line.
public struct LineSettings: Hashable, Sendable {
  /// The parity bit; the raw values are those of URLs.
  public enum Parity: String, Sendable, CaseIterable {
    /// No parity bit.
    case none
    /// PARENB.
    case even
    /// PARENB, PARODD.
    case odd
    /// Always 1: CMSPAR, PARODD. Not every driver has it.
    case mark
    /// Always 0: CMSPAR. Not every driver has it.
    case space
  }
  /// The number of stop bits; the raw values are those of URLs.
  public enum StopBits: String, Sendable, CaseIterable {
    /// One bit.
    case one = "1"
    /// With five data bits only.
    case oneAndHalf = "1.5"
    /// CSTOPB.
    case two = "2"
  }
  /// How the line stops a sender; the raw values are those of URLs.
  public enum FlowControl: String, Sendable, CaseIterable {
    /// Nothing stops it.
    case none
    /// The lines RTS and CTS: CRTSCTS.
    case rtscts
    /// The bytes 0x11 and 0x13: IXON, IXOFF.
    case xonxoff
  }

  /// Any rate, also one that termios(3) has no name for (BOTHER); the driver rounds it to what the hardware can do.
  public var bitsPerSecond: UInt32
  /// 5 to 8 bits.
  public var dataBits: Int
  /// The parity bit.
  public var parity: Parity
  /// The stop bits.
  public var stopBits: StopBits
  /// The flow control.
  public var flowControl: FlowControl

  /// Without arguments: 9600 8N1. (`tty` URLs have 115,200 bits per second as their default.)
  public init(
    bitsPerSecond: UInt32 = 9600, dataBits: Int = 8, parity: Parity = .none, stopBits: StopBits = .one,
    flowControl: FlowControl = .none
  ) {
    self.bitsPerSecond = bitsPerSecond
    self.dataBits = dataBits
    self.parity = parity
    self.stopBits = stopBits
    self.flowControl = flowControl
  }
}

/// Output lines of the port, as TIOCM_* of ioctl_tty(2).
public enum ModemOutput: Sendable {
  /// Data terminal ready (TIOCM_DTR).
  case dtr
  /// Request to send (TIOCM_RTS).
  case rts
}

/// A step of a sequence on DTR and RTS.
public enum LineStep: Hashable, Sendable {
  /// Sets one line or both at once; nil leaves a line alone.
  case set(dtr: Bool? = nil, rts: Bool? = nil)
  /// The time from the end of the step before to the start of the next one.
  case pause(Duration)
}

/// What to discard: `input` came from the device, `output` waits to be sent (tcflush(3)).
public enum Purge: Sendable {
  /// TCIFLUSH
  case input
  /// TCOFLUSH
  case output
  /// TCIOFLUSH
  case both
}

extension LineSettings {
  /// How long one character takes on the wire, with its start, parity and stop bits.
  package var characterTime: Duration {
    let halfBits = 2 * (1 + dataBits + (parity == .none ? 0 : 1)) + (stopBits == .one ? 2 : stopBits == .two ? 4 : 3)
    return .nanoseconds(Int64(halfBits) * 500_000_000 / Int64(max(1, bitsPerSecond)))
  }
}

extension LineSettings: CustomStringConvertible {
  /// The usual notation: "9600 8N1", "115200 7E2 rtscts".
  public var description: String {
    let letter = parity.rawValue.prefix(1).uppercased()
    let flow = flowControl == .none ? "" : " \(flowControl.rawValue)"
    return "\(bitsPerSecond) \(dataBits)\(letter)\(stopBits.rawValue)\(flow)"
  }
}

/// The optional interface of a stream over a serial line: `stream.serialLine`. Lives on the lane of the stream. No call
/// blocks, since a USB adapter may need long for each: `done` gets the result on the lane, once. A call that is under
/// way when the stream closes may get no answer. Other tasks use `StreamHandle.line`.
public protocol SerialLine: AnyObject {
  /// The settings that the driver last reported: at opening, and after each `apply`.
  var settings: LineSettings { get }
  /// DTR and RTS as they were at opening, and after each `set`.
  var outputStates: ModemOutputStates { get }
  /// Applies the settings. The result holds what is really in force, since a driver may refuse or round settings.
  func apply(_ settings: LineSettings, _ done: @escaping (Result<LineSettings, SystemError>) -> Void)
  /// Raises or drops a line.
  func set(_ line: ModemOutput, _ isOn: Bool, _ done: @escaping (Result<Void, SystemError>) -> Void)
  /// Whether `perform` keeps exact times.
  var keepsTime: Bool { get }
  /// Carries out the steps with exact pauses; no other call comes in between. It ends at the first step that fails.
  /// EOPNOTSUPP: the line can't keep times.
  func perform(_ steps: [LineStep], _ done: @escaping (Result<Void, SystemError>) -> Void)
  /// Begins or ends a break (TIOCSBRK, TIOCCBRK).
  func setBreak(_ isOn: Bool, _ done: @escaping (Result<Void, SystemError>) -> Void)
  /// How many taken bytes are not sent yet, as far as the driver reports it (TIOCOUTQ).
  func unsent(_ done: @escaping (Result<Int, SystemError>) -> Void)
  /// Discards bytes that the driver holds (tcflush(3)).
  func purge(_ what: Purge, _ done: @escaping (Result<Void, SystemError>) -> Void)
  /// Starts output that XOFF has stopped, as if XON had come (tcflow(3)).
  func startOutput(_ done: @escaping (Result<Void, SystemError>) -> Void)
  /// The state of the line now, with the errors since it was opened. ENOTTY: the driver reports nothing.
  func condition(_ done: @escaping (Result<LineCondition, SystemError>) -> Void)
  /// Reports the state of the line now, and then each change, some 100 times a second at most. A failure is the last
  /// report; ENOTTY: the driver reports nothing at all. One observer at a time: a second one replaces the first.
  func watch(_ reported: @escaping (Result<LineCondition, SystemError>) -> Void)
  /// Ends the reports; closing the stream ends them too.
  func endWatch()
  /// From now on, calls `changed` when somebody else has changed the settings, DTR or RTS: `settings` and
  /// `outputStates` have the new values. One observer: a second one replaces the first.
  func observe(_ changed: @escaping () -> Void)
}

extension SerialLine {
  /// Lines beyond a network can't keep times.
  public var keepsTime: Bool { false }
  /// Refuses, at once.
  public func perform(_ steps: [LineStep], _ done: @escaping (Result<Void, SystemError>) -> Void) {
    done(.failure(SystemError("line steps", EOPNOTSUPP)))
  }
  /// A line beyond a network answers its own XOFF.
  public func startOutput(_ done: @escaping (Result<Void, SystemError>) -> Void) { done(.success(())) }
  /// Refuses, at once.
  public func condition(_ done: @escaping (Result<LineCondition, SystemError>) -> Void) {
    done(.failure(SystemError("line condition", ENOTTY)))
  }
  /// A port of this machine is not changed by others.
  public func observe(_ changed: @escaping () -> Void) {}
}

// MARK: - Sent bytes

extension SerialLine {
  /// The longest delay of a change by a port that cannot send.
  package static var longestWait: Duration { .seconds(1) }

  /// Calls `done` on `poller`'s lane when all bytes are sent, when the port cannot report that, or after `longestWait`.
  package func whenSent(on poller: Poller, then done: @escaping () -> Void) {
    whenSent(on: poller, before: poller.timers.now &+ Self.longestWait.nanoseconds, done)
  }

  private func whenSent(on poller: Poller, before limit: UInt64, _ done: @escaping () -> Void) {
    unsent { [weak poller] answer in
      guard let poller, case .success(let count) = answer, count > 0, poller.timers.now < limit else { return done() }
      poller.timers.after(.milliseconds(10)) { [weak poller] in
        if let poller { self.whenSent(on: poller, before: limit, done) } else { done() }
      }
    }
  }
}
