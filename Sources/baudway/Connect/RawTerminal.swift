// The user's terminal in raw mode, given back whatever happens: at an end of our own, at a signal, at a crash. (Nothing helps
// against SIGKILL.)

import Glibc

enum RawTerminal {
  // Read by handlers of signals, which may come at any moment on any thread: set before they are installed, never changed after.
  private nonisolated(unsafe) static var before = termios()
  private nonisolated(unsafe) static var isRaw = false

  /// What a fault in this program ends in.
  private static let fatal = [SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE, SIGABRT]

  /// Makes standard input raw: each key is a byte for the endpoint, Ctrl-C too. Once per process, again after `leave()`.
  static func enter() {
    if !isRaw {
      guard tcgetattr(STDIN_FILENO, &before) == 0 else { return }
      isRaw = true
      signal(SIGTTOU, SIG_IGN)  // or who gives it back from the background would be stopped
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

  /// Raw again, if it was: whoever stopped this program has set the terminal to what he likes.
  static func comeBack() { if isRaw { enter() } }

  /// Gives the terminal back as it was. Does nothing when it was not raw. Safe in handlers of signals (signal-safety(7)).
  static func leave() {
    if isRaw { tcsetattr(STDIN_FILENO, TCSANOW, &before) }
  }
}
