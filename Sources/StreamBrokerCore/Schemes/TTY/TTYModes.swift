// Converts line settings to termios(3) and back. Pure values: no descriptor, no call.

import ByteStreams
import CLinux
import Glibc

extension LineSettings {
  /// `now` with these settings, in raw mode: nothing is echoed, translated or treated as a signal. The carrier is
  /// ignored (CLOCAL), and a read returns from the first byte on (VMIN 1, VTIME 0: with VMIN 0 an empty queue would
  /// look like a hang-up). HUPCL drops DTR and RTS at the last close. Nil if there is no such format.
  func modes(from now: linux_termios, hangUpOnClose: Bool) -> linux_termios? {
    guard let size = Self.sizes[dataBits], bitsPerSecond > 0 else { return nil }
    // CSTOPB is 1.5 stop bits with 5 data bits, and 2 with all others.
    if stopBits == .oneAndHalf && dataBits != 5 { return nil }
    var modes = now
    modes.iflag = flowControl == .xonxoff ? UInt32(IXON | IXOFF) : 0
    modes.oflag = 0
    modes.lflag = 0
    var flags = Int32(bitPattern: now.cflag)
    flags &= ~(CSIZE | PARENB | PARODD | CMSPAR | CSTOPB | HUPCL | Self.hardwareFlowControl)
    flags |= CREAD | CLOCAL | size | (Self.parities[parity] ?? 0)
    if stopBits != .one { flags |= CSTOPB }
    if flowControl == .rtscts { flags |= Self.hardwareFlowControl }
    if hangUpOnClose { flags |= HUPCL }
    modes.cflag = UInt32(bitPattern: flags)
    modes.input_rate = bitsPerSecond
    modes.output_rate = bitsPerSecond
    modes.min = 1
    modes.time = 0
    if flowControl == .xonxoff {
      modes.start = 0x11  // DC1, DC3: the previous program may have changed them
      modes.stop = 0x13
    }
    return modes
  }

  /// The settings in force under `modes`.
  init(_ modes: linux_termios) {
    let flags = Int32(bitPattern: modes.cflag)
    self.init(bitsPerSecond: modes.output_rate)
    dataBits = Self.sizes.first { $0.value == flags & CSIZE }?.key ?? 8
    if flags & PARENB != 0 {
      let kind = flags & (PARENB | PARODD | CMSPAR)
      parity = Self.parities.first { $0.value == kind }?.key ?? .none
    }
    if flags & CSTOPB != 0 { stopBits = dataBits == 5 ? .oneAndHalf : .two }
    if flags & Self.hardwareFlowControl != 0 {
      flowControl = .rtscts
    } else if modes.iflag & UInt32(IXON) != 0 {
      flowControl = .xonxoff
    }
  }

  /// The part of `asked` that differs from these settings, which are in force: "parity mark", or nil. Rates may be
  /// rounded: receivers tolerate 3 %.
  package func refusal(of asked: LineSettings) -> String? {
    let difference = UInt64(max(bitsPerSecond, asked.bitsPerSecond) - min(bitsPerSecond, asked.bitsPerSecond))
    if difference * 100 > UInt64(asked.bitsPerSecond) * 3 {
      return "\(asked.bitsPerSecond) bit/s (it runs at \(bitsPerSecond))"
    }
    if dataBits != asked.dataBits { return "\(asked.dataBits) data bits" }
    if parity != asked.parity { return "parity \(asked.parity.rawValue)" }
    if (stopBits == .one) != (asked.stopBits == .one) { return "\(asked.stopBits.rawValue) stop bits" }
    if flowControl != asked.flowControl { return "flow control \(asked.flowControl.rawValue)" }
    return nil
  }

  private static let hardwareFlowControl = Int32(bitPattern: CRTSCTS)

  private static let sizes: [Int: Int32] = [5: CS5, 6: CS6, 7: CS7, 8: CS8]

  // Mark and space are "stick" parity: the bit that odd or even parity would have is always 1 or always 0.
  private static let parities: [Parity: Int32] = [
    .even: PARENB, .odd: PARENB | PARODD, .mark: PARENB | PARODD | CMSPAR, .space: PARENB | CMSPAR,
  ]
}

extension linux_termios {
  func isSame(as other: linux_termios) -> Bool {
    iflag == other.iflag && oflag == other.oflag && cflag == other.cflag && lflag == other.lflag
      && input_rate == other.input_rate && output_rate == other.output_rate
      && min == other.min && time == other.time && start == other.start && stop == other.stop
  }
}
