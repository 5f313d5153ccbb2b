// The system calls that a serial port needs, one method each, so that tests can record them and let them fail. Each of
// them may take seconds on a USB adapter: they run on the device's queue, never on a lane.

import ByteStreams
import CLinux
import Glibc

protocol TTYCalls: Sendable {
  /// stat(2). Only character devices are opened.
  func identify(_ path: String) throws(SystemError) -> TTYNode
  /// open(2) with O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC. Non-blocking, so that it does not wait for a carrier.
  func open(_ path: String) throws(SystemError) -> Descriptor
  /// flock(2), LOCK_EX | LOCK_NB: excludes other programs that lock the port, even those of root. Ends with the
  /// descriptor.
  func lock(_ tty: Int32) throws(SystemError)
  /// TIOCEXCL of ioctl_tty(2): excludes everybody except root.
  func exclude(_ tty: Int32) throws(SystemError)
  /// Undoes `lock` and `exclude`: LOCK_UN and TIOCNXCL.
  func releaseExclusion(_ tty: Int32)
  /// TCGETS2. ENOTTY: not a terminal.
  func modes(_ tty: Int32) throws(SystemError) -> linux_termios
  /// TCSETS2.
  func setModes(_ tty: Int32, _ modes: linux_termios) throws(SystemError)
  /// TIOCMBIS or TIOCMBIC with bits such as TIOCM_DTR.
  func setModemBits(_ tty: Int32, _ bits: Int32, _ isOn: Bool) throws(SystemError)
  /// Raises some lines and drops others in one call: TIOCMSET, which needs the others' state (TIOCMGET).
  func setModemBits(_ tty: Int32, on: Int32, off: Int32) throws(SystemError)
  /// TIOCSBRK or TIOCCBRK.
  func setBreak(_ tty: Int32, _ isOn: Bool) throws(SystemError)
  /// ASYNC_LOW_LATENCY by TIOCSSERIAL.
  func setLowLatency(_ tty: Int32, _ isOn: Bool) throws(SystemError)
  /// TIOCOUTQ.
  func unsent(_ tty: Int32) throws(SystemError) -> Int
  /// TIOCSERGETLSR: the last bit has left. ENOTTY: the driver can't tell.
  func isTransmitterEmpty(_ tty: Int32) throws(SystemError) -> Bool
  /// TCXONC: starts output that XOFF has stopped.
  func startOutput(_ tty: Int32) throws(SystemError)
  /// Whether the driver has released the port (POLLHUP).
  func hasHungUp(_ tty: Int32) -> Bool
  /// The time for `sleep`, in nanoseconds.
  var now: UInt64 { get }
  /// clock_nanosleep(2) until `time`; returns at once if that is past.
  func sleep(until time: UInt64)
  /// Sleeps for `step`, as part of a wait.
  func pause(_ step: Duration)
  /// TIOCGRS485. ENOTTY: the driver has no such mode.
  func rs485(_ tty: Int32) throws(SystemError) -> linux_rs485
  /// TIOCSRS485.
  func setRS485(_ tty: Int32, _ mode: linux_rs485) throws(SystemError)
  /// tcflush(3).
  func flush(_ tty: Int32, _ purge: Purge) throws(SystemError)
  /// TIOCMGET. ENOTTY: the port has no modem lines.
  func modemInputs(_ tty: Int32) throws(SystemError) -> ModemInputs
  /// TIOCMGET, for DTR and RTS.
  func modemOutputs(_ tty: Int32) throws(SystemError) -> ModemOutputStates
  /// TIOCGICOUNT. ENOTTY: the driver does not count.
  func counts(_ tty: Int32) throws(SystemError) -> linux_line_counts
  /// TIOCMIWAIT on a thread of its own: writes to `bell`, an eventfd, after changes of the modem lines. Both
  /// descriptors must stay open until the wait is over.
  func startModemWait(_ tty: Int32, ringing bell: Int32) throws(SystemError) -> any ModemWait
}

