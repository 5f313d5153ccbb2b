// What one read or write did, and what to wait for before the next. The answer every stream gives, whatever it is
// made of; expected things are values, so blocked and ended are never thrown.

/// What a stream can be waited for. A set, since reader and writer of one stream wait independently.
public struct Readiness: OptionSet, Hashable, Sendable {
  public let rawValue: UInt8
  public init(rawValue: UInt8) { self.rawValue = rawValue }

  public static let readable = Readiness(rawValue: 1)
  public static let writable = Readiness(rawValue: 2)
}

public enum Transfer: Equatable, Sendable {
  /// A read: so many bytes are in the run. A write: so many are *taken*, and the stream answers for them from now on.
  /// Zero is legal (a frame header was eaten): call again.
  case moved(Int)
  /// Nothing can move until the stream is ready; a TLS read may want to write.
  case blocked(until: Readiness)
  /// A read: the other side will send no more. A write: it takes no more.
  case ended
}
