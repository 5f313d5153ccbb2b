// Writes one route's recording to files, on the queue of its folder: takes the events from the buffer, encodes them,
// begins new files by size and time. A failure ends the recording until `retry` or the next time of `rotate-every`;
// nothing else follows from it.

import ByteStreams
import Dispatch
import Glibc
import Synchronization

/// What all recordings of a gateway share.
struct CaptureEnvironment: Sendable {
  /// Where relative names of files begin.
  var stateFolder = "/var/lib/baudway"
  var queues = CaptureQueues()
  /// Reserves the descriptors of files.
  var descriptors = DescriptorBudget()
  var clock = QueueClock.monotonic
  /// Nanoseconds since 1970.
  var wallTime: @Sendable () -> UInt64 = {
    var time = timespec()
    clock_gettime(CLOCK_REALTIME, &time)
    return UInt64(time.tv_sec) &* 1_000_000_000 &+ UInt64(time.tv_nsec)
  }

  /// `$STATE_DIRECTORY` of systemd, else that of the user, else /var/lib/baudway.
  static func stateFolder(_ environment: [String: String], user: uid_t = geteuid()) -> String {
    func given(_ name: String) -> String? { environment[name].flatMap { $0.hasPrefix("/") ? $0 : nil } }
    if let folders = given("STATE_DIRECTORY") { return String(folders.prefix { $0 != ":" }) }
    if let home = given("XDG_STATE_HOME") { return home + "/baudway" }
    if user != 0, let home = given("HOME") { return home + "/.local/state/baudway" }
    return "/var/lib/baudway"
  }
}

/// What `status` says of a recording.
struct CaptureState: Hashable, Sendable {
  /// The present file, or the last one.
  var path: String?
  /// Why it has stopped.
  var error: String?
}

final class CaptureWriter: CaptureDrain, @unchecked Sendable {
  private let subject: CaptureSubject
  private let settings: Config.Capture
  private let name: CaptureName
  private let buffer: CaptureBuffer
  private let environment: CaptureEnvironment
  private let queue: DispatchQueue
  private let status: StatusSink

  /// Events are wanted. False once a write has failed.
  private let isOn = Atomic<Bool>(true)
  private let isAwake = Atomic<Bool>(false)
  private let shown = Mutex(CaptureState())

  // The rest is used on the queue only.
  private struct Open: ~Copyable {
    var file: CaptureFile
    var encoder: any CaptureEncoder
    /// When the next file begins, in nanoseconds since 1970.
    var end: UInt64
  }
  private var open: Open?
  /// For the next file, until it is open.
  private var fileToCome: DescriptorReservation?
  private var output: [UInt8] = []
  private struct End {
    /// Where an event ends in `output`.
    var place: Int
    /// What is lost if this part of the output is not written.
    var content = CaptureLoss()
    /// The loss that the event reports.
    var report = CaptureLoss()
  }
  private var ends: [End] = []
  private var hasEnded = false
  private var lineTimer: UInt64?
  /// What no file reports yet, and why the recording stopped, if that is the reason.
  private var unreported = CaptureLoss()
  private var failure: SystemError?
  /// The same for the log.
  private var unlogged = CaptureLoss()
  private var unloggedFailure: SystemError?
  private var loggedAt: UInt64?
  private var isLogDue = false

  /// One write(2) has about this many bytes.
  private static let portion = 256 << 10
  /// Work of one turn; other recordings of the folder wait for it.
  private static let turn = 4 << 20
  /// After this time without an end, a line is written as it is.
  private static let longestLine: UInt64 = 500_000_000
  private static let pauseOfLines: UInt64 = 10_000_000_000

  init(
    _ subject: CaptureSubject, _ settings: Config.Capture, from buffer: CaptureBuffer,
    _ environment: CaptureEnvironment, _ status: StatusSink
  ) {
    self.subject = subject
    self.settings = settings
    self.buffer = buffer
    self.environment = environment
    self.status = status
    name = CaptureName(settings.file, route: subject.route, stateFolder: environment.stateFolder)
    queue = environment.queues.queue(of: name.root)
    fileToCome = environment.descriptors.reserve(CaptureFile.descriptorsNeeded)
  }