/// A thread that waits in a driver. Call `end()` once; it blocks until the thread is out of the driver.
protocol ModemWait: Sendable {
  func end()
}

/// The kind of node that a path leads to.
struct TTYNode: Equatable, Sendable {
  /// The file's type of stat(2), such as S_IFCHR.
  let type: mode_t
  var isCharacterDevice: Bool { type == S_IFCHR }
  /// The slave of a pty. It has no line: it accepts only 8N1 and has no DTR, and neither matters.
  let isPty: Bool
  /// It was created, or its owner or mode changed, in the last second.
  var isNew = false
}

/// The kernel's calls.
struct SystemTTYCalls: TTYCalls {
  // Documentation/admin-guide/devices.txt of the kernel: Unix98 pty slaves.
  private static let ptyMajors: ClosedRange<UInt32> = 136...143

  func identify(_ path: String) throws(SystemError) -> TTYNode {
    var status = stat()
    try check("stat", stat(path, &status))
    let type = status.st_mode & S_IFMT
    return TTYNode(
      type: type,
      isPty: type == S_IFCHR && Self.ptyMajors.contains(gnu_dev_major(status.st_rdev)),
      isNew: Self.isNew(status))
  }

  private static func isNew(_ status: stat) -> Bool {
    var now = timespec()
    clock_gettime(CLOCK_REALTIME, &now)
    // Unchecked: a file system may report any time.
    let seconds = now.tv_sec &- status.st_ctim.tv_sec
    return seconds == 0 || seconds == 1 && now.tv_nsec < status.st_ctim.tv_nsec
  }

  func open(_ path: String) throws(SystemError) -> Descriptor {
    let raw = Glibc.open(path, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC)
    try check("open", raw)
    return Descriptor(owning: raw)
  }

  func lock(_ tty: Int32) throws(SystemError) { try check("flock", flock(tty, LOCK_EX | LOCK_NB)) }

  func exclude(_ tty: Int32) throws(SystemError) { try check("ioctl TIOCEXCL", ioctl(tty, UInt(TIOCEXCL), 0)) }

  func releaseExclusion(_ tty: Int32) {
    _ = ioctl(tty, UInt(TIOCNXCL), 0)
    _ = flock(tty, LOCK_UN)
  }

  func modes(_ tty: Int32) throws(SystemError) -> linux_termios {
    var modes = linux_termios()
    try check("ioctl TCGETS2", linux_tcgets2(tty, &modes))
    return modes
  }

  func setModes(_ tty: Int32, _ modes: linux_termios) throws(SystemError) {
    var modes = modes
    try check("ioctl TCSETS2", linux_tcsets2(tty, &modes))
  }

  func setModemBits(_ tty: Int32, _ bits: Int32, _ isOn: Bool) throws(SystemError) {
    var bits = bits
    try check(isOn ? "ioctl TIOCMBIS" : "ioctl TIOCMBIC", ioctl(tty, UInt(isOn ? TIOCMBIS : TIOCMBIC), &bits))
  }

  func setModemBits(_ tty: Int32, on: Int32, off: Int32) throws(SystemError) {
    var bits: Int32 = 0
    try check("ioctl TIOCMGET", ioctl(tty, UInt(TIOCMGET), &bits))
    bits = bits & ~off | on
    try check("ioctl TIOCMSET", ioctl(tty, UInt(TIOCMSET), &bits))
  }

  func setBreak(_ tty: Int32, _ isOn: Bool) throws(SystemError) {
    try check(isOn ? "ioctl TIOCSBRK" : "ioctl TIOCCBRK", ioctl(tty, UInt(isOn ? TIOCSBRK : TIOCCBRK), 0))
  }

  func setLowLatency(_ tty: Int32, _ isOn: Bool) throws(SystemError) {
    try check("ioctl TIOCSSERIAL", linux_set_low_latency(tty, isOn ? 1 : 0))
  }

