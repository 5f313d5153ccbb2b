// Helpers for serial port tests: a pty whose slave plays the port, a port of recorded calls, and queries to objects
// that belong to a lane.

import ByteStreams
import CLinux
import Dispatch
import Glibc
import StreamTestKit
import Synchronization
import Testing

import StreamBroker
@testable import StreamBrokerCore

/// Carries a lane's object from one visit of the lane to the next.
struct OnLane<Value>: @unchecked Sendable {  // `value` is used on its lane only
  let value: Value
}

extension Lane {
  /// Runs `body` on the lane and waits until it calls its second argument.
  nonisolated func ask<Answer: Sendable>(
    _ body: @escaping @Sendable (isolated Lane, @escaping @Sendable (Answer) -> Void) -> Void
  ) async -> Answer {
    await withCheckedContinuation { continuation in
      post { lane in body(lane) { continuation.resume(returning: $0) } }
    }
  }
}

extension TTYConnector {
  /// Opens the recorded port, on its own queue.
  init(_ tty: RecordedTTY) {
    self.init("/dev/ttyX", TTYSettings(), calls: tty)
  }

  func opened(on lane: Lane, discardingInput: Bool = false) async -> Result<OnLane<any ByteStream>, OpenFailure> {
    await lane.ask { lane, answer in
      _ = open(OpenRequest(discardsInput: discardingInput), on: lane.poller) { result in
        answer(result.map { OnLane(value: $0) })
      }
    }
  }
}

/// A pty: its slave is a serial port for the program that opens `path`; the test holds the master.
struct TTYPair: ~Copyable {
  let master: Descriptor
  let path: String

  init() throws {
    var name = [CChar](repeating: 0, count: 64)
    let raw = linux_open_pty(&name, name.count)
    try #require(raw >= 0)
    master = Descriptor(owning: raw)
    path = nodeOfNewPty(name)
  }

  /// Sends `bytes` to the program that has the port open.
  func send(_ bytes: [UInt8]) { #expect(write(master.raw, bytes, bytes.count) == bytes.count) }

  /// Bytes from the port: `count` of them, or those that arrived within ten seconds.
  func receive(_ count: Int) -> [UInt8] {
    var bytes: [UInt8] = []
    var buffer = [UInt8](repeating: 0, count: 4096)
    var watched = pollfd(fd: master.raw, events: Int16(POLLIN), revents: 0)
    while bytes.count < count, poll(&watched, 1, 10_000) == 1 {
      let got = read(master.raw, &buffer, buffer.count)
      guard got > 0 else { break }
      bytes += buffer[..<got]
    }
    return bytes
  }
}

/// A port that accepts everything, or what the test allows, and records each call.
final class RecordedTTY: TTYCalls {
  struct State {
    var log: [String] = []
    var modes = linux_termios()
    /// Which call fails, counted from 0, with which errno.
    var failing: (call: Int, errno: Int32)?
    /// The unsent bytes that it reports.
    var unsent = 0
    /// The errors that the first opens return, in order.
    var openErrors: [Int32] = []
    /// After how many pauses the driver reports the hang-up.
    var pausesToHangUp = Int.max
    var pauses = 0
    /// The clock of `sleep`, and how long the driver takes to set modem lines.
    var now: UInt64 = 1_000_000_000
    var setTakes: UInt64 = 0
    /// When the transmitter is empty; nil: the driver can't tell.
    var bitsOut: UInt64? = 0
    /// nil: the driver has no such mode.
    var rs485: linux_rs485?
    /// nil: the driver reports no modem lines, or no error counts.
    var inputs: ModemInputs?
    var counts: linux_line_counts?
    /// Wakes the thread that waits for modem lines.
    var bell: Int32?
    /// The settings that the driver makes of those it is given.
    var takes: @Sendable (linux_termios) -> linux_termios = { $0 }
    var takesRS485: @Sendable (linux_rs485) -> linux_rs485 = { $0 }
  }

  let state: Mutex<State>
  private let node: TTYNode
  /// The other end of the socket that plays the port: it reads 0 when the port is closed.
  let far: Descriptor
  private let near: DescriptorParcel
  private let gate: Gate?

