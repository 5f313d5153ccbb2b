// Where the blocking calls on one device run: a serial queue that all who name the device share, so that one hung driver
// stops nobody else, and so that what opens a device queues behind what closes it.

import Dispatch
import Synchronization

public final class DeviceQueue: Sendable {
  public let queue: DispatchQueue
  private let name: String
  private let attempts = Mutex(0)
  // One that may hang in the driver, given up long ago, and one behind it. More would only pile up.
  private static let mostAttempts = 2

  private struct Entry {
    weak var queue: DeviceQueue?
  }
  private static let queues = Mutex<[String: Entry]>([:])

  /// The queue of that name. One for all connectors of a device, so that what a new configuration opens queues behind what
  /// the old one closes, and does not find its own port in use.
  public static func of(_ name: String) -> DeviceQueue {
    queues.withLock { queues in
      if let queue = queues[name]?.queue { return queue }
      let queue = DeviceQueue(name)
      queues[name] = Entry(queue: queue)
      return queue
    }
  }

  /// One that nobody else finds.
  init(_ name: String) {
    self.name = name
    queue = DispatchQueue(label: name)
  }

  deinit {
    Self.queues.withLock { queues in
      if let entry = queues[name], entry.queue == nil { queues[name] = nil }
    }
  }

  /// Counts an attempt to open. False when too many hang already; else `leave` when it is over.
  func admit() -> Bool {
    attempts.withLock { count in
      guard count < Self.mostAttempts else { return false }
      count += 1
      return true
    }
  }

  func leave() { attempts.withLock { $0 -= 1 } }
}
