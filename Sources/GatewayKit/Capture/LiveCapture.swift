// `baudway capture`: a recording that a command reads through the control socket, while it is made. Its events come
// through a buffer, as those of a file do: a reader that is too slow loses events, and delays nothing.
//
// The answer is frames: a line of JSON each, and after `{"bytes":N}` N bytes of the recording.

import ByteStreams
import StreamBroker
import Synchronization

/// Lives on the lane of the control socket, and empties the buffer there. The connection owns it.
final class LiveCapture: ControlAnswer {
  private let buffer: CaptureBuffer
  private let poller: Poller
  private let wallTime: @Sendable () -> UInt64
  private var encoder: any CaptureEncoder
  /// The route has answered; nothing is read before.
  private var hasBegun = false
  /// Frames for the next piece, before its bytes.
  private var frames: [UInt8] = []
  private var output: [UInt8] = []
  private var loss = CaptureLoss()
  /// Takes the next piece.
  private var waiting: (([UInt8]?) -> Void)?
  private var lineTimer: Timers.Token?
  /// Nothing follows what is in `frames` and `output`.
  private var isOver = false
  private var whenRead: (@Sendable () -> Void)?
  /// Called when the connection has closed.
  var whenReleased: () -> Void = {}

  private static let portion = 64 << 10
  /// As in a file: after this time without an end, a line is written as it is.
  private static let longestLine = Duration.milliseconds(500)

  init(
    _ format: Config.Capture.Format, from buffer: CaptureBuffer, on poller: Poller,
    wallTime: @escaping @Sendable () -> UInt64
  ) {
    self.buffer = buffer
    self.poller = poller
    self.wallTime = wallTime
    encoder = format.encoder()
  }

  deinit {
    poller.timers.cancel(lineTimer)
    whenRead?()
    whenReleased()
  }

  // MARK: - The route

  /// The route is recorded from now on.
  func begin(_ subject: CaptureSubject) {
    hasBegun = true
    frame(.object(["capture": .bool(true), "route": .text(subject.route), "endpoint": .text(subject.endpoint)]))
    encoder.begin(subject, at: wallTime(), to: &output)
    give()
  }

  /// Nothing is recorded; the answer is this error.
  func refuse(_ error: JSONValue) {
    (hasBegun, isOver) = (true, true)
    frame(error)
    give()
  }

  /// There are events.
  func wake() { give() }

  /// The route ends. `done` is called when the reader has everything, or has gone.
  func end(at time: UInt64, _ lines: ControlLines, losing loss: CaptureLoss, then done: @escaping @Sendable () -> Void)
  {
    guard !isOver else { return done() }
    drain(atMost: .max)
    lose(loss, lines, time)
    add(.complete, lines, time, "the recording ends here")
    encoder.finishLine(to: &output)
    (isOver, whenRead) = (true, done)
    give()
  }

  // MARK: - The reader

  func next(_ done: @escaping ([UInt8]?) -> Void) {
    waiting = done
    give()
  }

  private func give() {
    guard let waiting, hasBegun else { return }
    if !isOver { drain(atMost: Self.portion) }
    if !loss.isNothing { frame(.object(["dropped": .integer(loss.bytes), "events": .integer(loss.events)])) }
    if !output.isEmpty { frame(.object(["bytes": .integer(output.count)])) }
    let isLast = isOver && whenRead != nil
    var piece = frames + output
    if isLast && !hasSaidEnd {
      piece += Self.line(.object(["end": .bool(true)]))
      hasSaidEnd = true
    }
    (loss, frames) = (CaptureLoss(), [])
    output.removeAll(keepingCapacity: true)
    if piece.isEmpty && !isOver { return watchLine() }
    self.waiting = nil
    if piece.isEmpty { whenRead.take()?() }
    waiting(piece.isEmpty ? nil : piece)
  }

  private var hasSaidEnd = false

  private func frame(_ content: JSONValue) { frames += Self.line(content) }
  private static func line(_ content: JSONValue) -> [UInt8] { Array((content.description + "\n").utf8) }

