// Passes events from any lane to all observers.

import Synchronization

/// Calls all observers with each event, in the order they were added, on the thread where it happens. An observer must
/// be quick and must not block: the lane, and every byte on it, waits for it. Slow work (formatting, writing) belongs
/// on a bounded queue of the observer's own, as in StatusLog. Events of one lane come in order; those of different
/// lanes may come at the same time, on different threads.
///
/// Without observers, events are not even made.
package struct StatusSink: Sendable {
  package typealias Observer = @Sendable (StatusEvent) -> Void

  /// Permanent observers, read without a lock.
  let observers: [Observer]
  private let temporary: TemporaryObservers

  package init(_ observers: [Observer] = []) { self.init(observers, TemporaryObservers()) }

  private init(_ observers: [Observer], _ temporary: TemporaryObservers) {
    self.observers = observers
    self.temporary = temporary
  }

  /// A copy with one more observer.
  func adding(_ observer: @escaping Observer) -> StatusSink { StatusSink(observers + [observer], temporary) }

  /// Adds a temporary observer, such as a reader of an event stream. It is called for events from now on, as long as
  /// the result is kept. A call on another thread may still be running when that ends.
  package func observe(_ observer: @escaping Observer) -> StatusObservation {
    StatusObservation(temporary, temporary.add(observer))
  }

  package func publish(_ event: @autoclosure () -> StatusEvent) {
    let hasTemporary = temporary.isAnybodyThere.load(ordering: .relaxed)
    guard hasTemporary || !observers.isEmpty else { return }
    let event = event()
    for observe in observers { observe(event) }
    if hasTemporary { for observe in temporary.all { observe(event) } }
  }
}

/// Ends the observation when it is released.
package final class StatusObservation: Sendable {
  private let temporary: TemporaryObservers
  private let number: UInt64

  fileprivate init(_ temporary: TemporaryObservers, _ number: UInt64) {
    self.temporary = temporary
    self.number = number
  }

  deinit { temporary.remove(number) }
}

private final class TemporaryObservers: Sendable {
  private struct Book {
    var entries: [(number: UInt64, observer: StatusSink.Observer)] = []
    var last: UInt64 = 0
  }

  private let book = Mutex(Book())
  let isAnybodyThere = Atomic<Bool>(false)

  var all: [StatusSink.Observer] { book.withLock { $0.entries.map(\.observer) } }

  func add(_ observer: @escaping StatusSink.Observer) -> UInt64 {
    book.withLock { book in
      book.last += 1
      book.entries.append((book.last, observer))
      isAnybodyThere.store(true, ordering: .relaxed)
      return book.last
    }
  }

  func remove(_ number: UInt64) {
    book.withLock { book in
      book.entries.removeAll { $0.number == number }
      isAnybodyThere.store(!book.entries.isEmpty, ordering: .relaxed)
    }
  }
}
