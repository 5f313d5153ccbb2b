// Reaps the processes that programs leave behind, where this process is process 1, as in its container image: the
// kernel gives them to process 1, and they stay zombies until it reaps them. The programs themselves are reaped by
// `ExecProcess`, which needs to know how they ended.

import ByteStreams
import CLinux
import Dispatch
import Glibc
import Synchronization

package final class Orphans: Sendable {
  package static let shared = Orphans()

  private struct State {
    /// Programs that `ExecProcess` reaps.
    var programs: Set<pid_t> = []
    /// Programs that are being started, whose numbers are not known yet.
    var starting = 0
    var isOn = false
    var looksAgain = false
  }
  private let state = Mutex(State())
  private let queue = DispatchQueue(label: "orphans")
  private static let pause = DispatchTimeInterval.milliseconds(5)

  /// Reaps what has ended so far. Call it for each SIGCHLD of a process that has to reap orphans, and once before.
  package func reap() {
    state.withLock { $0.isOn = true }
    queue.async { [self] in look() }
  }

  /// Starts a program, which is not reaped here.
  func starting(_ spawn: () throws(SystemError) -> pid_t) throws(SystemError) -> pid_t {
    state.withLock { $0.starting += 1 }
    do throws(SystemError) {
      let pid = try spawn()
      state.withLock { state in
        state.starting -= 1
        state.programs.insert(pid)
      }
      return pid
    } catch {
      state.withLock { $0.starting -= 1 }
      throw error
    }
  }

  /// A program was reaped. Call it right after that, before its number is given to another process.
  func isReaped(_ pid: pid_t) { state.withLock { _ = $0.programs.remove(pid) } }

  private func look() {
    let isLeft = state.withLock { state -> Bool in
      guard state.isOn else { return false }
      state.looksAgain = false
      guard state.starting == 0 else { return true }
      while true {
        let pid = linux_ended_child()
        guard pid > 0 else { return false }
        // The kernel names one child at a time: others are seen when the program's lane has reaped it.
        if state.programs.contains(pid) { return true }
        var status: Int32 = 0
        var signal: Int32 = 0
        if linux_reap(pid, &status, &signal) < 0 { return false }
      }
    }
    guard isLeft else { return }
    let isFirst = state.withLock { state in
      defer { state.looksAgain = true }
      return !state.looksAgain
    }
    guard isFirst else { return }
    queue.asyncAfter(deadline: .now() + Self.pause) { [self] in look() }
  }
}
