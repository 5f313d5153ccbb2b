// A mistake of ours on the path of bytes, as a value. It costs one session or link, which ends as `internal`, and not the
// process: a trap would end every route. Rings and streams throw it; who keeps the session or link logs it.

/// Says that something is so which our own code must never let happen.
public struct InternalFault: Error, Hashable, CustomStringConvertible {
  /// A short name of the place in the code: "ring.look". The same for all faults found there.
  public let place: String
  public let text: String

  // Not inlined: what makes the texts has no place among the code that bytes go through.
  @inline(never)
  public init(_ place: StaticString, _ text: @autoclosure () -> String) {
    self.place = "\(place)"
    self.text = text()
  }

  public var description: String { "\(place): \(text)" }
}

extension Transfer {
  /// The same, if it can be true of a call that was offered so many bytes. A stream that reports another count, or a negative one, is
  /// broken; to go on with the count would trap. For callers that use it; what a ring is filled or drained by it checks itself.
  @inline(__always)
  public func checked(of offered: Int, at place: StaticString) throws(InternalFault) -> Transfer {
    if case .moved(let count) = self, count < 0 || count > offered { throw .miscounted(count, of: offered, at: place) }
    return self
  }
}

extension InternalFault {
  /// A stream says that it has moved `count` bytes of `offered`, which can't be.
  @inline(never)
  public static func miscounted(_ count: Int, of offered: Int, at place: StaticString) -> InternalFault {
    InternalFault(place, "a stream has moved \(count) bytes of \(offered)")
  }
}
