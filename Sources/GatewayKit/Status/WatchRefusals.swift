// Reports once for all lanes that the kernel refuses to watch files.

import ByteStreams
import Synchronization

/// Used on all lanes.
final class WatchRefusals: Sendable {
  private let status: StatusSink
  /// How many lanes have refusals, and of which limits.
  private let state = Mutex((lanes: 0, limits: Set<InotifyRefusal.Limit?>()))

  init(_ status: StatusSink) { self.status = status }

  /// Call it on the lane of `inotify`.
  func observe(_ inotify: Inotify) {
    inotify.refuses = { [self] refusal in
      let isNew = state.withLock { state in
        state.lanes += 1
        return state.limits.insert(refusal.limit).inserted
      }
      if isNew { status.publish(.watchesRefused(refusal)) }
    }
    inotify.watchesAgain = { [self] in
      let isLast = state.withLock { state in
        state.lanes -= 1
        if state.lanes == 0 { state.limits = [] }
        return state.lanes == 0
      }
      if isLast { status.publish(.watchesRestored) }
    }
  }
}
