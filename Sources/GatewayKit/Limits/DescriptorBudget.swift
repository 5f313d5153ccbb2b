// Reserves the last descriptors: for opening devices, for the control socket, and for the first client of a route. When
// descriptors run short, further clients of a route are refused first.

import StreamBroker
import Synchronization

/// Used on all lanes. The kernel assigns the lowest free number. So a client whose number is below `limit` − reserved
/// leaves at least the reserved descriptors free. Checking that needs no table and no system call.
final class DescriptorBudget: Sendable {
  private let reserved: Atomic<Int>
  private let isOn = Atomic(true)
  /// RLIMIT_NOFILE.
  let limit: Int

  /// Reserved for connections to the control socket, and for files read at a reload.
  static let standing = 16

  init(limit: Int = .max, standing: Int = 0) {
    self.limit = limit
    reserved = Atomic(standing)
  }

  /// Reserves `count` descriptors until the result is freed.
  func reserve(_ count: Int) -> DescriptorReservation { DescriptorReservation(count, of: self) }

  /// Switches reserving on or off (`limits.reserve-descriptors`).
  func set(isOn: Bool) { self.isOn.store(isOn, ordering: .relaxed) }

  /// Whether a client with this descriptor may stay. Do not ask this for the first client of a route.
  func admits(_ raw: Int32) -> Bool {
    Int(raw) < limit - reserved.load(ordering: .relaxed) || !isOn.load(ordering: .relaxed)
  }

  fileprivate func add(_ count: Int) { reserved.add(count, ordering: .relaxed) }
}

/// Freeing it ends the reservation: free it once the descriptors are open or no longer needed.
final class DescriptorReservation: Sendable {
  private let count: Int
  private let budget: DescriptorBudget

  fileprivate init(_ count: Int, of budget: DescriptorBudget) {
    self.count = count
    self.budget = budget
    budget.add(count)
  }

  deinit { budget.add(-count) }
}

/// Why a client is refused although its route has a free slot.
struct DescriptorShortage: CountedRefusal, CustomStringConvertible {
  var counter: String? { "descriptors" }
  var description: String {
    "the last descriptors are reserved for devices and for routes without a client ('limits.reserve-descriptors'); raise the "
      + "limit of open files"
  }
}

extension EndpointURL {
  /// The most descriptors that this endpoint needs, to open it and while it is open.
  var descriptorsNeeded: Int {
    switch scheme {
    case "sim": 0
    case "unix": 1
    case "tcp", "tls", "ws", "wss", "rfc2217", "rfc2217s", "telnet": 2  // two addresses are tried in parallel
    case "tty": 4  // the port, its lock file, the eventfd of its modem lines
    case "exec": 7  // a socket pair, a pipe, a pidfd, and the new process's own ends
    default: 5
    }
  }
}
