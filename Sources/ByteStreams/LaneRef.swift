// A reference to an object that lives on a lane, for code outside the lane, which can only post to it.

/// A reference to an object that lives on a lane, for code anywhere else: it can only post to the object. It keeps the
/// object alive; the last reference releases the object on the lane.
/// ```swift
/// final class Counter { var count = 0 }
/// let lane = try Lane("counter")
/// let counter = LaneRef(on: lane) { _ in Counter() }
/// counter.post { _, counter in counter.count += 1 }
/// ```
public struct LaneRef<Value: AnyObject>: Sendable {
  /// Where the object lives.
  public let lane: Lane
  private let box: Box

  // Unchecked: only closures that run on the lane read and write `value`.
  private final class Box: @unchecked Sendable {
    private let lane: Lane
    var value: Value?

    init(_ lane: Lane) { self.lane = lane }

    // The last reference may end on any thread, but objects of a lane must be released there: a hub returns its ring to
    // the lane's pool. So the value moves into a parcel, its only owner, which the lane empties.
    deinit {
      let parcel = Parcel()
      swap(&parcel.value, &value)
      if parcel.value != nil { lane.post { _ in parcel.value = nil } }
    }
  }

  // Unchecked: the box fills the parcel while it has the only reference. Then it hands the parcel to the lane, which
  // alone uses it.
  private final class Parcel: @unchecked Sendable {
    var value: Value?
  }

  /// Makes the object on its lane, before any later post to it runs.
  public init(on lane: Lane, make: @escaping @Sendable (isolated Lane) -> Value?) {
    self.lane = lane
    let box = Box(lane)
    self.box = box
    lane.post { lane in box.value = make(lane) }
  }

  /// Refers to `value`, which lives on `lane`; must be called on that lane. The reference keeps the value and releases
  /// it on the lane, wherever the last reference ends.
  public init(_ value: Value, on lane: Lane) {
    lane.preconditionIsolated()
    self.lane = lane
    box = Box(lane)
    box.value = value
  }

  /// Runs `body` with the object on its lane, unless it was evicted.
  public func post(_ body: @escaping @Sendable (isolated Lane, Value) -> Void) {
    let box = box
    lane.post { lane in
      if let value = box.value { body(lane, value) }
    }
  }

  /// Releases the object after everything posted before has run.
  public func evict() {
    let box = box
    lane.post { _ in box.value = nil }
  }
}
