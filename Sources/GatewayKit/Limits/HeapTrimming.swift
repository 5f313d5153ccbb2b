// Decides when freed memory is returned to the kernel. malloc(3) returns free memory only at the end of its heap: after
// 10,000 clients with TLS, 145 of 147 MB were free and still resident. malloc_trim(3) takes milliseconds, during which
// every allocation waits. So it runs after a wave of clients has disconnected, on a queue beside the lanes.

import Synchronization

/// Decides only; the owner has the timer. No timer runs while no client disconnects.
struct HeapTrimming {
  enum Verdict: Hashable { case trim, again }

  /// Time between two looks while a wave of clients disconnects.
  static let interval = Duration.seconds(5)
  /// The smallest wave: with fewer clients, too little memory becomes free.
  static let fewest: UInt64 = 64
  /// The wave is over when an interval adds at most one `part`-th of it. So a gateway whose clients connect and
  /// disconnect all the time trims about every `part` intervals.
  private static let part: UInt64 = 20

  private var gone: UInt64 = 0
  private var goneAtTrim: UInt64 = 0
  private var goneAtLook: UInt64 = 0
  private var isLooking = false

  /// `count` clients have disconnected since the start. Returns whether to call `look` after `interval`.
  mutating func haveLeft(_ count: UInt64) -> Bool {
    gone = max(gone, count)
    guard !isLooking, gone - goneAtTrim >= Self.fewest else { return false }
    isLooking = true
    goneAtLook = gone
    return true
  }

  mutating func look() -> Verdict {
    let news = gone - goneAtLook
    goneAtLook = gone
    guard news * Self.part <= gone - goneAtTrim else { return .again }
    goneAtTrim = gone
    isLooking = false
    return .trim
  }
}

/// Counts clients that have disconnected, on any lane.
final class Departures: Sendable {
  private let count = Atomic<UInt64>(0)
  // In a struct: Swift wraps a bare closure each time it goes in or out of a generic type, and stores it wrapped. After
  // a million clients a call went through 30,000 wrappers, which stayed in memory.
  private struct Listener {
    let hears: @Sendable (UInt64) -> Void
  }
  private let listener = Mutex<Listener?>(nil)
  /// The listener is called once per this many clients.
  private static let batch = HeapTrimming.fewest

  func whenMany(_ hears: @escaping @Sendable (UInt64) -> Void) { listener.withLock { $0 = Listener(hears: hears) } }

  func observe(_ event: StatusEvent) {
    guard case .sessionEnded = event else { return }
    let count = count.add(1, ordering: .relaxed).newValue
    if count % Self.batch == 0, let listener = listener.withLock({ $0 }) { listener.hears(count) }
  }
}
