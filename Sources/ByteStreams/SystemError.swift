// A failed system call and its errno. Typed throws carry it up; only the top floor makes a sentence of it.

import CLinux
import Glibc

public struct SystemError: Error, Hashable, Sendable {
  /// The call's name in its man page: "bind".
  public let call: String
  public let errno: Int32

  public init(_ call: String, _ errno: Int32) {
    self.call = call
    self.errno = errno
  }

  /// Takes the errno the call has just left. Use it before anything else can change it.
  public init(_ call: String) { self.init(call, Glibc.errno) }

  /// "EADDRINUSE", or "errno 4711" for one that has no name here.
  public var name: String {
    linux_errno_name(errno).map { String(cString: $0) } ?? "errno \(errno)"
  }

  /// The driver knows no such call: ENOTTY, and some drivers say EINVAL.
  public var meansNoSuchThing: Bool { errno == ENOTTY || errno == EINVAL }

  /// "Address already in use"
  public var text: String { String(cString: linux_errno_text(errno)) }
}

extension SystemError: CustomStringConvertible {
  public var description: String { "\(call): \(text) (\(name))" }
}
