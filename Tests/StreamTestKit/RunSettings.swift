// How thorough this run of the tests is.

import Glibc
import Testing

/// Whether this is `Tests/run --full`, which sets BAUDWAY_FULL: tests also assert how fast something is, and try more
/// cases. Otherwise they assert only what happens, since a machine may be slow and busy.
public let isFullRun = getenv("BAUDWAY_FULL") != nil

extension Trait where Self == ConditionTrait {
  /// For a test that a slow or busy machine fails: it measures real time, or sleeps so that something happens first.
  public static var timed: Self { .enabled(if: isFullRun, "measures real time: Tests/run --full") }

  /// For a test that spends seconds waiting for a time limit that no clock of tests reaches.
  public static var waits: Self { .enabled(if: isFullRun, "waits for seconds: Tests/run --full") }
}

/// Expects that less than `limit` nanoseconds passed, in a run that measures time.
public func expectQuick(_ passed: UInt64, _ limit: UInt64, sourceLocation: SourceLocation = #_sourceLocation) {
  #expect(passed < limit || !isFullRun, "\(passed) ns", sourceLocation: sourceLocation)
}
