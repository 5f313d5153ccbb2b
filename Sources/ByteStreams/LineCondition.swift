// What a serial line tells by itself, beside its bytes: the modem's lines, and what went wrong on the wire.

/// Input lines of a port, as TIOCM_* of ioctl_tty(2).
public struct ModemInputs: OptionSet, Hashable, Sendable {
  public let rawValue: UInt8
  public init(rawValue: UInt8) { self.rawValue = rawValue }

  public static let cts = ModemInputs(rawValue: 1)
  public static let dsr = ModemInputs(rawValue: 2)
  public static let dcd = ModemInputs(rawValue: 4)
  public static let ri = ModemInputs(rawValue: 8)
}

/// How often something was seen by the driver (TIOCGICOUNT), since some moment before the port was opened. Each goes round.
public struct LineCounts: Hashable, Sendable {
  public var breaks: UInt32
  public var framing: UInt32
  public var parity: UInt32
  /// Bytes that the hardware lost, for nobody fetched them in time.
  public var overruns: UInt32
  /// Bytes that the kernel lost, for nobody read them.
  public var bufferOverruns: UInt32

  public init(
    breaks: UInt32 = 0, framing: UInt32 = 0, parity: UInt32 = 0, overruns: UInt32 = 0, bufferOverruns: UInt32 = 0
  ) {
    self.breaks = breaks
    self.framing = framing
    self.parity = parity
    self.overruns = overruns
    self.bufferOverruns = bufferOverruns
  }

  /// How many more than there were.
  public func since(_ before: LineCounts) -> LineCounts { combined(before) { $0 &- $1 } }
  public func adding(_ more: LineCounts) -> LineCounts { combined(more) { $0 &+ $1 } }

  private func combined(_ other: LineCounts, _ by: (UInt32, UInt32) -> UInt32) -> LineCounts {
    LineCounts(
      breaks: by(breaks, other.breaks), framing: by(framing, other.framing), parity: by(parity, other.parity),
      overruns: by(overruns, other.overruns), bufferOverruns: by(bufferOverruns, other.bufferOverruns))
  }
}

/// How a line is at a moment. Nil: its driver does not tell.
public struct LineCondition: Hashable, Sendable {
  public var inputs: ModemInputs?
  public var counts: LineCounts?
  /// How often one of the inputs changed, as far as the driver counts: a pulse leaves no other trace. Goes round.
  public var changes: UInt32

  public init(inputs: ModemInputs? = nil, counts: LineCounts? = nil, changes: UInt32 = 0) {
    self.inputs = inputs
    self.counts = counts
    self.changes = changes
  }
}
