// The only owner of a file descriptor. It can't be copied, and its end of life is close(2), so a leak or a double close
// does not compile.

import Glibc
import Synchronization

/// The owner of a file descriptor, which closes it at the end of its life (close(2), on the thread where that happens).
public struct Descriptor: ~Copyable, Sendable {
  /// The number, for system calls. Do not close it, and do not keep it longer than the owner.
  public let raw: Int32

  /// Takes ownership of `raw`, which must be open and have no other owner.
  public init(owning raw: Int32) {
    precondition(raw >= 0)
    self.raw = raw
  }

  /// Ends the ownership without closing, for a number that turns out to have another owner.
  public consuming func disown() { discard self }

  deinit { _ = Glibc.close(raw) }
}

/// Carries a descriptor through places that can hold only copyable values, such as a closure on its way to a lane. The
/// first `take()` gets the ownership; without one, the descriptor closes with the parcel.
public final class DescriptorParcel: Sendable {
  private let content: Mutex<Descriptor?>

  /// Takes the ownership.
  public init(_ descriptor: consuming Descriptor) { content = Mutex(descriptor) }

  /// Nil if it was taken before.
  public func take() -> Descriptor? { content.withLock { $0.take() } }
}