  // MARK: - From any thread

  var takesEvents: Bool { isOn.load(ordering: .relaxed) }
  var state: CaptureState { shown.withLock { $0 } }

  /// Begins the first file, or the next one after a failure.
  func begin() { queue.async { self.beginIfStopped() } }

  /// There are events.
  func wake() {
    guard !isAwake.exchange(true, ordering: .acquiringAndReleasing) else { return }
    queue.async { self.run() }
  }

  /// Writes what is left, `loss`, and that the recording ends, and closes the file. `done` is called on the queue.
  func end(
    at time: UInt64, _ lines: ControlLines, losing loss: CaptureLoss,
    then done: @escaping @Sendable () -> Void = {}
  ) {
    queue.async {
      self.drain()
      self.unreported.add(loss)
      if !self.unreported.isNothing, self.open == nil, self.takesEvents { self.openFile(at: time) }
      self.add(.complete, lines, time, "the recording ends here")
      self.close()
      if !self.unreported.isNothing { self.unloggedFailure = self.failure }
      self.noteForLog(self.unreported)  // there is no file
      self.log()
      self.fileToCome = nil
      self.hasEnded = true
      done()
    }
  }

  // MARK: - On the queue

  private func beginIfStopped() {
    guard open == nil, !hasEnded else { return }
    if openFile(at: environment.wallTime()) { isOn.store(true, ordering: .relaxed) }
  }

  private func run() {
    isAwake.store(false, ordering: .sequentiallyConsistent)
    drain()
    watchLine()
  }

  private func drain() {
    var left = Self.turn
    while left > 0,
      buffer.take({ record in
        left -= record.bytes.count + CaptureBuffer.header
        take(record)
      })
    {}
    flush()
    if left <= 0 { wake() }
  }

  private func take(_ record: CaptureRecord) {
    if let end = open?.end, record.time >= end { close() }
    if open == nil, takesEvents { openFile(at: record.time) }
    if record.kind == .lost {
      unreported.add(record.bytes.loadUnaligned(as: CaptureLoss.self))
    } else if open == nil {
      lose(record.kind, record.bytes.count)
    } else {
      add(record)
    }
  }

  private func add(_ record: CaptureRecord) {
    reportLoss(record.lines, record.time)
    encode(record)
    let length = (open?.file.length ?? 0) + output.count
    if let most = settings.rotate, length >= most {
      close()  // the next event begins the next file
    } else if output.count >= Self.portion {
      flush()
    }
  }

  private func add(_ kind: CaptureRecord.Kind, _ lines: ControlLines, _ time: UInt64, _ words: String) {
    guard open != nil else { return }
    var words = words
    words.withUTF8 { add(CaptureRecord(kind: kind, lines: lines, time: time, bytes: UnsafeRawBufferPointer($0))) }
  }

  private func encode(_ record: CaptureRecord, reporting report: CaptureLoss = CaptureLoss()) {
    let before = open?.encoder.unfinished ?? 0
    open?.encoder.add(record, to: &output)
    let data = (record.kind.isData ? record.bytes.count : 0) + before - (open?.encoder.unfinished ?? 0)
    let isEvent = !record.kind.isData && record.kind != .lost && record.kind != .complete
    ends.append(
      End(place: output.count, content: CaptureLoss(bytes: UInt64(data), events: isEvent ? 1 : 0), report: report))
  }

  private func finishLine() {
    let count = open?.encoder.unfinished ?? 0
    open?.encoder.finishLine(to: &output)
    ends.append(End(place: output.count, content: CaptureLoss(bytes: UInt64(count))))
  }

  /// Returns whether there is a file.
  @discardableResult
  private func flush() -> Bool {
    guard open != nil else {
      empty()
      return false
    }
    guard !output.isEmpty else { return true }
    let before = open?.file.length ?? 0
    do throws(SystemError) {
      try open?.file.write(output, ends: ends.lazy.map(\.place))
      settle(output.count)
    } catch {
      settle((open?.file.length ?? 0) - before)
      lose(.fromDevice, open?.encoder.unfinished ?? 0)
      fail(error, at: open?.file.path ?? "")
    }
    empty()
    return open != nil
  }

