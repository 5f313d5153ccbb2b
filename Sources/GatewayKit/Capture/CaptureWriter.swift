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

final class CaptureWriter: @unchecked Sendable {
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
  /// Where events end in `output`, and how many bytes of clients and device each has.
  private var ends: [(place: Int, data: Int)] = []
  private var hasEnded = false
  private var lineTimer: UInt64?
  private var unreportedDrops: UInt64 = 0
  private var dropsReportedAt: UInt64?

  /// One write(2) has about this many bytes.
  private static let portion = 256 << 10
  /// Work of one turn; other recordings of the folder wait for it.
  private static let turn = 4 << 20
  /// After this time without an end, a line is written as it is.
  private static let longestLine: UInt64 = 500_000_000
  private static let pauseOfDropLines: UInt64 = 10_000_000_000

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

  /// Writes what is left, and closes the file. `done` is called on the queue.
  func end(then done: @escaping @Sendable () -> Void = {}) {
    queue.async {
      self.drain()
      self.close()
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
        add(record)
      })
    {}
    flush()
    if left <= 0 { wake() }
  }

  private func add(_ record: CaptureRecord) {
    let isLast = record.kind == .complete
    if let end = open?.end, record.time >= end, !isLast { close() }
    if open == nil, takesEvents, !isLast { openFile(at: record.time) }
    guard open != nil else {
      if record.kind.isData { buffer.counts.drop(record.bytes.count) }
      return
    }
    open?.encoder.add(record, to: &output)
    ends.append((output.count, record.kind.isData ? record.bytes.count : 0))
    if record.kind == .lost { noteDrops(record.countLost) }
    let length = (open?.file.length ?? 0) + output.count
    if let most = settings.rotate, length >= most {
      close()  // the next event begins the next file
    } else if output.count >= Self.portion {
      flush()
    }
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
      buffer.counts.write(output.count)
    } catch {
      let written = (open?.file.length ?? 0) - before
      buffer.counts.write(written)
      for end in ends where end.place > written { buffer.counts.drop(end.data) }
      fail(error, at: open?.file.path ?? "")
    }
    empty()
    return open != nil
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
    open?.encoder.finishLine(to: &output)
    if flush() { reportDrops() }
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
    shown.withLock { $0 = CaptureState(path: path, error: error.description) }
    status.publish(.captureStopped(route: subject.route, path: path, error))
  }

  // MARK: - Lines under way

  /// A line that does not end is written after a while, so that the file is never far behind.
  private func watchLine() {
    guard lineTimer == nil, open?.encoder.hasUnfinishedLine == true else { return }
    let due = environment.clock.now() &+ Self.longestLine
    lineTimer = due
    environment.clock.run(due, queue) { [weak self] in
      guard let self, lineTimer == due else { return }
      lineTimer = nil
      drain()
      open?.encoder.finishLine(to: &output)
      flush()
    }
  }

  // MARK: - Drops

  private func noteDrops(_ count: UInt64) {
    unreportedDrops &+= count
    let now = environment.clock.now()
    if let last = dropsReportedAt, now &- last < Self.pauseOfDropLines { return }
    dropsReportedAt = now
    reportDrops()
  }

  private func reportDrops() {
    guard unreportedDrops > 0, let path = state.path else { return }
    status.publish(.captureDrops(route: subject.route, path: path, bytes: unreportedDrops))
    unreportedDrops = 0
  }
}
