// Opens a serial port and sets its line, step by step, and says in words what went wrong. Everything here may block:
// it runs on the device's queue. What happens to the open port later is in TTYLine.

import ByteStreams
import CLinux
import Glibc

struct TTYPort: Sendable {
  let path: String
  let settings: TTYSettings
  let calls: any TTYCalls
  private let locks: UUCPLocks?

  init(
    _ path: String, _ settings: TTYSettings, calls: any TTYCalls = SystemTTYCalls(), locks: UUCPLocks? = .system
  ) {
    self.path = path
    self.settings = settings
    self.calls = calls
    self.locks = locks
  }

  // How long a driver may take to do what is under way anyhow: to come, to go.
  private static let step = Duration.milliseconds(5)
  private static let mostRetries = 20
  private static let hangUpTakes = 400  // steps

  /// An open port on its way to the lane.
  struct Opened: Sendable {
    let descriptor: DescriptorParcel
    /// To be let go of when the descriptor is closed, on the port's queue.
    let lock: UUCPLock?
    /// What is in force.
    let line: LineSettings

    /// For who does not want it any more.
    func close() {
      _ = descriptor.take()
      lock?.letGo()
    }
  }

  /// When a step fails, the port is closed again before this returns.
  func open(discardingInput: Bool) -> Result<Opened, OpenFailure> {
    do throws(OpenFailure) {
      let node = try attempt { () throws(SystemError) in try calls.identify(path) }
      guard node.isCharacterDevice else { throw noSerialPort }
      // Before the port is opened: that alone may raise lines which another program wants down.
      let lock = settings.isExclusive ? try locks?.take(path, leadingTo: FileSystem.realPath(path) ?? path) : nil
      let tty = try attempt { () throws(SystemError) in try openNode() }
      try attempt { () throws(SystemError) in
        _ = try calls.modes(tty.raw)  // before anything is done to it: what has no line settings is no port
        if settings.isExclusive { try keepOthersOut(tty.raw, isPty: node.isPty) }
      }
      // First of all lines: until the driver knows, its RTS holds the bus.
      try setRS485(tty.raw)
      try attempt { () throws(SystemError) in try setOutputs(tty.raw, isPty: node.isPty) }
      let line = try attempt { () throws(SystemError) in try apply(settings.line, to: tty.raw) }
      if !node.isPty, let refusal = line.refusal(of: settings.line) {
        throw OpenFailure("ioctl TCSETS2 \(path)", nil, advice: "the port does not do \(refusal)")
      }
      // Best effort: a port that can't be hurried, as all but UARTs and FTDI, is as good as it gets.
      try? calls.setLowLatency(tty.raw, settings.isLowLatency)
      if discardingInput { try attempt { () throws(SystemError) in try calls.flush(tty.raw, .input) } }
      return .success(Opened(descriptor: DescriptorParcel(tty), lock: lock, line: line))
    } catch {
      return .failure(error)
    }
  }

  /// Puts `line` in force and returns what really is. Settings that are in force already touch nothing: some adapters
  /// drop bytes at any change.
  func apply(_ line: LineSettings, to tty: Int32) throws(SystemError) -> LineSettings {
    let now = try calls.modes(tty)
    guard let wanted = line.modes(from: now, hangUpOnClose: settings.hangsUpOnClose) else {
      throw SystemError("ioctl TCSETS2", EINVAL)
    }
    if wanted.isSame(as: now) { return LineSettings(now) }
    try calls.setModes(tty, wanted)
    return LineSettings(try calls.modes(tty))
  }

  /// How the line is now. ENOTTY: the driver tells nothing.
  func condition(of tty: Int32) throws(SystemError) -> LineCondition {
    var condition = LineCondition()
    do throws(SystemError) {
      condition.inputs = try calls.modemInputs(tty)
    } catch {
      guard error.meansNoSuchThing else { throw error }
    }
    do throws(SystemError) {
      let counts = try calls.counts(tty)
      condition.counts = LineCounts(
        breaks: counts.breaks, framing: counts.framing, parity: counts.parity, overruns: counts.overruns,
        bufferOverruns: counts.buffer_overruns)
      condition.changes = counts.cts &+ counts.dsr &+ counts.dcd &+ counts.ri
    } catch {
      guard error.meansNoSuchThing, condition.inputs != nil else { throw error }
    }
    return condition
  }

  // MARK: - Steps