  private func watchLine() {
    guard lineTimer == nil, encoder.unfinished > 0 else { return }
    lineTimer = poller.timers.after(Self.longestLine) { [weak self] in
      guard let self else { return }
      lineTimer = nil
      drain(atMost: Self.portion)
      encoder.finishLine(to: &output)
      give()
    }
  }

  // MARK: - Events

  private func drain(atMost most: Int) {
    while output.count < most, buffer.take({ take($0) }) {}
  }

  private func take(_ record: CaptureRecord) {
    if record.kind == .lost {
      lose(record.bytes.loadUnaligned(as: CaptureLoss.self), record.lines, record.time)
    } else {
      encoder.add(record, to: &output)
    }
  }

  private func lose(_ lost: CaptureLoss, _ lines: ControlLines, _ time: UInt64) {
    guard !lost.isNothing else { return }
    loss.add(lost)
    add(.lost, lines, time, lost.words(nil, because: "the recording was read too slowly"))
  }

  private func add(_ kind: CaptureRecord.Kind, _ lines: ControlLines, _ time: UInt64, _ words: String) {
    var words = words
    words.withUTF8 {
      encoder.add(
        CaptureRecord(kind: kind, lines: lines, time: time, bytes: UnsafeRawBufferPointer($0)), to: &output)
    }
  }
}

/// The route's end of a live recording. Can be used on any thread.
final class LiveCaptureWriter: CaptureDrain {
  /// Does not keep it.
  final class Reference {
    weak var capture: LiveCapture?
    init(_ capture: LiveCapture) { self.capture = capture }
  }

  private let reference: LaneRef<Reference>
  private let isAwake = Atomic<Bool>(false)

  init(_ reference: LaneRef<Reference>) { self.reference = reference }

  var takesEvents: Bool { true }
  func begin() {}

  func wake() {
    guard !isAwake.exchange(true, ordering: .acquiringAndReleasing) else { return }
    reference.post { [self] _, reference in
      isAwake.store(false, ordering: .sequentiallyConsistent)
      reference.capture?.wake()
    }
  }

  func end(
    at time: UInt64, _ lines: ControlLines, losing loss: CaptureLoss, then done: @escaping @Sendable () -> Void
  ) {
    reference.post { _, reference in
      guard let capture = reference.capture else { return done() }
      capture.end(at: time, lines, losing: loss, then: done)
    }
  }
}

/// Reads the frames of a live recording, in whatever pieces they come.
package struct LiveCaptureReader {
  package enum Event: Equatable, Sendable {
    case begun
    case bytes([UInt8])
    /// So much is missing, because the output was read too slowly.
    case dropped(bytes: UInt64, events: UInt64)
    /// The route or the gateway has ended.
    case end
    case failed(String)
  }

  private var line: [UInt8] = []
  /// Bytes of the recording until the next line.
  private var left = 0
  private static let longestLine = 4096

  package init() {}

  package mutating func take(_ input: [UInt8]) -> [Event] {
    var events: [Event] = []
    var rest = input[...]
    while !rest.isEmpty {
      if left > 0 {
        let bytes = rest.prefix(left)
        left -= bytes.count
        rest = rest.dropFirst(bytes.count)
        events.append(.bytes(Array(bytes)))
        continue
      }
      let end = rest.firstIndex(of: UInt8(ascii: "\n"))
      line += rest[..<(end ?? rest.endIndex)]
      guard line.count <= Self.longestLine else { return events + [.failed(Self.unknown)] }
      guard let end else { return events }
      rest = rest[(end + 1)...]
      if let event = frame() { events.append(event) }
      line = []
    }
    return events
  }

  /// Nil for one of a later version.
  private mutating func frame() -> Event? {
    guard let json = try? JSONReader.read(line) else { return .failed(Self.unknown) }
    if let error = json["error"]?.text { return .failed(error) }
    if json["capture"]?.flag == true { return .begun }
    if json["end"]?.flag == true { return .end }
    if let count = json["bytes"]?.integer { left = Int(clamping: count) }
    return json["dropped"]?.integer.map { .dropped(bytes: $0, events: json["events"]?.integer ?? 0) }
  }

  private static let unknown =
    "this version does not understand the gateway's answer; use the gateway's version of baudway"
}