  func unsent(_ tty: Int32) throws(SystemError) -> Int {
    var count: Int32 = 0
    try check("ioctl TIOCOUTQ", ioctl(tty, UInt(TIOCOUTQ), &count))
    return Int(count)
  }

  func isTransmitterEmpty(_ tty: Int32) throws(SystemError) -> Bool {
    var state: UInt32 = 0
    try check("ioctl TIOCSERGETLSR", ioctl(tty, UInt(TIOCSERGETLSR), &state))
    return state & 1 != 0  // TIOCSER_TEMT
  }

  func startOutput(_ tty: Int32) throws(SystemError) {
    // TCOON alone starts only what TCOOFF has stopped.
    try check("ioctl TCXONC", tcflow(tty, TCOOFF))
    try check("ioctl TCXONC", tcflow(tty, TCOON))
  }

  func hasHungUp(_ tty: Int32) -> Bool {
    var watched = pollfd(fd: tty, events: 0, revents: 0)
    return poll(&watched, 1, 0) > 0
  }

  var now: UInt64 { monotonicNanoseconds() }

  func sleep(until time: UInt64) {
    var limit = timespec(tv_sec: Int(time / 1_000_000_000), tv_nsec: Int(time % 1_000_000_000))
    while clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &limit, nil) == EINTR {}
  }

  func pause(_ step: Duration) { usleep(UInt32(clamping: step.nanoseconds / 1000)) }

  func rs485(_ tty: Int32) throws(SystemError) -> linux_rs485 {
    var mode = linux_rs485()
    try check("ioctl TIOCGRS485", linux_get_rs485(tty, &mode))
    return mode
  }

  func setRS485(_ tty: Int32, _ mode: linux_rs485) throws(SystemError) {
    var mode = mode
    try check("ioctl TIOCSRS485", linux_set_rs485(tty, &mode))
  }

  func flush(_ tty: Int32, _ purge: Purge) throws(SystemError) {
    let queue =
      switch purge {
      case .input: TCIFLUSH
      case .output: TCOFLUSH
      case .both: TCIOFLUSH
      }
    try check("tcflush", tcflush(tty, queue))
  }

  func modemInputs(_ tty: Int32) throws(SystemError) -> ModemInputs {
    let bits = try modemBits(tty)
    var inputs: ModemInputs = []
    if bits & TIOCM_CTS != 0 { inputs.insert(.cts) }
    if bits & TIOCM_DSR != 0 { inputs.insert(.dsr) }
    if bits & TIOCM_CAR != 0 { inputs.insert(.dcd) }
    if bits & TIOCM_RNG != 0 { inputs.insert(.ri) }
    return inputs
  }

  func modemOutputs(_ tty: Int32) throws(SystemError) -> ModemOutputStates {
    let bits = try modemBits(tty)
    return ModemOutputStates(dtr: bits & TIOCM_DTR != 0, rts: bits & TIOCM_RTS != 0)
  }

  private func modemBits(_ tty: Int32) throws(SystemError) -> Int32 {
    var bits: Int32 = 0
    try check("ioctl TIOCMGET", ioctl(tty, UInt(TIOCMGET), &bits))
    return bits
  }

  func counts(_ tty: Int32) throws(SystemError) -> linux_line_counts {
    var counts = linux_line_counts()
    try check("ioctl TIOCGICOUNT", linux_count_line(tty, &counts))
    return counts
  }

  func startModemWait(_ tty: Int32, ringing bell: Int32) throws(SystemError) -> any ModemWait {
    var thread = pthread_t()
    try check("pthread_create", linux_start_modem_wait(tty, bell, &thread))
    return WaitingThread(thread: thread)
  }

  private struct WaitingThread: ModemWait {
    let thread: pthread_t
    func end() { linux_end_modem_wait(thread) }
  }

  private func check(_ call: String, _ answer: Int32) throws(SystemError) {
    if answer < 0 { throw SystemError(call) }
  }
}
