// The latest events, for the event streams of the admin listener. Lanes only append an event to a bounded list; text is
// made on the control lane, once for all streams, and only of the events that one of them reads.

import ByteStreams
import Glibc
import Logging
import Synchronization

/// Lives on the control lane.
final class EventLog {
  /// A class: its text is made when it is first asked for, since texts of a thousand events would hold the lane.
  final class Entry {
    let number: UInt64
    /// Nil once it has become text.
    private(set) var raw: EventNews.Raw?
    private lazy var text = makeText()

    init(_ raw: EventNews.Raw) {
      number = raw.number
      self.raw = raw
    }

    /// Nil for an event that belongs to no route.
    var route: String? { text.route }
    var event: String { text.event }
    /// As the log has it in JSON, without the line end.
    var line: String { text.line }

    private func makeText() -> (route: String?, event: String, line: String) {
      guard let raw else { return (nil, "", "") }  // it is called once
      self.raw = nil
      let line = LogLine(raw.event)
      var bytes: [UInt8] = []
      LineLogHandler.json(LogTime.text(raw.time), line, to: &bytes)
      var route: String?
      for case ("route", .text(let name)) in line.fields { route = name }
      return (route, line.event, String(decoding: bytes.dropLast(), as: UTF8.self))
    }
  }

  /// Events that are kept for streams that are behind, or that reconnect.
  static let most = 1000

  /// Tells events of this gateway from those of an earlier one: the time of its start.
  let epoch: String
  private let news = EventNews(most: most)
  private var entries: [Entry] = []
  private var observation: StatusObservation?
  /// Streams that wait for an event, by identity, and those whose turn it is.
  private var waiting: [ObjectIdentifier: () -> Void] = [:]
  private var due: [() -> Void] = []
  private let poller: Poller

  init(on home: Lane, _ poller: Poller, _ status: StatusSink) {
    self.poller = poller
    var now = timespec()
    clock_gettime(CLOCK_REALTIME, &now)
    epoch = String(UInt64(now.tv_sec) << 20 | UInt64(now.tv_nsec / 1000), radix: 36)
    let me = LaneRef(WeakEventLog(self), on: home)
    observation = status.observe { [news] event in
      if news.take(event) { me.post { _, me in me.log?.wake() } }
    }
  }

  /// The reference from the observer must not keep the log.
  private final class WeakEventLog {
    weak var log: EventLog?
    init(_ log: EventLog) { self.log = log }
  }

  /// The number of the newest event.
  var newest: UInt64 { news.newest }

  /// Tells the event from all others of this gateway and of earlier ones.
  func id(of entry: Entry) -> String { "\(epoch)-\(entry.number)" }

  /// At most `limit` of the latest events for which `isMeant` is true, in order.
  func latest(_ limit: Int, where isMeant: (Entry) -> Bool) -> [Entry] {
    drain()
    return entries.reversed().lazy.filter(isMeant).prefix(limit).reversed()
  }

  private func drain() {
    entries += news.drain().map(Entry.init)
    if entries.count > Self.most { entries.removeFirst(entries.count - Self.most) }
  }

  /// At most `limit` events after `number`. Some may be missing: the lists are bounded.
  func events(after number: UInt64, atMost limit: Int) -> ArraySlice<Entry> {
    drain()
    let first = entries.partitioningIndex { $0.number > number }
    return entries[first...].prefix(limit)
  }

  /// Calls `done` once, when there is an event after `number`, maybe at once. A stream waits once at a time.
  func wait(after number: UInt64, for stream: EventStream, _ done: @escaping () -> Void) {
    waiting[ObjectIdentifier(stream)] = done
    if news.await(after: number) { wake() }
  }

  /// Call it when the stream ends.
  func forget(_ stream: ObjectIdentifier) { waiting[stream] = nil }

  // Each writes to a socket.
  private static let wakesAtOnce = 64

  private func wake() {
    let isRunning = !due.isEmpty
    due += waiting.values
    waiting = [:]
    if !isRunning { wakeSome() }
  }

  private func wakeSome() {
    let now = due.prefix(Self.wakesAtOnce)
    for done in now { done() }
    due.removeFirst(now.count)
    if !due.isEmpty { poller.timers.after(.zero) { [weak self] in self?.wakeSome() } }
  }
}

/// Events that have no text yet. Any thread may use it.
final class EventNews: Sendable {
  struct Raw: Sendable {
    let number: UInt64
    let time: timespec
    let event: StatusEvent
  }

  private struct State {
    /// The newest ones; a ring once it is full.
    var events: [Raw] = []
    var oldest = 0
    var newest: UInt64 = 0
    /// The next event is awaited.
    var isAwaited = false
  }

  private let state = Mutex(State())
  private let most: Int

  init(most: Int) { self.most = most }

  var newest: UInt64 { state.withLock { $0.newest } }

  /// Returns whether the event is awaited.
  func take(_ event: StatusEvent) -> Bool {
    guard LogLine.level(of: event) >= .info else { return false }
    var time = timespec()
    clock_gettime(CLOCK_REALTIME, &time)
    return state.withLock { state in
      state.newest += 1
      let raw = Raw(number: state.newest, time: time, event: event)
      if state.events.count < most {
        state.events.append(raw)
      } else {
        state.events[state.oldest] = raw
        state.oldest = (state.oldest + 1) % most
      }
      defer { state.isAwaited = false }
      return state.isAwaited
    }
  }

  /// All events since the last call that are still there, in order.
  func drain() -> [Raw] {
    state.withLock { state in
      let events = Array(state.events[state.oldest...] + state.events[..<state.oldest])
      state.events = []
      state.oldest = 0
      return events
    }
  }

  /// From now on the next event is awaited. Returns whether there is one after `number` already.
  func await(after number: UInt64) -> Bool {
    state.withLock { state in
      if state.newest > number { return true }
      state.isAwaited = true
      return false
    }
  }
}

extension Array {
  /// The index of the first element for which `isRight` is true; it is true for all after that.
  fileprivate func partitioningIndex(where isRight: (Element) -> Bool) -> Int {
    var (low, high) = (startIndex, endIndex)
    while low < high {
      let middle = (low + high) / 2
      if isRight(self[middle]) { high = middle } else { low = middle + 1 }
    }
    return low
  }
}
