// A mistake of ours on the byte path, as a value. It ends one session or link, as `internal`; a trap would end the
// process and so every route. Rings and streams throw it; the owner of the session or link logs it.

/// Reports a state that our own code must never produce.
public struct InternalFault: Error, Hashable, CustomStringConvertible {
  /// A short name of the place in the code, such as "ring.look". All faults found there have the same name.
  public let location: String
  /// What was found.
  public let text: String

  // Not inlined: code that builds texts stays out of the byte path.
  @inline(never)
  package init(_ location: StaticString, _ text: @autoclosure () -> String) {
    self.location = "\(location)"
    self.text = text()
  }

  public var description: String { "\(location): \(text)" }
}

extension Transfer {
  /// Returns `self` if its count is possible for a call that was offered `offered` bytes. A stream that reports a
  /// larger or a negative count is broken, and using the count would trap. For code that calls streams itself; a ring
  /// checks its own fills and drains.
  @inline(__always)
  public func checked(of offered: Int, at location: StaticString) throws(InternalFault) -> Transfer {
    if case .moved(let count) = self, count < 0 || count > offered {
      throw .miscounted(count, of: offered, at: location)
    }
    return self
  }
}

extension InternalFault {
  /// A stream reported `count` bytes moved of `offered`, which is impossible.
  @inline(never)
  package static func miscounted(_ count: Int, of offered: Int, at location: StaticString) -> InternalFault {
    InternalFault(location, "a stream has moved \(count) bytes of \(offered)")
  }
}
