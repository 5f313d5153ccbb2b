// How this run of the tests goes: whether it measures time.

import Glibc
import Testing

/// Whether tests also assert how fast something is. `Tests/run --full` sets BAUDWAY_FULL. Otherwise they assert only what
/// happens: a machine may be slow and busy.
public let measuresTime = getenv("BAUDWAY_FULL") != nil

extension Trait where Self == ConditionTrait {
  /// For a test that a slow or busy machine fails: it measures real time, or sleeps so that something happens first.
  public static var timed: Self { .enabled(if: measuresTime, "measures real time: Tests/run --full") }
}

/// Expects that less than `limit` nanoseconds passed, in a run that measures time.
public func expectQuick(_ passed: UInt64, _ limit: UInt64, sourceLocation: SourceLocation = #_sourceLocation) {
  #expect(passed < limit || !measuresTime, "\(passed) ns", sourceLocation: sourceLocation)
}
