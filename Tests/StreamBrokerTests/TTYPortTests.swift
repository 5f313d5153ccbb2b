// Opening a port made of recorded calls: which ones, in which order, and what happens when one fails.

import ByteStreams
import CLinux
import Glibc
import Synchronization
import Testing

@testable import StreamBroker

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

  @Test("takes it for itself, sets the line, reads back what is in force, and keeps DTR and RTS as they are")
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

  @Test("touches nothing when the settings are in force already")
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

  @Test("sets DTR and RTS only where it was told to, together where it can", arguments: outputs)
  func setsOutputs(dtr: Bool?, rts: Bool?, calls: [String]) throws {
    let tty = try RecordedTTY()
    var settings = TTYSettings()
    settings.dtr = dtr
    settings.rts = rts
    _ = try open(tty, settings).get()
    #expect(tty.log.filter { $0.hasPrefix("ioctl TIOCM") } == calls)
  }

  @Test("lets others in, and bytes wait, where the URL says so")
  func shared() throws {
    let tty = try RecordedTTY()
    var settings = TTYSettings()
    settings.isExclusive = false
    settings.isLowLatency = false
    _ = try open(tty, settings).get()
    #expect(!tty.log.contains("flock") && !tty.log.contains("ioctl TIOCEXCL"))
    #expect(tty.log.contains("ioctl TIOCSSERIAL off"))
  }

  @Test("does not exclude others from a pty, which would shut out itself the next time")
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
      let expected = "ioctl TCSETS2 /dev/ttyX: the port does not do parity mark"
      #expect(refusal(tty, settings) == (isPty ? nil : expected))
    }
  }

  @Test(
    "puts up with a rate that is 2 % off, and not with one that is 5 % off",
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

  @Test("does not open what is no character device")
  func noDevice() throws {
    let tty = try RecordedTTY(isCharacterDevice: false)
    #expect(refusal(tty) == "open /dev/ttyX: this is no serial port")
    #expect(tty.log == ["stat"])
  }

  private static let advice: [(Int, Int32, String)] = [
    (0, ENOENT, "open /dev/ttyX: No such file or directory (ENOENT); not plugged in?"),
    (1, EACCES, "open /dev/ttyX: Permission denied (EACCES); the user needs the device's group, mostly dialout"),
    (1, EBUSY, "open /dev/ttyX: Device or resource busy (EBUSY); in use by another program"),
    (2, EIO, "ioctl TCGETS2 /dev/ttyX: Input/output error (EIO); no hardware answers"),
    (2, ENOTTY, "open /dev/ttyX: this is no serial port"),
    (3, EWOULDBLOCK, "flock /dev/ttyX: Resource temporarily unavailable (EAGAIN); in use by another program"),
    (6, ENOTTY, "ioctl TIOCMBIS /dev/ttyX: Inappropriate ioctl for device (ENOTTY); a port without these lines needs"),
    (8, EINVAL, "ioctl TCSETS2 /dev/ttyX: Invalid argument (EINVAL); the port does not take this rate or format"),
  ]

  @Test("says which call failed on which path, and what to do about it", arguments: advice)
  func adviceOnFailure(call: Int, number: Int32, text: String) throws {
    let tty = try RecordedTTY()
    tty.state.withLock { $0.failing = (call, number) }
    var settings = TTYSettings()
    settings.dtr = true
    let sentence = try #require(refusal(tty, settings))
    #expect(sentence.hasPrefix(text), "\(sentence)")
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

  @Test("puts RS-485 in force before any line is touched, and not again when it is", arguments: [true, false])
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

  @Test("ends an RS-485 mode that is in force, and touches nothing where there is none")
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

  @Test("says so where the driver has no RS-485 mode, or not this one")
  func rs485Refused() throws {
    #expect(
      refusal(try RecordedTTY(), settings(RS485(rtsIsUpOnSend: true)))
        == "ioctl TIOCSRS485 /dev/ttyX: Inappropriate ioctl for device (ENOTTY); the driver has no RS-485 mode; "
        + "an adapter that switches direction by itself needs rs485=off")
    let tty = try RecordedTTY()
    tty.state.withLock { state in
      state.rs485 = linux_rs485()
      state.takesRS485 = {  // as the kernel's serial core cuts delays
        var taken = $0
        taken.milliseconds_before = min(taken.milliseconds_before, 100)
        return taken
      }
    }
    #expect(
      refusal(tty, settings(RS485(rtsIsUpOnSend: true, delayBefore: .milliseconds(200))))
        == "ioctl TIOCSRS485 /dev/ttyX: the driver does not do a delay of 200 ms (it takes 100 ms)")
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
        == "ioctl TIOCSRS485 /dev/ttyX: the driver does not do RTS after send, only the other way round")
    let unwilling = try RecordedTTY()
    unwilling.state.withLock { state in
      state.rs485 = linux_rs485()
      state.takesRS485 = {  // keeps what belongs to the mode, and stays out of it
        var taken = $0
        taken.on = 0
        return taken
      }
    }
    #expect(
      refusal(unwilling, settings(RS485(rtsIsUpOnSend: true)))
        == "ioctl TIOCSRS485 /dev/ttyX: the driver does not do RS-485")
  }

  @Test("waits for a driver that comes a moment after its node", arguments: [ENXIO, ENODEV])
  func driverComesLater(error: Int32) throws {
    let tty = try RecordedTTY()
    tty.state.withLock { $0.openErrors = [error, error, error] }
    _ = try open(tty).get()
    #expect(tty.state.withLock { $0.pauses } == 3)
  }

  @Test("does not wait for long, nor for what time does not mend")
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
}
