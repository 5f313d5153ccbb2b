// How a program that we started ended, in words for people. A value.

import CLinux

/// How a program of an `exec:` URL ended: the error of a stream whose program failed.
public struct ProgramEnd: Error, Hashable, Sendable {
  /// The program's path.
  public let program: String
  /// How it ended.
  public let how: How

  /// As waitpid(2) reports it.
  public enum How: Hashable, Sendable {
    /// It exited with this status, 0 to 255.
    case exited(status: Int32)
    /// A signal killed it.
    case killed(signal: Int32)
    /// Other code in this process has reaped it, or SIGCHLD is ignored, and the kernel is older than Linux 6.15.
    case unknown
  }

  /// It exited with status 0.
  public var isSuccess: Bool { how == .exited(status: 0) }
}

extension ProgramEnd: CustomStringConvertible {
  /// "/usr/bin/prog exited with status 3", "/usr/bin/prog was killed by SIGSEGV"
  public var description: String {
    switch how {
    case .exited(let status): "\(program) exited with status \(status)"
    case .unknown: "\(program) ended with unknown status: SIGCHLD is ignored, or other code has waited for it"
    case .killed(let signal):
      "\(program) was killed by \(linux_signal_name(signal).map { "SIG\(String(cString: $0))" } ?? "signal \(signal)")"
    }
  }
}
