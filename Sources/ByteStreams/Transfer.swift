// What one read or write did, and what to wait for before the next one. Every stream returns it. Expected results are
// values, so blocked and ended are never thrown.

/// What to wait for at a stream. A set, since reader and writer of one stream wait independently.
public struct Readiness: OptionSet, Hashable, Sendable {
  /// One bit for each case.
  public let rawValue: UInt8
  /// From those bits.
  public init(rawValue: UInt8) { self.rawValue = rawValue }

  /// A read can move bytes, or report the end.
  public static let readable = Readiness(rawValue: 1)
  /// A write can move bytes.
  public static let writable = Readiness(rawValue: 2)
}

/// What one read or write did.
public enum Transfer: Equatable, Sendable {
  /// A read: this many bytes are in the run. A write: this many are *taken*, and the stream is responsible for them
  /// from now on. Zero is legal (only a frame header was read): call again.
  case moved(Int)
  /// Nothing can move until the stream is ready; a TLS read may want to write.
  case blocked(until: Readiness)
  /// A read: the other side will send no more. A write: the stream takes no more.
  case ended
}
