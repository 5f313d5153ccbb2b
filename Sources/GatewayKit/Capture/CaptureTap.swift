// The end of a recording on the lane of its link: puts bytes and events of the line into the buffer, and wakes the writer
// at most a fifth of a second later. A route without a recording has none of this.

import ByteStreams
import StreamBroker

/// Lives on the lane. The group of sessions owns it; the hub uses it.
final class CaptureTap {
  private let poller: Poller
  private let buffer: CaptureBuffer
  private let writer: CaptureWriter
  private let wallTime: @Sendable () -> UInt64
  private let retryEvery: UInt64?
  /// On the lane's clock, which nobody sets.
  private var retryAt: UInt64?
  private var isDue = false
  private var lines: ControlLines = []
  private var isBreak = false
  private static let delay = Duration.milliseconds(200)

  /// Throws when there is no memory for the buffer.
  init(
    _ subject: CaptureSubject, _ settings: Config.Capture, counts: CaptureCounts, on poller: Poller,
    _ environment: CaptureEnvironment, _ status: StatusSink, capacity: Int = CaptureBuffer.capacity
  ) throws(SystemError) {
    self.poller = poller
    buffer = try CaptureBuffer(capacity: capacity, counts: counts)
    writer = CaptureWriter(subject, settings, from: buffer, environment, status)
    wallTime = environment.wallTime
    retryEvery = settings.rotateEvery?.nanoseconds
    writer.begin()
  }

  var state: CaptureState { writer.state }

  /// Begins again if it has stopped.
  func retry() { if !writer.takesEvents { writer.begin() } }

  /// Writes what is left. `done` is called on another thread.
  func end(then done: @escaping @Sendable () -> Void = {}) {
    writer.end(at: wallTime(), lines, losing: buffer.takeUnreported(), then: done)
  }

  // MARK: - Bytes

  /// The endpoint has taken these.
  func sent(_ bytes: UnsafeRawBufferPointer) { append(.toDevice, bytes) }

  /// The endpoint has sent these.
  func received(_ bytes: UnsafeRawBufferPointer) { append(.fromDevice, bytes) }

  private func append(_ kind: CaptureRecord.Kind, _ bytes: UnsafeRawBufferPointer) {
    let now = wallTime()
    guard writer.takesEvents else { return skip(kind, bytes.count, at: now) }
    retryAt = nil
    buffer.append(kind, lines, at: now, bytes)
    if buffer.used > buffer.capacity / 2 { writer.wake() }
    guard !isDue else { return }
    isDue = true
    poller.timers.after(Self.delay) { [weak self] in
      self?.isDue = false
      self?.writer.wake()
    }
  }

  private func append(_ kind: CaptureRecord.Kind, _ words: String) {
    var words = words
    words.withUTF8 { append(kind, UnsafeRawBufferPointer($0)) }
  }

  /// The recording has stopped. With `rotate-every`, the next time of that begins it again.
  private func skip(_ kind: CaptureRecord.Kind, _ count: Int, at now: UInt64) {
    buffer.drop(kind, count)
    guard let retryEvery else { return }
    if let retryAt, poller.timers.now >= retryAt {
      self.retryAt = nil
      writer.begin()
    }
    if retryAt == nil { retryAt = poller.timers.now &+ retryEvery - now % retryEvery }
  }

  // MARK: - The line

  /// What the link and its line report to clients.
  func report(_ event: ControlChannelEvent) {
    switch event {
    case .link(let status): append(.change, "link \(status)")
    case .line(let settings): append(.change, "line \(settings)")
    case .outputs(let outputs, let isBreak):
      set(.dtr, outputs.dtr ?? false)
      set(.rts, outputs.rts ?? false)
      if isBreak != self.isBreak {
        self.isBreak = isBreak
        append(.serialBreak, isBreak ? "break begins" : "break ends")
      } else {
        appendLines()
      }
    case .modem(let inputs, _):
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

  private func appendLines() {
    append(
      .change, ControlLines.names.map { "\($0.name) \(lines.contains($0.lines) ? "on" : "off")" }.joined(separator: " ")
    )
  }
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
