// Log lines of opened sessions that LogLimiter holds back.

import Glibc

/// Holds opening lines until their sessions are old enough. Most sessions of a busy proxy end earlier.
struct DelayedOpenLines {
  private var held: [UInt64: (event: StatusEvent, time: timespec)] = [:]
  // In order of arrival; many of these sessions have ended already.
  private var order: [(number: UInt64, due: UInt64)] = []
  private var first = 0

  var count: Int { held.count }

  mutating func hold(_ number: UInt64, _ event: StatusEvent, _ time: timespec, until due: UInt64) {
    held[number] = (event, time)
    order.append((number, due))
  }

  /// Returns whether a line was held.
  mutating func drop(_ number: UInt64) -> Bool {
    guard held.removeValue(forKey: number) != nil else { return false }
    skipEnded()
    return true
  }

  /// Removes and returns the first line that is due.
  mutating func next(at now: UInt64) -> (StatusEvent, timespec)? {
    guard let due, now >= due else { return nil }
    let entry = held.removeValue(forKey: order[first].number)
    skipEnded()
    return entry.map { ($0.event, $0.time) }
  }

  var due: UInt64? { first < order.count ? order[first].due : nil }

  private mutating func skipEnded() {
    while first < order.count, held[order[first].number] == nil { first += 1 }
    if first == order.count {
      // A wave of clients would keep half a KiB for each.
      held.removeAll(keepingCapacity: held.capacity <= 1024)
      order.removeAll(keepingCapacity: order.capacity <= 1024)
      first = 0
    } else if first >= 1024, first * 2 >= order.count {
      order.removeFirst(first)
      first = 0
    }
  }
}