  /// So much of the output is in the file.
  private func settle(_ written: Int) {
    buffer.counts.write(written)
    for end in ends {
      if end.place <= written {
        noteForLog(end.report)
      } else {
        buffer.counts.drop(Int(end.content.bytes))
        unreported.add(end.content)
        unreported.add(end.report)
      }
    }
  }

  private func empty() {
    output.removeAll(keepingCapacity: output.capacity <= 2 * Self.portion)
    ends.removeAll(keepingCapacity: true)
  }

  // MARK: - Files

  @discardableResult
  private func openFile(at time: UInt64) -> Bool {
    do throws(SystemError) {
      let file = try CaptureFile(name, at: time)
      shown.withLock { $0 = CaptureState(path: file.path) }
      let path = file.path
      let end = settings.rotateEvery.map { (time / $0.nanoseconds + 1) &* $0.nanoseconds } ?? .max
      var encoder = settings.format.encoder()
      encoder.begin(subject, at: time, to: &output)
      open = Open(file: file, encoder: encoder, end: end)
      guard flush() else { return false }
      if let keep = settings.keep { CaptureFile.prune(name, keep: keep, besides: path) }
      fileToCome = nil
      status.publish(.captureBegun(route: subject.route, path: path))
      return true
    } catch {
      fail(error, at: name.folder + name.name(name.next(at: time, after: [])))
      return false
    }
  }

  private func close() {
    guard open != nil else { return }
    finishLine()
    flush()
    closeFile()
  }

  private func closeFile() {
    fileToCome = environment.descriptors.reserve(CaptureFile.descriptorsNeeded)
    if let path = open?.file.path, open?.file.length == 0 { unlink(path) }  // such as on a full disk
    open = nil
  }

  private func fail(_ error: SystemError, at path: String) {
    isOn.store(false, ordering: .relaxed)
    empty()
    closeFile()
    failure = error
    shown.withLock { $0 = CaptureState(path: path, error: error.description) }
    status.publish(.captureStopped(route: subject.route, path: path, error))
  }

  // MARK: - Lines under way

  /// A line that does not end is written after a while, so that the file is never far behind.
  private func watchLine() {
    guard lineTimer == nil, open?.encoder.unfinished ?? 0 > 0 else { return }
    let due = environment.clock.now() &+ Self.longestLine
    lineTimer = due
    environment.clock.run(due, queue) { [weak self] in
      guard let self, lineTimer == due else { return }
      lineTimer = nil
      drain()
      finishLine()
      flush()
    }
  }

  // MARK: - Losses

  private func lose(_ kind: CaptureRecord.Kind, _ count: Int) {
    unreported.add(kind, count)
    if kind.isData { buffer.counts.drop(count) }
  }

  /// Says in the file what is missing there.
  private func reportLoss(_ lines: ControlLines, _ time: UInt64) {
    if !unreported.isNothing {
      var words = unreported.words(failure)
      words.withUTF8 {
        encode(
          CaptureRecord(kind: .lost, lines: lines, time: time, bytes: UnsafeRawBufferPointer($0)),
          reporting: unreported)
      }
      unreported = CaptureLoss()
      unloggedFailure = failure
    }
    failure = nil
  }

  private func noteForLog(_ loss: CaptureLoss) {
    guard !loss.isNothing else { return }
    unlogged.add(loss)
    let now = environment.clock.now()
    let due = loggedAt.map { $0 &+ Self.pauseOfLines } ?? now
    if due <= now { return log() }
    if isLogDue { return }
    isLogDue = true
    environment.clock.run(due, queue) { [weak self] in self?.log() }
  }

  private func log() {
    isLogDue = false
    guard !unlogged.isNothing, let path = state.path else { return }
    status.publish(.captureDrops(route: subject.route, path: path, unlogged, unloggedFailure))
    unlogged = CaptureLoss()
    unloggedFailure = nil
    loggedAt = environment.clock.now()
  }
}
