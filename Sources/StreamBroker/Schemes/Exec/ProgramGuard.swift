// Ends programs when this process can't any more: after SIGKILL nobody would, and its successor would start each a second time. One
// small process for all programs, started with the first; it kills their process groups when this process has gone.
//
// It can't help: programs that leave their process group (daemons) or become another user (setuid), and programs that it is killed with,
// as by a service manager or the end of a container, which end these, too. A process 1 has none: all of its container ends with it.
// Where the process has made copies of itself that live on without exec(2), it waits for those.

import ByteStreams
import CLinux
import Glibc
import Synchronization

final class ProgramGuard: Sendable {
  static let shared = ProgramGuard()

  // The bits are atomic, and the memory stays for good. Nil when there was none to be had.
  nonisolated(unsafe) private let groups: UnsafeMutableRawPointer?
  private let pipe = Mutex<Descriptor?>(nil)

  init() { groups = linux_guard_groups() }

  /// Has a guard running, if that can be. To be called before a program is started, where it may take a millisecond.
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

  /// The leader of a process group that has just been started.
  func add(_ group: pid_t) { if let groups { linux_guard_add(groups, group) } }

  /// The group is gone, or was killed. Exactly once for each that was added: afterwards its number may be another's.
  func remove(_ group: pid_t) { if let groups { linux_guard_remove(groups, group) } }

  /// For tests.
  func knows(_ group: pid_t) -> Bool { groups.map { linux_guard_knows($0, group) != 0 } ?? false }
}
