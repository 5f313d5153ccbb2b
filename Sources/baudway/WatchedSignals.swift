// The signals that end, stop or resize a program that draws on a terminal. They are handled one by one, never during a
// drawing.

import ByteStreams
import Glibc

/// Make it before any other thread, since threads inherit the blocked signals.
struct WatchedSignals {
  private var set = sigset_t()

  init() {
    sigemptyset(&set)
    for number in [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH] { sigaddset(&set, number) }
    sigprocmask(SIG_BLOCK, &set, nil)
  }

  /// The next signal, or nil at `time`.
  func wait(until time: UInt64) -> Int32? {
    var set = set
    let now = monotonicNanoseconds()
    let left = time > now ? time - now : 0
    var limit = timespec(tv_sec: Int(left / 1_000_000_000), tv_nsec: Int(left % 1_000_000_000))
    let number = sigtimedwait(&set, nil, &limit)
    if number > 0 { return number }
    return errno == EINTR ? SIGWINCH : nil  // stopped and continued from outside: draw again
  }

  /// Stops the process, as the user of the terminal wants, until SIGCONT.
  func suspend() {
    var stop = sigset_t()
    sigemptyset(&stop)
    sigaddset(&stop, SIGTSTP)
    raise(SIGTSTP)
    sigprocmask(SIG_UNBLOCK, &stop, nil)
    sigprocmask(SIG_BLOCK, &stop, nil)
  }
}
