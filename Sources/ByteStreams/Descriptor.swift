// The one owner of a file descriptor. It can't be copied, and its end of life is close(2), so a leak or a
// double close does not compile.

import Glibc
import Synchronization

public struct Descriptor: ~Copyable, Sendable {
  public let raw: Int32

  /// Takes over `raw`, which must be open and owned by nobody else.
  public init(owning raw: Int32) {
    precondition(raw >= 0)
    self.raw = raw
  }

  /// Ends the ownership and closes nothing, for a number that is found to be somebody else's.
  public consuming func disown() { discard self }

  deinit { _ = Glibc.close(raw) }
}

/// Carries a descriptor through places that can hold copyable values only, such as a closure on its way to a lane.
/// Whoever takes first owns it; if nobody does, it closes with the parcel.
public final class DescriptorParcel: Sendable {
  private let content: Mutex<Descriptor?>

  public init(_ descriptor: consuming Descriptor) { content = Mutex(descriptor) }

  /// Nil when somebody took it before.
  public func take() -> Descriptor? { content.withLock { $0.take() } }
}
