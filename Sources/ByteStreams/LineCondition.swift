// What a serial line reports besides its bytes: the modem's lines, and errors on the wire.

/// Input lines of a port, as TIOCM_* of ioctl_tty(2).
public struct ModemInputs: OptionSet, Hashable, Sendable {
  /// One bit for each line.
  public let rawValue: UInt8
  /// From those bits.
  public init(rawValue: UInt8) { self.rawValue = rawValue }

  /// Clear to send (TIOCM_CTS).
  public static let cts = ModemInputs(rawValue: 1)
  /// Data set ready (TIOCM_DSR).
  public static let dsr = ModemInputs(rawValue: 2)
  /// Data carrier detect (TIOCM_CAR).
  public static let dcd = ModemInputs(rawValue: 4)
  /// Ring indicator (TIOCM_RNG).
  public static let ri = ModemInputs(rawValue: 8)
}

/// The states of the port's output lines; nil: unknown, as where the port has no such line.
public struct ModemOutputStates: Hashable, Sendable {
  /// Data terminal ready (TIOCM_DTR).
  public var dtr: Bool?
  /// Request to send (TIOCM_RTS).
  public var rts: Bool?

  /// Without arguments: both are unknown.
  public init(dtr: Bool? = nil, rts: Bool? = nil) {
    self.dtr = dtr
    self.rts = rts
  }

  /// The state of one line.
  public subscript(line: ModemOutput) -> Bool? {
    get { line == .dtr ? dtr : rts }
    set { if line == .dtr { dtr = newValue } else { rts = newValue } }
  }
}

/// The driver's counters (TIOCGICOUNT), since some moment before the port was opened. Each wraps around.
public struct LineCounts: Hashable, Sendable {
  /// Breaks that arrived.
  public var breaks: UInt32
  /// Characters without a valid stop bit.
  public var framing: UInt32
  /// Characters with a wrong parity bit.
  public var parity: UInt32
  /// Bytes that the hardware lost because they were not fetched in time.
  public var overruns: UInt32
  /// Bytes that the kernel lost because nobody read them.
  public var bufferOverruns: UInt32

  /// Without arguments: zeros.
  public init(
    breaks: UInt32 = 0, framing: UInt32 = 0, parity: UInt32 = 0, overruns: UInt32 = 0, bufferOverruns: UInt32 = 0
  ) {
    self.breaks = breaks
    self.framing = framing
    self.parity = parity
    self.overruns = overruns
    self.bufferOverruns = bufferOverruns
  }

  /// The increase since `before`.
  package func since(_ before: LineCounts) -> LineCounts { combined(before) { $0 &- $1 } }
  package func adding(_ more: LineCounts) -> LineCounts { combined(more) { $0 &+ $1 } }

  private func combined(_ other: LineCounts, _ by: (UInt32, UInt32) -> UInt32) -> LineCounts {
    LineCounts(
      breaks: by(breaks, other.breaks), framing: by(framing, other.framing), parity: by(parity, other.parity),
      overruns: by(overruns, other.overruns), bufferOverruns: by(bufferOverruns, other.bufferOverruns))
  }
}

/// The state of a line at one moment. Nil: its driver does not report it.
public struct LineCondition: Hashable, Sendable {
  /// The lines that are on.
  public var inputs: ModemInputs?
  /// The error counters.
  public var counts: LineCounts?
  /// How often one of the inputs changed, as far as the driver counts; a short pulse leaves no other trace. Wraps
  /// around.
  public var changes: UInt32

  /// Without arguments: nothing is reported.
  public init(inputs: ModemInputs? = nil, counts: LineCounts? = nil, changes: UInt32 = 0) {
    self.inputs = inputs
    self.counts = counts
    self.changes = changes
  }
}
