// The end of a recording on the lane of its link: puts bytes and events of the line into the buffer, and wakes the writer
// at most a fifth of a second later. A route without a recording has none of this.

import ByteStreams
import StreamBroker

/// Empties the buffer of a recording, on another thread: writes files, or feeds a command. Can be used on any thread.
protocol CaptureDrain: AnyObject, Sendable {
  /// False once it has failed, until `begin`.
  var takesEvents: Bool { get }
  func begin()
  /// There are events.
  func wake()
  /// Writes what is left, `loss`, and that the recording ends.
  func end(at time: UInt64, _ lines: ControlLines, losing loss: CaptureLoss, then done: @escaping @Sendable () -> Void)
}

/// One recording of a link. Lives on the lane.
final class CaptureOutlet {
  private let poller: Poller
  private let buffer: CaptureBuffer
  let drain: any CaptureDrain
  /// How long events may wait in the buffer.
  private let delay: Duration
  private let retryEvery: UInt64?
  /// On the lane's clock, which nobody sets.
  private var retryAt: UInt64?
  private var isDue = false

  init(
    _ buffer: CaptureBuffer, to drain: any CaptureDrain, on poller: Poller, delay: Duration = .milliseconds(200),
    retryEvery: Duration? = nil
  ) {
    self.buffer = buffer
    self.drain = drain
    self.poller = poller
    self.delay = delay
    self.retryEvery = retryEvery?.nanoseconds
  }

  /// Begins again if it has stopped.
  func retry() { if !drain.takesEvents { drain.begin() } }

  func append(_ kind: CaptureRecord.Kind, _ lines: ControlLines, at now: UInt64, _ bytes: UnsafeRawBufferPointer) {
    guard drain.takesEvents else { return skip(kind, bytes.count, at: now) }
    retryAt = nil
    buffer.append(kind, lines, at: now, bytes)
    if buffer.used > buffer.capacity / 2 { drain.wake() }
    guard !isDue else { return }
    isDue = true
    poller.timers.after(delay) { [weak self] in
      self?.isDue = false
      self?.drain.wake()
    }
  }

  /// The recording has stopped. With `rotate-every`, the next time of that begins it again.
  private func skip(_ kind: CaptureRecord.Kind, _ count: Int, at now: UInt64) {
    buffer.drop(kind, count)
    guard let retryEvery else { return }
    if let retryAt, poller.timers.now >= retryAt {
      self.retryAt = nil
      drain.begin()
    }
    if retryAt == nil { retryAt = poller.timers.now &+ retryEvery - now % retryEvery }
  }

  fileprivate func end(at time: UInt64, _ lines: ControlLines, then done: @escaping @Sendable () -> Void) {
    drain.end(at: time, lines, losing: buffer.takeUnreported(), then: done)
  }
}

/// Lives on the lane. The group of sessions owns it; the hub uses it.
final class CaptureTap {
  private let wallTime: @Sendable () -> UInt64
  private(set) var outlets: [CaptureOutlet] = []
  private var lines: ControlLines = []
  private var isBreak = false
  // What a recording that begins later has to know.
  private var link: String?
  private var settings: String?
  private var knowsLines = false

  init(_ wallTime: @escaping @Sendable () -> UInt64) { self.wallTime = wallTime }

  /// Begins with the state of the link and its line.
  func add(_ outlet: CaptureOutlet) {
    outlets.append(outlet)
    let now = wallTime()
    for words in [link, settings, knowsLines ? lines.words : nil].compactMap(\.self) {
      Self.append(.change, words) { outlet.append($0, lines, at: now, $1) }
    }
  }

  /// Writes what is left. `done` is called on another thread.
  func end(_ outlet: CaptureOutlet, then done: @escaping @Sendable () -> Void = {}) {
    outlets.removeAll { $0 === outlet }
    outlet.end(at: wallTime(), lines, then: done)
  }

  // MARK: - Bytes

  /// The endpoint has taken these.
  func sent(_ bytes: UnsafeRawBufferPointer) { append(.toDevice, bytes) }

  /// The endpoint has sent these.
  func received(_ bytes: UnsafeRawBufferPointer) { append(.fromDevice, bytes) }

  private func append(_ kind: CaptureRecord.Kind, _ bytes: UnsafeRawBufferPointer) {
    let now = wallTime()
    for outlet in outlets { outlet.append(kind, lines, at: now, bytes) }
  }

  private func append(_ kind: CaptureRecord.Kind, _ words: String) { Self.append(kind, words, to: append) }

  private static func append(
    _ kind: CaptureRecord.Kind, _ words: String, to append: (CaptureRecord.Kind, UnsafeRawBufferPointer) -> Void
  ) {
    var words = words
    words.withUTF8 { append(kind, UnsafeRawBufferPointer($0)) }
  }

  // MARK: - The line

  /// What the link and its line report to clients.
  func report(_ event: ControlChannelEvent) {
    switch event {
    case .link(let status):
      (link, settings) = ("link \(status)", nil)
      knowsLines = false
      append(.change, "link \(status)")
    case .line(let settings):
      self.settings = "line \(settings)"
      append(.change, "line \(settings)")
    case .outputs(let outputs, let isBreak):
      knowsLines = true
      set(.dtr, outputs.dtr ?? false)
      set(.rts, outputs.rts ?? false)
      if isBreak != self.isBreak {
        self.isBreak = isBreak
        append(.serialBreak, isBreak ? "break begins" : "break ends")
      } else {
        appendLines()
      }
    case .modem(let inputs, _):
      knowsLines = true
      for (bit, input) in [(ControlLines.cts, ModemInputs.cts), (.dsr, .dsr), (.dcd, .dcd), (.ring, .ri)] {
        set(bit, inputs.contains(input))
      }
      appendLines()
    case .errors(let counts):
      for (kind, count, word) in [
        (CaptureRecord.Kind.serialBreak, counts.breaks, "breaks received"),
        (.framingError, counts.framing, "framing errors"), (.parityError, counts.parity, "parity errors"),
        (.overrun, counts.overruns, "bytes lost in the port"),
        (.overrun, counts.bufferOverruns, "bytes lost in the kernel"),
      ] where count > 0 {
        append(kind, "\(word): \(count)")
      }
    case .hello, .writer, .drops, .queue, .lost, .end: break
    }
  }

  private func set(_ line: ControlLines, _ isOn: Bool) { if isOn { lines.insert(line) } else { lines.remove(line) } }

  private func appendLines() { append(.change, lines.words) }
}

/// Stands before the endpoint while it is recorded: passes bytes on, and records what the endpoint has taken.
final class CaptureSink: SinkStream {
  private let endpoint: any ByteStream
  var below: (any ByteStream)? { endpoint }
  private let tap: CaptureTap

  init(_ endpoint: any ByteStream, _ tap: CaptureTap) {
    self.endpoint = endpoint
    self.tap = tap
  }

  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    let transfer = try endpoint.write(run)
    if case .moved(let count) = transfer, count > 0, count <= run.count {
      tap.sent(UnsafeRawBufferPointer(rebasing: run[..<count]))
    }
    return transfer
  }
}
