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