  /// Where opening hangs, as in a driver.
  final class Gate: Sendable {
    private let acceptedConnections = DispatchSemaphore(value: 0)
    private let way = DispatchSemaphore(value: 0)

    func pass() {
      acceptedConnections.signal()
      way.wait()
      way.signal()
    }

    /// Waits until an open hangs.
    func waitForFirst() {
      acceptedConnections.wait()
      acceptedConnections.signal()
    }

    func open() { way.signal() }
  }

  init(isPty: Bool = false, isCharacterDevice: Bool = true, isNew: Bool = false, gate: Gate? = nil) throws {
    var ends: [Int32] = [-1, -1]
    try #require(linux_socketpair(AF_UNIX, Int32(SOCK_STREAM.rawValue), &ends) == 0)
    near = DescriptorParcel(Descriptor(owning: ends[0]))
    far = Descriptor(owning: ends[1])
    node = TTYNode(type: isCharacterDevice ? S_IFCHR : S_IFREG, isPty: isPty, isNew: isNew)
    self.gate = gate
    var fresh = linux_termios()  // as Linux makes a tty: echo, line editing, 9600 8N1, HUPCL
    fresh.iflag = UInt32(ICRNL | IXON)
    fresh.oflag = UInt32(OPOST | ONLCR)
    fresh.cflag = UInt32(CS8 | CREAD | HUPCL)
    fresh.lflag = UInt32(ISIG | ICANON | ECHO)
    fresh.input_rate = 9600
    fresh.output_rate = 9600
    fresh.min = 1
    state = Mutex(State(modes: fresh))
  }

  var log: [String] { state.withLock { $0.log } }
  var modes: linux_termios { state.withLock { $0.modes } }

  var isClosed: Bool {
    var byte: UInt8 = 0
    return read(far.raw, &byte, 1) == 0
  }

  /// Waits up to ten seconds until the port is closed. A program that a parallel test starts holds a copy of every
  /// descriptor until its exec.
  func closes() -> Bool {
    var watched = pollfd(fd: far.raw, events: Int16(POLLIN), revents: 0)
    return poll(&watched, 1, 10_000) == 1 && isClosed
  }

  private func note(_ call: String, _ details: String = "") throws(SystemError) {
    let failure = state.withLock { state in
      state.log.append(call + details)
      return state.failing?.call == state.log.count - 1 ? state.failing?.errno : nil
    }
    if let failure { throw SystemError(call, failure) }
  }

  func identify(_ path: String) throws(SystemError) -> TTYNode {
    try note("stat")
    return node
  }

  func open(_ path: String) throws(SystemError) -> Descriptor {
    gate?.pass()
    try note("open")
    if let error = state.withLock({ $0.openErrors.isEmpty ? nil : $0.openErrors.removeFirst() }) {
      throw SystemError("open", error)
    }
    guard let descriptor = near.take() else { throw SystemError("open", EBUSY) }
    return descriptor
  }

  func lock(_ tty: Int32) throws(SystemError) { try note("flock") }
  func exclude(_ tty: Int32) throws(SystemError) { try note("ioctl TIOCEXCL") }
  func releaseExclusion(_ tty: Int32) { state.withLock { $0.log.append("letOthersIn") } }

  func modes(_ tty: Int32) throws(SystemError) -> linux_termios {
    try note("ioctl TCGETS2")
    return modes
  }

  func setModes(_ tty: Int32, _ modes: linux_termios) throws(SystemError) {
    try note("ioctl TCSETS2")
    state.withLock { $0.modes = $0.takes(modes) }
  }

  func setModemBits(_ tty: Int32, _ bits: Int32, _ isOn: Bool) throws(SystemError) {
    let names = (bits & TIOCM_DTR != 0 ? " DTR" : "") + (bits & TIOCM_RTS != 0 ? " RTS" : "")
    try note(isOn ? "ioctl TIOCMBIS" : "ioctl TIOCMBIC", names)
    state.withLock { $0.now += $0.setTakes }
  }

