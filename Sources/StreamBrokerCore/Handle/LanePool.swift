// The lanes of streams that tasks use. Made when the first streams are opened, and kept. An idle lane wakes up for
// nothing.

import ByteStreams
import Glibc
import Synchronization

package enum LanePool {
  /// A lane moves more than a gigabyte a second, so a few are enough.
  static let most = max(1, min(4, sysconf(Int32(_SC_NPROCESSORS_ONLN))))

  private struct State {
    var lanes: [Lane] = []
    var next = 0
  }
  private static let state = Mutex(State())

  /// The lane for the next stream. Throws when the process is out of descriptors.
  package static func next() throws(SystemError) -> Lane {
    try state.withLock { state throws(SystemError) in
      if state.lanes.count < most { state.lanes.append(try Lane("streams \(state.lanes.count + 1)")) }
      defer { state.next += 1 }
      return state.lanes[state.next % state.lanes.count]
    }
  }
}
