// The line behind an open serial port: settings, DTR and RTS, break, purge. Doors, commands and reload get it from the
// stream as `SerialLine`. Each call runs on the device's queue, in order, and answers on the lane.

import ByteStreams
import CLinux
import Dispatch
import Glibc

final class TTYLine: SerialLine {
  private(set) var settings: LineSettings
  // Weak: the stream keeps the line.
  private weak var stream: DescriptorStream?

  private let port: TTYPort
  private let tty: Int32
  private let device: DeviceQueue
  private var queue: DispatchQueue { device.queue }
  private let poller: Poller
  private var watching: TTYWatch?
  private let waits = ModemWaits()

  private init(_ port: TTYPort, _ tty: Int32, _ settings: LineSettings, on poller: Poller, _ device: DeviceQueue) {
    self.port = port
    self.tty = tty
    self.settings = settings
    self.poller = poller
    self.device = device
  }

  deinit { watching?.end() }

  /// The stream of an open port, with its line. Its calls and its close all run on the queue of `device`; the lock goes after the
  /// close.
  static func stream(
    over opened: TTYPort.Opened, of port: TTYPort, on poller: Poller, device: DeviceQueue
  ) -> DescriptorStream {
    let tty = opened.descriptor.take()!  // nobody else has seen the parcel
    let line = TTYLine(port, tty.raw, opened.line, on: poller, device)
    let waits = line.waits
    let stream = DescriptorStream(
      tty, kind: .device, on: poller, closingOn: device.queue,
      beforeClose: {
        // Who waits in the driver keeps the port open.
        waits.end()
        port.prepareToClose($0)
      }, afterClose: { [lock = opened.lock] in withExtendedLifetime(device) { lock?.letGo() } }, serialLine: line)
    line.stream = stream
    return stream
  }

  func apply(_ settings: LineSettings, _ done: @escaping (Result<LineSettings, SystemError>) -> Void) {
    run({ port, tty throws(SystemError) in try port.apply(settings, to: tty) }) { [weak self] result in
      if case .success(let inForce) = result { self?.settings = inForce }
      done(result)
    }
  }

  func set(_ line: ModemOutput, _ isOn: Bool, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    let bit = line == .dtr ? TIOCM_DTR : TIOCM_RTS
    run({ port, tty throws(SystemError) in try port.calls.setModemBits(tty, bit, isOn) }, done)
  }

  func setBreak(_ isOn: Bool, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    run({ port, tty throws(SystemError) in try port.calls.setBreak(tty, isOn) }, done)
  }

  func unsent(_ done: @escaping (Result<Int, SystemError>) -> Void) {
    run({ port, tty throws(SystemError) in try port.calls.unsent(tty) }, done)
  }

  func purge(_ what: Purge, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    run({ port, tty throws(SystemError) in try port.calls.flush(tty, what) }, done)
  }

  func watch(_ told: @escaping (Result<LineCondition, SystemError>) -> Void) {
    endWatch()
    guard let stream, !stream.isClosed else { return }
    let watching = TTYWatch(on: poller) { [weak self] done in
      self?.run({ port, tty throws(SystemError) in try port.condition(of: tty) }, done)
    } told: { [weak self] result in
      guard let stream = self?.stream, !stream.isClosed else { return }
      told(result)
    }
    self.watching = watching
    watching.look()
    guard let bell = watching.bell else { return }
    // Where the driver can't wait the thread ends at once, and looking now and then is all there is.
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
    // A call that is asked for before the close runs before it too, for both go through the queue. After the close the
    // number may be another's.
    guard let stream, !stream.isClosed else {
      poller.timers.after(.zero) { done(.failure(SystemError("ioctl", EBADF))) }
      return
    }
    let port = port
    let tty = tty
    poller.offload(to: queue) { () -> Result<Answer, SystemError> in
      do throws(SystemError) {
        return .success(try call(port, tty))
      } catch {
        return .failure(error)
      }
    } then: {
      done($0)
    }
  }
}
