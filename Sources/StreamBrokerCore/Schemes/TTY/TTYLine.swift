// The line of an open serial port: settings, DTR and RTS, break, purge. Listeners, commands and reload get it from the
// stream as `SerialLine`. Each call runs on the device's queue, in order, and its result arrives on the lane. Only the
// slave of a pty has no driver that could block: its calls run on the lane, which saves two changes of thread.

import ByteStreams
import CLinux
import Dispatch
import Glibc

final class TTYLine: SerialLine, PollHandler {
  private(set) var settings: LineSettings
  private(set) var outputStates: ModemOutputStates
  // Weak: the stream keeps the line.
  private weak var stream: DescriptorStream?

  private let port: TTYPort
  private let tty: Int32
  private let countsAtOpening: LineCounts?
  private let isPty: Bool
  private let device: DeviceQueue
  private var queue: DispatchQueue { device.queue }
  private let poller: Poller
  private var watching: TTYWatch?
  private let waits = ModemWaits()
  /// Results of calls on a pty, reported in the lane's next round.
  private var results: [() -> Void] = []
  private var isReporting = false

  private init(_ opened: TTYPort.Opened, _ port: TTYPort, _ tty: Int32, on poller: Poller, _ device: DeviceQueue) {
    self.port = port
    self.tty = tty
    isPty = opened.isPty
    countsAtOpening = opened.counts
    settings = opened.line
    outputStates = opened.outputs
    self.poller = poller
    self.device = device
  }

  deinit { watching?.end() }

  /// The stream of an open port, with its line. All its calls and its close run on the queue of `device`; the lock file
  /// is removed after the close.
  static func stream(
    over opened: TTYPort.Opened, of port: TTYPort, on poller: Poller, device: DeviceQueue
  ) -> DescriptorStream {
    let tty = opened.descriptor.take()!  // no other code has seen the parcel
    let line = TTYLine(opened, port, tty.raw, on: poller, device)
    let waits = line.waits
    let stream = DescriptorStream(
      tty, kind: .device, on: poller, closingOn: device.queue,
      beforeClose: {
        // A thread that waits in the driver keeps the port open.
        waits.end()
        port.prepareToClose($0)
      }, afterClose: { [lock = opened.lock] in withExtendedLifetime(device) { lock?.letGo() } }, serialLine: line)
    line.stream = stream
    return stream
  }

  func apply(_ settings: LineSettings, _ done: @escaping (Result<LineSettings, SystemError>) -> Void) {
    run({ [isPty] port, tty throws(SystemError) in try port.apply(settings, to: tty, whenSent: !isPty) }) {
      [weak self] result in
      if case .success(let inForce) = result { self?.settings = inForce }
      done(result)
    }
  }

  func set(_ line: ModemOutput, _ isOn: Bool, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    let bit = line == .dtr ? TIOCM_DTR : TIOCM_RTS
    run({ port, tty throws(SystemError) in try port.calls.setModemBits(tty, bit, isOn) }) { [weak self] result in
      if case .success = result { self?.outputStates[line] = isOn }
      done(result)
    }
  }

  var keepsTime: Bool { true }

  func perform(_ steps: [LineStep], _ done: @escaping (Result<Void, SystemError>) -> Void) {
    run({ port, tty throws(SystemError) in try port.perform(steps, on: tty) }) { [weak self] result in
      if let self, case .success = result {
        for case .set(let dtr, let rts) in steps {
          outputStates = ModemOutputStates(dtr: dtr ?? outputStates.dtr, rts: rts ?? outputStates.rts)
        }
      }
      done(result)
    }
  }

  func setBreak(_ isOn: Bool, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    run(
      { [isPty] port, tty throws(SystemError) in
        if isOn, !isPty { port.finishSending(tty) }
        try port.calls.setBreak(tty, isOn)
      }, done)
  }

  func unsent(_ done: @escaping (Result<Int, SystemError>) -> Void) {
    run({ port, tty throws(SystemError) in try port.calls.unsent(tty) }, done)
  }

  func purge(_ what: Purge, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    run({ port, tty throws(SystemError) in try port.calls.flush(tty, what) }, done)
  }

  func startOutput(_ done: @escaping (Result<Void, SystemError>) -> Void) {
    run({ port, tty throws(SystemError) in try port.calls.startOutput(tty) }, done)
  }

  func condition(_ done: @escaping (Result<LineCondition, SystemError>) -> Void) {
    run(
      { [countsAtOpening] port, tty throws(SystemError) in
        var condition = try port.condition(of: tty)
        // Of what was lost before, no client of ours knows.
        condition.counts = condition.counts.map { $0.since(countsAtOpening ?? LineCounts()) }
        return condition
      }, done)
  }

  func watch(_ reported: @escaping (Result<LineCondition, SystemError>) -> Void) {
    endWatch()
    guard let stream, !stream.isClosed else { return }
    let watching = TTYWatch(on: poller) { [weak self] done in
      self?.condition(done)
    } reported: { [weak self] result in
      guard let stream = self?.stream, !stream.isClosed else { return }
      reported(result)
    }
    self.watching = watching
    watching.look()
    guard let bell = watching.bell else { return }
    // If the driver can't wait, the thread ends at once, and only the regular looks remain.
    queue.async { [port, tty, waits] in waits.begin(port.calls, tty, bell) }
  }

  func endWatch() {
    guard let watching else { return }
    self.watching = nil
    watching.end()
    queue.async { [waits] in waits.end() }
  }

  private func run<Answer: Sendable>(
    _ call: @escaping @Sendable (TTYPort, Int32) throws(SystemError) -> Answer,
    _ done: @escaping (Result<Answer, SystemError>) -> Void
  ) {
    // A call that is requested before the close also runs before it, because both use the queue. After the close the
    // descriptor's number may belong to something else.
    guard let stream, !stream.isClosed else {
      poller.timers.after(.zero) { done(.failure(SystemError("ioctl", EBADF))) }
      return
    }
    let port = port
    let tty = tty
    let work = { @Sendable () -> Result<Answer, SystemError> in
      do throws(SystemError) {
        return .success(try call(port, tty))
      } catch {
        return .failure(error)
      }
    }
    guard isPty else { return poller.offload(to: queue, work, then: done) }
    let result = work()
    results.append { done(result) }
    if results.count == 1 && !isReporting { poller.nextRound(self) }
  }

  func ready(_ events: PollEvents) {
    isReporting = true
    // Twice: whoever changes settings asks first whether all bytes are sent, and then makes the change.
    for _ in 0..<2 {
      let due = results
      results = []
      for report in due { report() }
    }
    isReporting = false
    if !results.isEmpty { poller.nextRound(self) }
  }
}
