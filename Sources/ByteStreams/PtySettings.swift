// What a pseudo-terminal keeps of a serial port's settings: bit rate, stop bits, XON/XOFF. On a master, settings are
// the slave's (ioctl_tty(2)).

import CLinux
import Glibc

package struct PtySettings: Equatable, Sendable {
  /// 0 (B0) hangs up a modem.
  package var bitsPerSecond: UInt32
  package var hasTwoStopBits: Bool
  package var usesXonXoff: Bool

  package init(_ line: LineSettings) {
    bitsPerSecond = line.bitsPerSecond
    hasTwoStopBits = line.stopBits != .one
    usesXonXoff = line.flowControl == .xonxoff
  }

  /// The settings of the slave, without CLOCAL from now on; nil if they can't be read. XON/XOFF is as in `before` while
  /// only one of its two directions is on: cfmakeraw(3) and the settings of a shell change only IXON.
  package init?(of master: Int32, after before: PtySettings) {
    var modes = linux_termios()
    guard linux_tcgets2(master, &modes) == 0 else { return nil }
    // A program has set it, for one opening: prepare the next.
    if modes.cflag & UInt32(CLOCAL) != 0 { Self.clearCLOCAL(of: master) }
    bitsPerSecond = modes.output_rate
    hasTwoStopBits = modes.cflag & UInt32(CSTOPB) != 0
    usesXonXoff =
      switch modes.iflag & Self.xonXoff {
      case Self.xonXoff: true
      case 0: false
      default: before.usesXonXoff
      }
  }

  /// Sets the slave, and clears CLOCAL (decision N11). Only while no program has it open: the kernel has no call that
  /// changes one setting, so a change that a program makes meanwhile would be undone.
  package func show(at master: Int32) {
    var modes = linux_termios()
    guard linux_tcgets2(master, &modes) == 0 else { return }
    (modes.input_rate, modes.output_rate) = (bitsPerSecond, bitsPerSecond)
    modes.cflag = modes.cflag & ~UInt32(CSTOPB | CLOCAL) | (hasTwoStopBits ? UInt32(CSTOPB) : 0)
    modes.iflag = modes.iflag & ~Self.xonXoff | (usesXonXoff ? Self.xonXoff : 0)
    _ = linux_tcsets2(master, &modes)
  }

  /// Clears CLOCAL: the next program that asks for parity can open the pty (decision N11). TIOCSSOFTCAR is the one call
  /// that changes a single setting, so this is safe while programs have the pty open.
  package static func clearCLOCAL(of pty: Int32) {
    var isLocal: Int32 = 0
    _ = ioctl(pty, UInt(TIOCSSOFTCAR), &isLocal)
  }

  private static let xonXoff = UInt32(IXON | IXOFF)
}
