// Who gets in: networks first, then places. A route that is full looks for clients who have just left before it says so.

import ByteStreams

extension Route {
  func admit(_ arrival: consuming Arrival) {
    if let stopping { return refuse(arrival, stopping) }
    guard clients.admits(arrival.label.address) else { return refuse(arrival, Ending(.denied)) }
    if present.count < clients.max && candidates.isEmpty && lateCandidates.isEmpty { return place(arrival) }
    lateCandidates.append(ArrivalParcel(arrival))
    if answersAwaited == 0 { lookForGhosts() }
  }

  /// Nobody is refused because of somebody who has just left: his end may be waiting in some lane's epoll set.
  private func lookForGhosts() {
    candidates = lateCandidates
    lateCandidates = []
    let me = Resident(self, on: lane)
    answersAwaited = 1 + groupsElsewhere.count
    for group in groupsElsewhere {
      group.post { lane, _ in
        lane.poller.sweep()
        me.post { _, route in route.laneHasLooked() }
      }
    }
    me.post { lane, route in
      lane.poller.sweep()
      route.laneHasLooked()
    }
  }

  private func laneHasLooked() {
    answersAwaited -= 1
    guard answersAwaited == 0 else { return }
    let waiting = candidates
    candidates = []
    for parcel in waiting {
      guard let arrival = parcel.take() else { continue }
      if present.count >= clients.max { group.freePlaceOfHalfClosed() }
      if present.count < clients.max { place(arrival) } else { refuse(arrival, Ending(.full)) }
    }
    if !lateCandidates.isEmpty { lookForGhosts() }
  }

  /// Those who came before the route stopped, and were not decided on yet.
  func refuseCandidates(_ ending: Ending) {
    let waiting = candidates + lateCandidates
    candidates = []
    lateCandidates = []
    for parcel in waiting { if let arrival = parcel.take() { refuse(arrival, ending) } }
  }

  /// What a client is told who does not get in.
  func notice(_ word: Ending.Word, to client: Arrival.Label) -> String {
    switch word {
    case .denied: "baudway: \(settings.name) is not open to \(client.address?.host ?? "you")"
    case .shutdown: "baudway: shutting down"
    case .routeRemoved: "baudway: \(settings.name) is served no longer"
    default: "baudway: \(settings.name) is full (\(present.count) of \(clients.max) clients)"
    }
  }
}

extension Config.Clients {
  /// Whether a client from `address` may come. Local clients have none, and lists of networks are not about them.
  func admits(_ address: SocketAddress?) -> Bool {
    guard let address else { return true }
    if deny.contains(where: { $0.contains(address) }) { return false }
    return allow?.contains { $0.contains(address) } ?? true
  }
}
