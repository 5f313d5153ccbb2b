// Opens a serial port and sets its line, step by step, and explains failures in words. Everything here may block: it
// runs on the device's queue. TTYLine handles the port once it is open.

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

  // A driver may need time for a change in progress: a device that appears, or a hang-up. These are the step of such a
  // wait and the most steps.
  private static let step = Duration.milliseconds(5)
  private static let mostRetries = 20
  private static let ruleTakes = 100  // in steps: 500 ms
  private static let hangUpTakes = 400  // in steps: 2 s

  /// An open port on its way to the lane.
  struct Opened: Sendable {
    let descriptor: DescriptorParcel
    /// Release it after the descriptor is closed, on the port's queue.
    let lock: UUCPLock?
    /// The settings in force.
    let line: LineSettings
    let outputs: ModemOutputStates
    /// What the driver had counted before; nil if it does not count.
    let counts: LineCounts?
    /// Calls on it return at once: the slave of a pty has no driver.
    let isPty: Bool

    /// For a result that is no longer wanted.
    func close() {
      _ = descriptor.take()
      lock?.letGo()
    }
  }

  /// If a step fails, the port is closed again before this returns.
  func open(discardingInput: Bool) -> Result<Opened, OpenFailure> {
    do throws(OpenFailure) {
      let node = try attempt { () throws(SystemError) in try calls.identify(path) }
      guard node.isCharacterDevice else {
        throw OpenFailure("open \(path)", nil, advice: TTYPath.description(of: node.type))
      }
      if settings.refusesHolders, let holders = PortHolders.others(of: path) {
        throw OpenFailure("open \(path)", SystemError("open", EBUSY), advice: "in use by \(holders)")
      }
      // Lock before opening: opening alone may raise lines that another program wants down.
      let lock = settings.isExclusive ? try locks?.take(path, leadingTo: FileSystem.realPath(path) ?? path) : nil
      let tty = try attempt { () throws(SystemError) in try open(node) }
      try attempt { () throws(SystemError) in
        _ = try calls.modes(tty.raw)  // before any change: a node without line settings is no port
        if settings.isExclusive { try keepOthersOut(tty.raw, isPty: node.isPty) }
      }
      // Set this before the other lines: until the driver knows the mode, its RTS holds the bus.
      try setRS485(tty.raw)
      try attempt { () throws(SystemError) in try setOutputs(tty.raw, isPty: node.isPty) }
      let line = try attempt { () throws(SystemError) in try apply(settings.line, to: tty.raw) }
      if !node.isPty, let refusal = line.refusal(of: settings.line) {
        throw OpenFailure("ioctl TCSETS2 \(path)", nil, advice: "the port does not support \(refusal)")
      }
      // Best effort: all drivers except UARTs and FTDI refuse this, and their ports work without it.
      try? calls.setLowLatency(tty.raw, settings.isLowLatency)
      // Best effort: while another program has the port open as well, an XOFF from before stays in force.
      if line.flowControl == .xonxoff { try? calls.startOutput(tty.raw) }
      if discardingInput { try attempt { () throws(SystemError) in try calls.flush(tty.raw, .input) } }
      let outputs = (try? calls.modemOutputs(tty.raw)) ?? ModemOutputStates()
      let counts = try? counts(of: tty.raw)
      return .success(
        Opened(
          descriptor: DescriptorParcel(tty), lock: lock, line: line, outputs: outputs,
          counts: counts, isPty: node.isPty))
    } catch {
      return .failure(error)
    }
  }

  /// Puts `line` in force and returns the settings in force. Changes nothing if they already are: some adapters drop
  /// bytes at any change.
  func apply(
    _ line: LineSettings, to tty: Int32, whenSent waits: Bool = false
  ) throws(SystemError) -> LineSettings {
    let now = try calls.modes(tty)
    guard let wanted = line.modes(from: now, hangUpOnClose: settings.hangsUpOnClose) else {
      throw SystemError("ioctl TCSETS2", EINVAL)
    }
    if wanted.isSame(as: now) { return LineSettings(now) }
    if waits { finishSending(tty) }
    try calls.setModes(tty, wanted)
    return LineSettings(try calls.modes(tty))
  }

  /// Waits until the last bit is out, at most a second: a break or other settings would destroy bytes on their way.
  func finishSending(_ tty: Int32) {
    let limit = calls.now &+ Self.longestWait.nanoseconds
    func rests(_ length: Duration) { calls.sleep(until: min(limit, calls.now &+ length.nanoseconds)) }
    while calls.now < limit, let count = try? calls.unsent(tty), count > 0 { rests(Self.step) }
    // The hardware's own buffer still holds some that the driver has sent.
    guard let modes = try? calls.modes(tty) else { return }
    let character = LineSettings(modes).characterTime
    do throws(SystemError) {
      while calls.now < limit, try !calls.isTransmitterEmpty(tty) { rests(character) }
    } catch {
      rests(character * Self.usualBuffer)
    }
  }

  private static let longestWait = Duration.seconds(1)
  private static let usualBuffer = 16  // characters, as in a 16550

  /// Carries out the steps. A pause is never shorter than stated: it begins when the driver has done the step before.
  func perform(_ steps: [LineStep], on tty: Int32) throws(SystemError) {
    var time = calls.now
    for step in steps {
      switch step {
      case .pause(let pause):
        time &+= pause.nanoseconds
        calls.sleep(until: time)
      case .set(let dtr, let rts):
        let on = (dtr == true ? TIOCM_DTR : 0) | (rts == true ? TIOCM_RTS : 0)
        let off = (dtr == false ? TIOCM_DTR : 0) | (rts == false ? TIOCM_RTS : 0)
        if on != 0 && off != 0 {
          try calls.setModemBits(tty, on: on, off: off)
        } else if on | off != 0 {
          try calls.setModemBits(tty, on | off, on != 0)
        }
        time = calls.now
      }
    }
  }

  /// The current state of the line. ENOTTY: the driver reports nothing.
  func condition(of tty: Int32) throws(SystemError) -> LineCondition {
    var condition = LineCondition()
    do throws(SystemError) {
      condition.inputs = try calls.modemInputs(tty)
    } catch {
      guard error.isUnsupported else { throw error }
    }
    do throws(SystemError) {
      let counts = try calls.counts(tty)
      condition.counts = LineCounts(counts)
      condition.changes = counts.cts &+ counts.dsr &+ counts.dcd &+ counts.ri
    } catch {
      guard error.isUnsupported, condition.inputs != nil else { throw error }
    }
    return condition
  }

  private func counts(of tty: Int32) throws(SystemError) -> LineCounts { LineCounts(try calls.counts(tty)) }

  // MARK: - Steps

  /// Linux creates a node some milliseconds before the driver can be reached through it, and before udev gives the node
  /// its group. After an unplug, it keeps the node for as long.
  private func open(_ node: TTYNode) throws(SystemError) -> Descriptor {
    var tries = 0
    while true {
      do throws(SystemError) {
        return try calls.open(path)
      } catch {
        let most =
          switch error.errno {
          case ENXIO, ENODEV: Self.mostRetries
          case EACCES where node.isNew: Self.ruleTakes
          default: 0
          }
        guard tries < most else { throw error }
        tries += 1
        calls.pause(Self.step)
      }
    }
  }

  private func keepOthersOut(_ tty: Int32, isPty: Bool) throws(SystemError) {
    try calls.lock(tty)
    // A pty stays exclusive after our close, while its master is open, and would shut us out as well.
    if !isPty { try calls.exclude(tty) }
  }

  /// A mode that is already in force is not set again. If a driver has no RS-485 mode, off needs no call.
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
      throw OpenFailure("ioctl TIOCSRS485 \(path)", nil, advice: "the driver does not support \(refusal)")
    }
  }

  private func setRS485(_ tty: Int32, _ mode: linux_rs485) throws(OpenFailure) {
    try attempt { () throws(SystemError) in try calls.setRS485(tty, mode) }
  }

  /// Sets both lines in one call if they go the same way: boards that reset on DTR and RTS look at both together.
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

  /// Call it before close(2). Until a program that is being started runs, it has a copy of the descriptor and so keeps
  /// the exclusions. Anyone who opens the port meanwhile, even we, would find it in use.
  func prepareToClose(_ tty: Int32) {
    awaitHangUp(tty)
    if settings.isExclusive { calls.releaseExclusion(tty) }
  }

  /// close(2) waits up to 30 s for unsent bytes, with the port's lock held. If an adapter is unplugged while it sends,
  /// they never go out, and the kernel sees no other device on that bus until the port is closed. So wait for the
  /// hang-up first: after it, closing is quick.
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

  private var noSerialPort: OpenFailure {
    OpenFailure(
      "open \(path)", nil, advice: "this is another kind of device, not a serial port; is it the right path?")
  }

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
    case ("ioctl TCSETS2", EINVAL): "the port does not support this rate or format"
    case (_, ENOENT): TTYPath.absence(at: path)
    case (_, ENOTDIR): "a part of this path is a file, not a folder; is it the right path?"
    case (_, ELOOP): "symbolic links lead in a circle"
    case ("open", EPERM):
      "this container or unit may not use the device: give it one with --device \(path), or with DeviceAllow= of the unit"
    case ("open", EMFILE), ("open", ENFILE): "the limit of open files is reached; raise LimitNOFILE= or fs.file-max"
    case (_, ENAMETOOLONG): "the path is longer than a path can be; is it the right path?"
    case (_, EPIPE), (_, EPROTO), (_, ETIMEDOUT), (_, EILSEQ), (_, ESHUTDOWN), (_, EOVERFLOW):
      "the adapter does not answer as it should: unplug it and plug it in again, at another USB socket or without a hub"
    case (_, ENOMEM), (_, ENOBUFS), (_, ENOSPC): "this machine has no memory, or no USB bandwidth, left for the port"
    case ("open", EROFS): "the file system is read-only"
    case ("open", EAGAIN): "the driver or another program holds it; it is tried again"
    case ("ioctl TCSETS2", EOPNOTSUPP), ("ioctl TCSETS2", ENOTTY): "the driver can't change rate and format"
    case (_, EACCES), (_, EPERM):
      NodeOwnership.advice(forOpening: path) ?? "the user may not reach it: check the rights of its folders"
    case (_, ENXIO), (_, ENODEV), (_, EIO): "no hardware answers at this node; was it unplugged?"
    default: nil
    }
  }
}

extension LineCounts {
  fileprivate init(_ counts: linux_line_counts) {
    self.init(
      breaks: counts.breaks, framing: counts.framing, parity: counts.parity, overruns: counts.overruns,
      bufferOverruns: counts.buffer_overruns)
  }
}
