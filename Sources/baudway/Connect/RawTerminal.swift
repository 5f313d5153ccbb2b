// The user's terminal in raw mode, restored at a normal end, at a signal and at a crash. (After SIGKILL it is not.)

import Glibc

enum RawTerminal {
  // Signal handlers read these at any moment on any thread: set before the handlers are installed, never changed after.
  private nonisolated(unsafe) static var before = termios()
  private nonisolated(unsafe) static var isRaw = false

  /// The signals of a crash.
  private static let fatal = [SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE, SIGABRT]

  /// Makes standard input raw: each key is a byte for the endpoint, Ctrl-C too. Once per process, and again after
  /// `leave()`.
  static func enter() {
    if !isRaw {
      guard tcgetattr(STDIN_FILENO, &before) == 0 else { return }
      isRaw = true
      signal(SIGTTOU, SIG_IGN)  // else restoring from the background would stop us
      for number in fatal {
        signal(number) { number in
          RawTerminal.leave()
          signal(number, SIG_DFL)
          raise(number)
        }
      }
    }
    var raw = before
    cfmakeraw(&raw)
    tcsetattr(STDIN_FILENO, TCSADRAIN, &raw)
  }

  /// Sets raw mode again, if it was set: the shell has changed the terminal while this program was stopped.
  static func comeBack() { if isRaw { enter() } }

  /// Restores the terminal. Does nothing when it was not raw. Safe in signal handlers (signal-safety(7)).
  static func leave() {
    if isRaw { tcsetattr(STDIN_FILENO, TCSANOW, &before) }
  }
}
