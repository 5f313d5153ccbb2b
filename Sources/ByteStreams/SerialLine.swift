// The optional face of a stream with a serial line behind it: settings, modem lines, break, purge. Listeners, commands
// and reload ask for the face, never for a tty. Every call can take long (USB adapters), so each answers on the lane later.

/// How characters stand on the line.
public struct LineSettings: Hashable, Sendable {
  public enum Parity: String, Sendable, CaseIterable { case none, even, odd, mark, space }
  public enum StopBits: String, Sendable, CaseIterable {
    case one = "1"
    case oneAndHalf = "1.5"
    case two = "2"
  }
  public enum FlowControl: String, Sendable, CaseIterable { case none, rtscts, xonxoff }

  public var bitsPerSecond: UInt32
  public var dataBits: Int  // 5...8
  public var parity: Parity
  public var stopBits: StopBits
  public var flowControl: FlowControl

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
public enum ModemOutput: Sendable { case dtr, rts }

/// What to throw away: `input` came from the device, `output` waits to be sent (tcflush(3)).
public enum Purge: Sendable { case input, output, both }

extension LineSettings: CustomStringConvertible {
  /// As people say it: "9600 8N1", "115200 7E2 rtscts".
  public var description: String {
    let letter = parity.rawValue.prefix(1).uppercased()
    let flow = flowControl == .none ? "" : " \(flowControl.rawValue)"
    return "\(bitsPerSecond) \(dataBits)\(letter)\(stopBits.rawValue)\(flow)"
  }
}

public protocol SerialLine: AnyObject {
  /// What was in force when the driver was last asked: at the opening, and after each `apply`.
  var settings: LineSettings { get }
  /// Puts the settings in force; what the driver refuses or rounds shows in the answer, which is what is really in force.
  func apply(_ settings: LineSettings, _ done: @escaping (Result<LineSettings, SystemError>) -> Void)
  /// Raises or drops a line.
  func set(_ line: ModemOutput, _ isOn: Bool, _ done: @escaping (Result<Void, SystemError>) -> Void)
  /// Begins or ends a break (TIOCSBRK, TIOCCBRK).
  func setBreak(_ isOn: Bool, _ done: @escaping (Result<Void, SystemError>) -> Void)
  /// How many bytes that were taken have not left yet, as far as the driver tells (TIOCOUTQ).
  func unsent(_ done: @escaping (Result<Int, SystemError>) -> Void)
  func purge(_ what: Purge, _ done: @escaping (Result<Void, SystemError>) -> Void)
  /// Tells how the line is now, and then whenever that has changed, some 20 times a second at most. A failure is the last that is
  /// told: ENOTTY where the driver tells nothing at all. One observer at a time: a second takes the first one's place.
  func watch(_ told: @escaping (Result<LineCondition, SystemError>) -> Void)
  /// Nothing is told from now on, nor after the stream's close.
  func endWatch()
}