  func setModemBits(_ tty: Int32, on: Int32, off: Int32) throws(SystemError) {
    let names = { (bits: Int32) in (bits & TIOCM_DTR != 0 ? " DTR" : "") + (bits & TIOCM_RTS != 0 ? " RTS" : "") }
    try note("ioctl TIOCMSET", " on\(names(on)) off\(names(off))")
    state.withLock { $0.now += $0.setTakes }
  }

  var now: UInt64 { state.withLock { $0.now } }

  func sleep(until time: UInt64) {
    state.withLock { state in
      state.log.append("sleep \((Int64(time) - Int64(state.now)) / 1000) us")
      state.now = max(state.now, time)
      state.unsent /= 2
    }
  }

  func setBreak(_ tty: Int32, _ isOn: Bool) throws(SystemError) {
    try note(isOn ? "ioctl TIOCSBRK" : "ioctl TIOCCBRK")
  }

  func setLowLatency(_ tty: Int32, _ isOn: Bool) throws(SystemError) {
    try note("ioctl TIOCSSERIAL", isOn ? " on" : " off")
  }

  func unsent(_ tty: Int32) throws(SystemError) -> Int {
    try note("ioctl TIOCOUTQ")
    return state.withLock { $0.unsent }
  }

  func isTransmitterEmpty(_ tty: Int32) throws(SystemError) -> Bool {
    try note("ioctl TIOCSERGETLSR")
    return try state.withLock { state throws(SystemError) in
      guard let bits = state.bitsOut else { throw SystemError("ioctl TIOCSERGETLSR", ENOTTY) }
      return state.now >= bits
    }
  }

  func startOutput(_ tty: Int32) throws(SystemError) { try note("ioctl TCXONC") }

  func hasHungUp(_ tty: Int32) -> Bool { state.withLock { $0.pauses >= $0.pausesToHangUp } }
  func pause(_ step: Duration) { state.withLock { $0.pauses += 1 } }

  func rs485(_ tty: Int32) throws(SystemError) -> linux_rs485 {
    try note("ioctl TIOCGRS485")
    guard let mode = state.withLock({ $0.rs485 }) else { throw SystemError("ioctl TIOCGRS485", ENOTTY) }
    return mode
  }

  func setRS485(_ tty: Int32, _ mode: linux_rs485) throws(SystemError) {
    try note("ioctl TIOCSRS485", mode.on == 0 ? " off" : mode.rts_on_send != 0 ? " on send" : " after send")
    try state.withLock { state throws(SystemError) in
      guard state.rs485 != nil else { throw SystemError("ioctl TIOCSRS485", ENOTTY) }
      state.rs485 = state.takesRS485(mode)
    }
  }

  func flush(_ tty: Int32, _ purge: Purge) throws(SystemError) { try note("tcflush", " \(purge)") }

  func modemInputs(_ tty: Int32) throws(SystemError) -> ModemInputs {
    guard let inputs = state.withLock({ $0.inputs }) else { throw SystemError("ioctl TIOCMGET", ENOTTY) }
    return inputs
  }

  func modemOutputs(_ tty: Int32) throws(SystemError) -> ModemOutputStates {
    throw SystemError("ioctl TIOCMGET", ENOTTY)
  }

  func counts(_ tty: Int32) throws(SystemError) -> linux_line_counts {
    guard let counts = state.withLock({ $0.counts }) else { throw SystemError("ioctl TIOCGICOUNT", ENOTTY) }
    return counts
  }

  func startModemWait(_ tty: Int32, ringing bell: Int32) throws(SystemError) -> any ModemWait {
    try note("TIOCMIWAIT")
    state.withLock { $0.bell = bell }
    return RecordedWait(tty: self)
  }

  /// Does what a driver does when a line has changed.
  func ring() {
    state.withLock { state in if let bell = state.bell { _ = eventfd_write(bell, 1) } }
  }

  private struct RecordedWait: ModemWait {
    let tty: RecordedTTY
    func end() {
      tty.state.withLock { state in
        state.bell = nil
        state.log.append("end of TIOCMIWAIT")
      }
    }
  }
}
