// A reference to something that lives on a lane, for those who do not: they can only post to it.

public struct Resident<Value: AnyObject>: Sendable {
  public let lane: Lane
  private let box: Box

  // Unchecked: `value` is read and written in closures that run on the lane, and nowhere else.
  private final class Box: @unchecked Sendable {
    private let lane: Lane
    var value: Value?

    init(_ lane: Lane) { self.lane = lane }

    // The last reference may drop on any thread, and what lives on a lane is released there: a hub gives its ring back to the
    // lane's pool. So the value moves into a parcel, as its only owner, before the lane empties that.
    deinit {
      let parcel = Parcel()
      swap(&parcel.value, &value)
      if parcel.value != nil { lane.post { _ in parcel.value = nil } }
    }
  }

  // Unchecked: the box fills it while nobody else has it, and hands it to the lane, the only one to touch it from then on.
  private final class Parcel: @unchecked Sendable {
    var value: Value?
  }

  /// Makes the resident on its lane, before anything that is posted to it later runs.
  public init(on lane: Lane, make: @escaping @Sendable (isolated Lane) -> Value?) {
    self.lane = lane
    let box = Box(lane)
    self.box = box
    lane.post { lane in box.value = make(lane) }
  }

  /// Lends out something that lives on `lane`, which must be the one this is called on. It is kept as long as the
  /// reference is, and let go of on the lane, wherever that ends.
  public init(_ value: Value, on lane: Lane) {
    lane.preconditionIsolated()
    self.lane = lane
    box = Box(lane)
    box.value = value
  }

  /// Runs `body` with the resident on its lane, unless it was evicted.
  public func post(_ body: @escaping @Sendable (isolated Lane, Value) -> Void) {
    let box = box
    lane.post { lane in
      if let value = box.value { body(lane, value) }
    }
  }

  /// Lets go of the resident after what was posted before.
  public func evict() {
    let box = box
    lane.post { _ in box.value = nil }
  }
}
