// How a program that we had started ended, in words for people. A value.

import CLinux

public struct ProgramEnd: Error, Hashable, Sendable {
  /// The program's path.
  public let program: String
  public let how: How

  public enum How: Hashable, Sendable {
    case exited(status: Int32)
    case killed(signal: Int32)
    /// Another part of this process has reaped it, or SIGCHLD is ignored, and the kernel is older than Linux 6.15.
    case unknown
  }

  public var isSuccess: Bool { how == .exited(status: 0) }
}

extension ProgramEnd: CustomStringConvertible {
  /// "/usr/bin/prog exited with status 3", "/usr/bin/prog was killed by SIGSEGV"
  public var description: String {
    switch how {
    case .exited(let status): "\(program) exited with status \(status)"
    case .unknown: "\(program) ended; how is unknown, as SIGCHLD is ignored here or another has waited for it"
    case .killed(let signal):
      "\(program) was killed by \(linux_signal_name(signal).map { "SIG\(String(cString: $0))" } ?? "signal \(signal)")"
    }
  }
}
