// The sessions of one link, in no particular order. The hub adds and removes them; Upstream and Downstream iterate over
// them.

final class SessionList {
  private(set) var all: [Session] = []

  func add(_ session: Session) {
    session.index = all.count
    all.append(session)
  }

  /// The last session takes the index of the removed one.
  func remove(_ session: Session) {
    guard session.index < all.count, all[session.index] === session, let last = all.popLast(), last !== session else {
      return
    }
    all[session.index] = last
    last.index = session.index
  }
}
