// Opening a port of recorded calls: which calls, in which order, and what happens when one fails.

import ByteStreams
import CLinux
import Glibc
import Synchronization
import StreamTestKit
import Testing

import StreamBroker
@testable import StreamBrokerCore

@Suite("Opening a serial port")
struct TTYPortTests {
  private func open(
    _ calls: RecordedTTY, _ settings: TTYSettings = TTYSettings(), discardingInput: Bool = false
  ) -> Result<TTYPort.Opened, OpenFailure> {
    TTYPort("/dev/ttyX", settings, calls: calls, locks: nil).open(discardingInput: discardingInput)
  }

  private func refusal(_ calls: RecordedTTY, _ settings: TTYSettings = TTYSettings()) -> String? {
    guard case .failure(let failure) = open(calls, settings) else { return nil }
    return failure.description
  }

  @Test("opens it exclusively, sets the line, reads back the settings in force, and leaves DTR and RTS alone")
  func order() throws {
    let tty = try RecordedTTY()
    let opened = try open(tty, discardingInput: true).get()
    #expect(
      tty.log == [
        "stat", "open", "ioctl TCGETS2", "flock", "ioctl TIOCEXCL", "ioctl TIOCGRS485", "ioctl TCGETS2",
        "ioctl TCSETS2", "ioctl TCGETS2",
        "ioctl TIOCSSERIAL on", "tcflush input",
      ])
    #expect(opened.line == LineSettings())
  }

  @Test("starts output that an XOFF from before has stopped, which only XON and XOFF on the line can have done")
  func startsOutput() throws {
    for (flow, starts) in [("xonxoff", true), ("none", false)] {
      let calls = try RecordedTTY()
      let url = try EndpointURL("tty:///dev/ttyX?flow=\(flow)")
      _ = open(calls, TTYSettings(url))
      #expect(calls.log.contains("ioctl TCXONC") == starts, "\(calls.log)")
    }
    // The kernel's side: a port whose other end said XOFF sends again.
    let pair = try TTYPair()
    let port = Descriptor(owning: Glibc.open(pair.path, O_RDWR | O_NOCTTY | O_NONBLOCK))
    var modes = termios()
    tcgetattr(port.raw, &modes)
    cfmakeraw(&modes)
    modes.c_iflag |= tcflag_t(IXON)
    tcsetattr(port.raw, TCSANOW, &modes)
    pair.send([0x13])
    var taken = 1
    for _ in 0..<60_000 where taken > 0 {
      usleep(1000)  // the kernel passes XOFF on in its own time
      taken = write(port.raw, "x", 1)
    }
    #expect(taken == -1 && errno == EAGAIN)
    try SystemTTYCalls().startOutput(port.raw)
    #expect(write(port.raw, "y", 1) == 1)
  }

  @Test("changes nothing if the settings are in force already")
  func unchanged() throws {
    let tty = try RecordedTTY()
    let now = tty.modes
    let raw = try #require(LineSettings().modes(from: now, hangUpOnClose: false))
    tty.state.withLock { $0.modes = raw }
    _ = try open(tty).get()
    #expect(!tty.log.contains { $0.hasPrefix("ioctl TCSETS2") || $0.hasPrefix("ioctl TIOCM") })
  }

  private static let outputs: [(Bool?, Bool?, [String])] = [
    (nil, nil, []),
    (true, nil, ["ioctl TIOCMBIS DTR"]),
    (nil, false, ["ioctl TIOCMBIC RTS"]),
    (true, false, ["ioctl TIOCMBIS DTR", "ioctl TIOCMBIC RTS"]),
    (false, false, ["ioctl TIOCMBIC DTR RTS"]),
  ]

  @Test("sets DTR and RTS only if configured, both at once if possible", arguments: outputs)
  func setsOutputs(dtr: Bool?, rts: Bool?, calls: [String]) throws {
    let tty = try RecordedTTY()
    var settings = TTYSettings()
    settings.dtr = dtr
    settings.rts = rts
    _ = try open(tty, settings).get()
    #expect(tty.log.filter { $0.hasPrefix("ioctl TIOCM") } == calls)
  }

  @Test("shares the port, and delays bytes, if the URL says so")
  func shared() throws {
    let tty = try RecordedTTY()
    var settings = TTYSettings()
    settings.isExclusive = false
    settings.isLowLatency = false
    _ = try open(tty, settings).get()
    #expect(!tty.log.contains("flock") && !tty.log.contains("ioctl TIOCEXCL"))
    #expect(tty.log.contains("ioctl TIOCSSERIAL off"))
  }

  @Test("does not open a pty exclusively, because that would block its own next opening")
  func ptyIsNotExcluded() throws {
    let tty = try RecordedTTY(isPty: true)
    _ = try open(tty).get()
    #expect(tty.log.contains("flock") && !tty.log.contains("ioctl TIOCEXCL"))
  }

  @Test("fails when the driver ignores the format, but not on a pty, where there is no line")
  func ignoredFormat() throws {
    var settings = TTYSettings()
    settings.line.parity = .mark
    for isPty in [false, true] {
      let tty = try RecordedTTY(isPty: isPty)
      tty.state.withLock { state in
        state.takes = {
          var taken = $0
          taken.cflag &= ~UInt32(PARENB | PARODD | CMSPAR)
          return taken
        }
      }
      let expected = "ioctl TCSETS2 /dev/ttyX: the port does not support parity mark"
      #expect(refusal(tty, settings) == (isPty ? nil : expected))
    }
  }

  @Test(
    "accepts a rate that is 2 % off, but not one that is 5 % off",
    arguments: [98, 102, 95, 105] as [UInt32])
  func rounding(percent: UInt32) throws {
    let tty = try RecordedTTY()
    tty.state.withLock { state in
      state.takes = {
        var taken = $0
        taken.input_rate = $0.input_rate / 100 * percent
        taken.output_rate = $0.output_rate / 100 * percent
        return taken
      }
    }
    var settings = TTYSettings()
    settings.line.bitsPerSecond = 100_000
    let isGood = percent == 98 || percent == 102
    #expect((refusal(tty, settings) == nil) == isGood)
  }

  @Test("opens only character devices")
  func noDevice() throws {
    let tty = try RecordedTTY(isCharacterDevice: false)
    #expect(
      refusal(tty)?.hasPrefix(
        "open /dev/ttyX: this is a plain file, not a serial port: a program that wrote to the path") == true)
    #expect(tty.log == ["stat"])
  }

  private static let advice: [(Int, Int32, String)] = [
    (0, ENOENT, "open /dev/ttyX: No such file or directory (ENOENT); not plugged in?"),
    (1, EACCES, "open /dev/ttyX: Permission denied (EACCES); the user may not reach it: check the rights"),
    (1, EPERM, "open /dev/ttyX: Operation not permitted (EPERM); this container or unit may not use the device"),
    (0, ENOTDIR, "open /dev/ttyX: Not a directory (ENOTDIR); a part of this path is a file"),
    (0, ELOOP, "open /dev/ttyX: Too many levels of symbolic links (ELOOP); symbolic links lead in a circle"),
    (1, EMFILE, "open /dev/ttyX: Too many open files (EMFILE); the limit of open files is reached"),
    (1, EBUSY, "open /dev/ttyX: Device or resource busy (EBUSY); in use by another program"),
    (2, EIO, "ioctl TCGETS2 /dev/ttyX: Input/output error (EIO); no hardware answers"),
    (2, ENOTTY, "open /dev/ttyX: this is another kind of device, not a serial port"),
    (3, EWOULDBLOCK, "flock /dev/ttyX: Resource temporarily unavailable (EAGAIN); in use by another program"),
    (6, ENOTTY, "ioctl TIOCMBIS /dev/ttyX: Inappropriate ioctl for device (ENOTTY); a port without these lines needs"),
    (8, EINVAL, "ioctl TCSETS2 /dev/ttyX: Invalid argument (EINVAL); the port does not support this rate or format"),
    (0, ENAMETOOLONG, "open /dev/ttyX: File name too long (ENAMETOOLONG); the path is longer than a path can be"),
    (1, EROFS, "open /dev/ttyX: Read-only file system (EROFS); the file system is read-only"),
    (1, ENOMEM, "open /dev/ttyX: Cannot allocate memory (ENOMEM); this machine has no memory, or no USB bandwidth"),
    (1, ENOSPC, "open /dev/ttyX: No space left on device (ENOSPC); this machine has no memory, or no USB bandwidth"),
    (2, EPROTO, "ioctl TCGETS2 /dev/ttyX: Protocol error (EPROTO); the adapter does not answer as it should"),
    (8, EPIPE, "ioctl TCSETS2 /dev/ttyX: Broken pipe (EPIPE); the adapter does not answer as it should"),
    (
      8, ETIMEDOUT,
      "ioctl TCSETS2 /dev/ttyX: Connection timed out (ETIMEDOUT); the adapter does not answer as it should"
    ),
    (8, EOPNOTSUPP, "ioctl TCSETS2 /dev/ttyX: Operation not supported (EOPNOTSUPP); the driver can't change rate"),
  ]

  @Test("reports the failed call, its path, and what to do", arguments: advice)
  func adviceOnFailure(call: Int, number: Int32, text: String) throws {
    let tty = try RecordedTTY()
    tty.state.withLock { $0.failing = (call, number) }
    var settings = TTYSettings()
    settings.dtr = true
    let sentence = try #require(refusal(tty, settings))
    #expect(sentence.hasPrefix(text), "\(sentence)")
  }

  @Test("names the group whose members may open the node, or the rule that is missing")
  func whoMayOpen() throws {
    let folder = try TemporaryFolder()
    let path = folder / "node"
    #expect(NodeOwnership.advice(forOpening: path) == nil)
    let file = Glibc.open(path, O_CREAT | O_WRONLY, 0o660)
    try #require(file >= 0)
    defer { Glibc.close(file) }
    fchmod(file, 0o660)
    var status = stat()
    fstat(file, &status)
    let group = try #require(getgrgid(status.st_gid))
    #expect(
      NodeOwnership.advice(forOpening: path)
        == "members of its group may: usermod -aG \(String(cString: group.pointee.gr_name)) USER, and log in again; "
        + "just plugged in, udev may still change its group")
    fchmod(file, 0o640)
    #expect(NodeOwnership.advice(forOpening: path)?.contains("a rule has to: GROUP=\"") == true)
  }

  @Test("names what is there in the place of a port, and what to do")
  func otherThings() throws {
    let folder = try TemporaryFolder()
    let path = folder / "node"
    func sentence() -> String? {
      let port = TTYPort(path, TTYSettings(), locks: nil)
      if case .failure(let failure) = port.open(discardingInput: false) { return "\(failure)" }
      return nil
    }
    #expect(mkdir(path, 0o755) == 0)
    #expect(
      sentence()?.hasPrefix("open \(path): this is a folder, not a serial port: container runtimes make one") == true)
    rmdir(path)
    #expect(symlink("/dev/ttyNotThere", path) == 0)
    #expect(sentence()?.contains("this is a link to '/dev/ttyNotThere', which is not there") == true)
    unlink(path)
    #expect(symlink(path, path) == 0)
    #expect(sentence()?.contains("symbolic links lead in a circle") == true)
    unlink(path)
    #expect(mkfifo(path, 0o644) == 0)
    #expect(sentence()?.contains("this is a named pipe") == true)
    unlink(path)
    try folder.write("node", "AT")
    #expect(sentence()?.contains("this is a plain file") == true && FileSystem.text(of: path) == "AT")
    for (type, word) in [(S_IFBLK, "a block device"), (S_IFSOCK, "a socket")] {
      #expect(TTYPath.description(of: type).contains(word))
    }
  }

  @Test("with exclusive=strict does not open a port that another program has open, whether it has a lock or not")
  func strict() throws {
    let pair = try TTYPair()
    let reader = try SpawnedReader(of: pair.path)
    defer { reader.end() }
    var settings = TTYSettings()
    settings.refusesHolders = true
    let port = TTYPort(pair.path, settings, locks: nil)
    guard case .failure(let failure) = port.open(discardingInput: false) else {
      Issue.record("opened")
      return
    }
    #expect(failure.cause?.errno == EBUSY && "\(failure)".contains("in use by cat (pid \(reader.process))"))
    settings.refusesHolders = false
    guard case .success(let opened) = TTYPort(pair.path, settings, locks: nil).open(discardingInput: false) else {
      Issue.record("not opened")
      return
    }
    opened.close()
  }

  @Test("leaves nothing open, whichever call fails")
  func failNth() throws {
    var settings = TTYSettings()
    settings.dtr = true
    settings.rts = false
    var call = 0
    while call < 32 {
      let tty = try RecordedTTY()
      tty.state.withLock { $0.failing = (call, EIO) }
      let result = open(tty, settings, discardingInput: true)
      let last = tty.log.count - 1
      if call > last { break }
      if tty.log[call].hasPrefix("ioctl TIOCSSERIAL") || tty.log[call] == "ioctl TIOCGRS485" {
        _ = try result.get()  // best effort
      } else {
        #expect(throws: OpenFailure.self) { _ = try result.get() }
        #expect(last == call, "nothing is tried after \(tty.log[call])")
        #expect(call < 2 || tty.closes(), "closed after \(tty.log[call])")
      }
      call += 1
    }
    #expect(call == 13)
  }

  // MARK: - RS-485

  private func settings(_ rs485: RS485?) -> TTYSettings {
    var settings = TTYSettings()
    settings.rs485 = rs485
    return settings
  }

  @Test("enables RS-485 before it changes any line, and not again if it is enabled", arguments: [true, false])
  func rs485(isUpOnSend: Bool) throws {
    let tty = try RecordedTTY()
    tty.state.withLock { $0.rs485 = linux_rs485() }
    var settings = settings(
      RS485(rtsIsUpOnSend: isUpOnSend, delayBefore: .milliseconds(3), delayAfter: .milliseconds(20)))
    settings.dtr = true
    _ = try open(tty, settings).get()
    let calls = tty.log.filter { $0.contains("RS485") || $0.contains("TIOCM") }
    #expect(
      calls == [
        "ioctl TIOCGRS485", "ioctl TIOCSRS485 \(isUpOnSend ? "on" : "after") send", "ioctl TIOCGRS485",
        "ioctl TIOCMBIS DTR",
      ])
    let mode = try #require(tty.state.withLock { $0.rs485 })
    #expect(mode.on == 1 && mode.rts_on_send == (isUpOnSend ? 1 : 0) && mode.rts_after_send == (isUpOnSend ? 0 : 1))
    #expect(mode.milliseconds_before == 3 && mode.milliseconds_after == 20)

    let again = try RecordedTTY()
    again.state.withLock { $0.rs485 = mode }
    _ = try open(again, settings).get()
    #expect(!again.log.contains { $0.hasPrefix("ioctl TIOCSRS485") })
  }

  @Test("disables RS-485 if it is enabled, and changes nothing if the driver has no such mode")
  func rs485Off() throws {
    let tty = try RecordedTTY()
    tty.state.withLock { $0.rs485 = linux_rs485() }
    _ = try open(tty).get()
    #expect(!tty.log.contains { $0.hasPrefix("ioctl TIOCSRS485") })
    let left = try RecordedTTY()
    left.state.withLock { $0.rs485 = RS485(rtsIsUpOnSend: true).mode }
    _ = try open(left).get()
    #expect(left.log.contains("ioctl TIOCSRS485 off"))
    #expect(left.state.withLock { $0.rs485?.on } == 0)
  }

  @Test("reports a driver without RS-485, or without this mode")
  func rs485Refused() throws {
    #expect(
      refusal(try RecordedTTY(), settings(RS485(rtsIsUpOnSend: true)))
        == "ioctl TIOCSRS485 /dev/ttyX: Inappropriate ioctl for device (ENOTTY); the driver has no RS-485 mode; "
        + "an adapter that switches direction by itself needs rs485=off")
    let tty = try RecordedTTY()
    tty.state.withLock { state in
      state.rs485 = linux_rs485()
      state.takesRS485 = {  // clamps delays as the kernel's serial core does
        var taken = $0
        taken.milliseconds_before = min(taken.milliseconds_before, 100)
        return taken
      }
    }
    #expect(
      refusal(tty, settings(RS485(rtsIsUpOnSend: true, delayBefore: .milliseconds(200))))
        == "ioctl TIOCSRS485 /dev/ttyX: the driver does not support a delay of 200 ms (it uses 100 ms)")
    let stubborn = try RecordedTTY()
    stubborn.state.withLock { state in
      state.rs485 = linux_rs485()
      state.takesRS485 = {
        var taken = $0
        swap(&taken.rts_on_send, &taken.rts_after_send)
        return taken
      }
    }
    #expect(
      refusal(stubborn, settings(RS485(rtsIsUpOnSend: false)))
        == "ioctl TIOCSRS485 /dev/ttyX: the driver does not support RTS after send, only the opposite")
    let unwilling = try RecordedTTY()
    unwilling.state.withLock { state in
      state.rs485 = linux_rs485()
      state.takesRS485 = {  // accepts the mode's settings but does not switch it on
        var taken = $0
        taken.on = 0
        return taken
      }
    }
    #expect(
      refusal(unwilling, settings(RS485(rtsIsUpOnSend: true)))
        == "ioctl TIOCSRS485 /dev/ttyX: the driver does not support RS-485")
  }

  @Test("waits for a driver that is ready a moment after its node", arguments: [ENXIO, ENODEV])
  func driverComesLater(error: Int32) throws {
    let tty = try RecordedTTY()
    tty.state.withLock { $0.openErrors = [error, error, error] }
    _ = try open(tty).get()
    #expect(tty.state.withLock { $0.pauses } == 3)
  }

  @Test("does not wait for long, nor for errors that do not go away")
  func driverNeverComes() throws {
    let absent = try RecordedTTY()
    absent.state.withLock { $0.openErrors = Array(repeating: ENXIO, count: 1000) }
    #expect(
      refusal(absent)?.hasPrefix("open /dev/ttyX: No such device or address (ENXIO); no hardware answers") == true)
    #expect(absent.state.withLock { $0.pauses } == 20)
    let forbidden = try RecordedTTY()
    forbidden.state.withLock { $0.openErrors = [EACCES] }
    #expect(refusal(forbidden)?.contains("EACCES") == true)
    #expect(forbidden.state.withLock { $0.pauses } == 0)
  }

  @Test("waits for the rule that lets us open a new node")
  func ruleComesLater() throws {
    let tty = try RecordedTTY(isNew: true)
    tty.state.withLock { $0.openErrors = [EACCES, EACCES, ENXIO] }
    _ = try open(tty).get()
    #expect(tty.state.withLock { $0.pauses } == 3)
    let forbidden = try RecordedTTY(isNew: true)
    forbidden.state.withLock { $0.openErrors = Array(repeating: EACCES, count: 1000) }
    #expect(refusal(forbidden)?.contains("EACCES") == true)
    #expect(forbidden.state.withLock { $0.pauses } == 100)
  }

  @Test("is new for a second after its mode was changed")
  func isNew() throws {
    let folder = try TemporaryFolder()
    let path = folder / "node"
    let file = Glibc.open(path, O_CREAT | O_WRONLY, 0o600)
    try #require(file >= 0)
    defer { Glibc.close(file) }
    #expect(try SystemTTYCalls().identify(path).isNew)
    let end = monotonicNanoseconds() + Patience.nanoseconds
    while try SystemTTYCalls().identify(path).isNew, monotonicNanoseconds() < end { usleep(10_000) }
    #expect(try !SystemTTYCalls().identify(path).isNew)
    fchmod(file, 0o640)
    #expect(try SystemTTYCalls().identify(path).isNew)
  }
}

/// Another program that has a port open without any lock.
private final class SpawnedReader {
  let process: pid_t

  init(of path: String) throws {
    var child = pid_t()
    var actions = posix_spawn_file_actions_t()
    posix_spawn_file_actions_init(&actions)
    defer { posix_spawn_file_actions_destroy(&actions) }
    posix_spawn_file_actions_addopen(&actions, 0, path, O_RDWR | O_NOCTTY, 0)
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0)
    var arguments: [UnsafeMutablePointer<CChar>?] = [strdup("cat"), nil]
    defer { free(arguments[0]) }
    let number = posix_spawn(&child, "/bin/cat", &actions, nil, &arguments, environ)
    guard number == 0 else { throw SystemError("posix_spawn", number) }
    process = child
    for _ in 0..<6000 where FileSystem.line(of: "/proc/\(child)/comm") != "cat" { usleep(10_000) }
  }

  func end() {
    kill(process, SIGKILL)
    waitpid(process, nil, 0)
  }
}
