// A failed system call and its errno. Typed throws carry it up; only the top floor turns it into a sentence.

import CLinux
import Glibc

/// A failed system call, with its errno(3). Time-outs of this library are ETIMEDOUT, and a call on a closed stream
/// fails with EPIPE.
/// ```swift
/// let error = SystemError("open", 2)
/// print(error.call, error.name)  // open ENOENT
/// print(error)                   // open: No such file or directory (ENOENT)
/// ```
public struct SystemError: Error, Hashable, Sendable {
  /// The call's name in its man page: "bind".
  public let call: String
  /// The number, as in errno(3).
  public let errno: Int32

  /// The failure of `call` with this number.
  public init(_ call: String, _ errno: Int32) {
    self.call = call
    self.errno = errno
  }

  /// Reads the errno that the call has just set. Use it before anything else can change it.
  public init(_ call: String) { self.init(call, Glibc.errno) }

  /// "EADDRINUSE", or "errno 4711" for a number without a name.
  public var name: String {
    linux_errno_name(errno).map { String(cString: $0) } ?? "errno \(errno)"
  }

  /// The driver does not support the call: ENOTTY, from some drivers EINVAL.
  public var isUnsupported: Bool { errno == ENOTTY || errno == EINVAL }

  /// "Address already in use"
  public var text: String { String(cString: linux_errno_text(errno)) }
}

extension SystemError: CustomStringConvertible {
  /// "bind: Address already in use (EADDRINUSE)"
  public var description: String { "\(call): \(text) (\(name))" }
}