  /// Linux makes a node some milliseconds before the driver can be reached through it, and keeps it as long after a pull.
  private func openNode() throws(SystemError) -> Descriptor {
    for _ in 0..<Self.mostRetries {
      do throws(SystemError) {
        return try calls.open(path)
      } catch {
        guard error.errno == ENXIO || error.errno == ENODEV else { throw error }
        calls.pause(Self.step)
      }
    }
    return try calls.open(path)
  }

  private func keepOthersOut(_ tty: Int32, isPty: Bool) throws(SystemError) {
    try calls.lock(tty)
    // A pty stays excluded after our close, as long as its master lives, and would shut us out as well.
    if !isPty { try calls.exclude(tty) }
  }

  /// A mode that is in force already is not set again, and off means nothing to a driver that knows no other.
  private func setRS485(_ tty: Int32) throws(OpenFailure) {
    let now = try? calls.rs485(tty)
    guard let wanted = settings.rs485 else {
      if var mode = now, mode.on != 0 {
        mode.on = 0
        try setRS485(tty, mode)
      }
      return
    }
    if let now, now.isSame(as: wanted.mode) { return }
    try setRS485(tty, wanted.mode)
    let inForce = try attempt { () throws(SystemError) in try calls.rs485(tty) }
    if let refusal = inForce.refusal(of: wanted.mode) {
      throw OpenFailure("ioctl TIOCSRS485 \(path)", nil, advice: "the driver does not do \(refusal)")
    }
  }

  private func setRS485(_ tty: Int32, _ mode: linux_rs485) throws(OpenFailure) {
    try attempt { () throws(SystemError) in try calls.setRS485(tty, mode) }
  }

  /// Both lines in one call where they go the same way: boards that reset on DTR and RTS look at the two together.
  private func setOutputs(_ tty: Int32, isPty: Bool) throws(SystemError) {
    for isOn in [true, false] {
      let bits = (settings.dtr == isOn ? TIOCM_DTR : 0) | (settings.rts == isOn ? TIOCM_RTS : 0)
      guard bits != 0 else { continue }
      do {
        try calls.setModemBits(tty, bits, isOn)
      } catch {
        if !isPty { throw error }
      }
    }
  }

  /// To be called before close(2). A program that is being started holds a copy of the descriptor until it runs, and with it
  /// all that keeps others out: who opens the port meanwhile, perhaps we, would find it in use.
  func prepareToClose(_ tty: Int32) {
    awaitHangUp(tty)
    if settings.isExclusive { calls.letOthersIn(tty) }
  }

  /// close(2) waits for what is not sent: up to 30 s, and the port's lock is held meanwhile. Of an
  /// adapter that was pulled while bytes were on their way nothing will be, and until its port is free the kernel sees no
  /// other device on that bus. Once it has hung up, closing is quick.
  private func awaitHangUp(_ tty: Int32) {
    for _ in 0..<Self.hangUpTakes {
      guard let unsent = try? calls.unsent(tty), unsent > 0, !calls.hasHungUp(tty) else { return }
      calls.pause(Self.step)
    }
  }

  // MARK: - Failures

  private func attempt<Result: ~Copyable>(
    _ step: () throws(SystemError) -> Result
  ) throws(OpenFailure) -> Result {
    do {
      return try step()
    } catch {
      throw failure(error)
    }
  }

  private var noSerialPort: OpenFailure { OpenFailure("open \(path)", nil, advice: "this is no serial port") }

  private func failure(_ error: SystemError) -> OpenFailure {
    switch (error.call, error.errno) {
    case ("ioctl TCGETS2", ENOTTY), ("ioctl TCGETS2", EINVAL): noSerialPort
    case ("stat", _): OpenFailure("open \(path)", error, advice: advice(error))
    default: OpenFailure("\(error.call) \(path)", error, advice: advice(error))
    }
  }

  private func advice(_ error: SystemError) -> String? {
    switch (error.call, error.errno) {
    case _ where error.meansInUse: PortHolders.advice(for: path)
    case ("ioctl TIOCMBIS", _), ("ioctl TIOCMBIC", _): "a port without these lines needs dtr=keep and rts=keep"
    case ("ioctl TIOCSRS485", _), ("ioctl TIOCGRS485", _):
      "the driver has no RS-485 mode; an adapter that switches direction by itself needs rs485=off"
    case ("ioctl TCSETS2", EINVAL): "the port does not take this rate or format"
    case (_, ENOENT): "not plugged in?"
    case (_, EACCES), (_, EPERM): "the user needs the device's group, mostly dialout: usermod -aG dialout USER"
    case (_, ENXIO), (_, ENODEV), (_, EIO): "no hardware answers behind this name; was it unplugged?"
    default: nil
    }
  }
}
