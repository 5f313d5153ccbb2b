// Devices that handles of this process are closing. A program that closes a port and opens it again must not find it in
// use by itself, although close() returns at once.

import Synchronization

enum ClosingDevices {
  private struct Entry {
    var count = 0
    var waiters: [@Sendable () -> Void] = []
  }
  private static let state = Mutex<[String: Entry]>([:])

  /// A handle begins to close `device`.
  static func begin(_ device: String) { state.withLock { $0[device, default: Entry()].count += 1 } }

  /// A handle has closed `device`.
  static func end(_ device: String) {
    let waiters = state.withLock { state -> [@Sendable () -> Void] in
      guard var entry = state[device] else { return [] }
      entry.count -= 1
      state[device] = entry.count > 0 ? entry : nil
      return entry.count > 0 ? [] : entry.waiters
    }
    for waiter in waiters { waiter() }
  }

  /// Whether `device` is being closed; if it is, `call` is called once it is free, on any thread.
  static func wait(for device: String, _ call: @escaping @Sendable () -> Void) -> Bool {
    state.withLock { state in
      state[device]?.waiters.append(call)
      return state[device] != nil
    }
  }
}
