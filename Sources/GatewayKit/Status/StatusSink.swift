// Where events go, from any lane: the face between those who tell and those who listen.

import Synchronization

/// Hands each event to all observers, in the order they were given, on the thread where it happens. An observer must be
/// quick and must not block: a lane, and every byte on it, waits for it. What takes time (formatting, writing) belongs on a
/// queue of the observer's own, with a bound, as StatusLog does it. Events of one lane come in their order; those of
/// different lanes may come at the same moment, on different threads.
///
/// When nobody listens, events are not even made.
public struct StatusSink: Sendable {
  public typealias Observer = @Sendable (StatusEvent) -> Void

  /// Those who listen from beginning to end: asked without a lock.
  let observers: [Observer]
  private let guests: Guests

  public init(_ observers: [Observer] = []) { self.init(observers, Guests()) }

  private init(_ observers: [Observer], _ guests: Guests) {
    self.observers = observers
    self.guests = guests
  }

  /// The same, with one observer more.
  func adding(_ observer: @escaping Observer) -> StatusSink { StatusSink(observers + [observer], guests) }

  /// For one who comes and goes, such as a reader of an event stream. He hears what happens from here on, as long as the
  /// answer is kept; a call that is under way on another thread at the end may still come.
  public func observe(_ observer: @escaping Observer) -> StatusObservation {
    StatusObservation(guests, guests.add(observer))
  }

  public func tell(_ event: @autoclosure () -> StatusEvent) {
    let hasGuests = guests.isAnybodyThere.load(ordering: .relaxed)
    guard hasGuests || !observers.isEmpty else { return }
    let event = event()
    for observe in observers { observe(event) }
    if hasGuests { for observe in guests.all { observe(event) } }
  }
}

/// Ends the observation with itself.
public final class StatusObservation: Sendable {
  private let guests: Guests
  private let number: UInt64

  fileprivate init(_ guests: Guests, _ number: UInt64) {
    self.guests = guests
    self.number = number
  }

  deinit { guests.remove(number) }
}

private final class Guests: Sendable {
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
