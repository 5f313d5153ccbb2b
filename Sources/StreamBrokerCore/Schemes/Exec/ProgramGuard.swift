// Ends programs if this process is killed: after SIGKILL nothing else would, and a restarted gateway would start each a
// second time. One small process guards all programs and starts with the first of them. When this process is gone, it
// kills their process groups.
//
// It does not end programs that leave their process group (daemons) or become another user (setuid). It can't act if it
// is killed together with this process, as by a service manager or at the end of a container. Those end the programs,
// too. Process 1 has no guard: its whole container ends with it. If this process has made copies of itself that live on
// without exec(2), the guard waits for those as well.

import ByteStreams
import CLinux
import Glibc
import Synchronization

final class ProgramGuard: Sendable {
  static let shared = ProgramGuard()

  // The bits are atomic, and the memory is never freed. Nil if there was none.
  nonisolated(unsafe) private let groups: UnsafeMutableRawPointer?
  private let pipe = Mutex<Descriptor?>(nil)

  init() { groups = linux_guard_groups() }

  /// Starts the guard if none is running and one is possible. Call it before a program is started, on a queue: it may
  /// take a millisecond.
  func start() throws(SystemError) {
    guard getpid() != 1 else { return }
    guard let groups else { throw SystemError("mmap", ENOMEM) }
    try pipe.withLock { pipe throws(SystemError) in
      if let raw = pipe?.raw, linux_guard_is_gone(raw) == 0 { return }
      let raw = linux_start_guard(groups)
      guard raw >= 0 else { throw SystemError("clone") }
      pipe = Descriptor(owning: raw)
    }
  }

  /// Adds the leader of a process group that has just been started.
  func add(_ group: pid_t) { if let groups { linux_guard_add(groups, group) } }

  /// The group is gone or was killed. Call it exactly once for each group: afterwards its number may belong to another
  /// one.
  func remove(_ group: pid_t) { if let groups { linux_guard_remove(groups, group) } }

  /// For tests.
  func knows(_ group: pid_t) -> Bool { groups.map { linux_guard_knows($0, group) != 0 } ?? false }
}
