// Who may still have descriptors when few are left: devices that are to be opened, the control socket, and the first client of a
// route come before one more client of a route that has some.

import StreamBroker
import Synchronization

/// Asked from all lanes. The kernel gives out the lowest free number, so a client whose number is below `limit` − reserved leaves
/// at least what is reserved to others: no table and no call is needed to know.
final class DescriptorBudget: Sendable {
  private let reserved: Atomic<Int>
  private let isOn = Atomic(true)
  /// RLIMIT_NOFILE.
  let limit: Int

  /// For conversations at the control socket, and files that are read at a reload.
  static let standing = 16

  init(limit: Int = .max, standing: Int = 0) {
    self.limit = limit
    reserved = Atomic(standing)
  }

  /// Keeps `count` of them until the answer is given up.
  func reserve(_ count: Int) -> DescriptorReservation { DescriptorReservation(count, of: self) }

  /// Whether anything is reserved, as `limits.reserve-descriptors` says.
  func set(isOn: Bool) { self.isOn.store(isOn, ordering: .relaxed) }

  /// Whether a client with this descriptor may stay, where it is not the first of its route.
  func admits(_ raw: Int32) -> Bool {
    Int(raw) < limit - reserved.load(ordering: .relaxed) || !isOn.load(ordering: .relaxed)
  }

  fileprivate func add(_ count: Int) { reserved.add(count, ordering: .relaxed) }
}

/// Ends with itself: give it up once the descriptors are open, or nobody needs them any more.
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

/// Why a client does not get in although its route has a place.
struct DescriptorShortage: CountedRefusal, CustomStringConvertible {
  var counter: String? { "descriptors" }
  var description: String {
    "the descriptors that are left are for devices and for routes without a client ('limits.reserve-descriptors'); raise the "
      + "limit of open files"
  }
}

extension EndpointURL {
  /// The most descriptors it takes to open it, and to have it open.
  var descriptorsNeeded: Int {
    switch scheme {
    case "sim": 0
    case "unix": 1
    case "tcp", "tls", "ws", "wss": 2  // two addresses are tried side by side
    case "tty": 4  // the port, its lock file, the bell of its modem lines
    case "exec": 7  // a socket pair, a pipe, a pidfd, and what the new process is given
    default: 5
    }
  }
}
