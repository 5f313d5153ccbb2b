// Who gets in: networks first, then places. A route that is full looks for clients who have just left before it refuses
// somebody, makes another go for him, or lets him wait.

import ByteStreams

extension Route {
  func admit(_ arrival: consuming Arrival) {
    if let stopping { return refuse(arrival, stopping) }
    guard present.isEmpty || surroundings.descriptors.admits(arrival.descriptor.raw) else {
      return refuse(arrival, Ending(.full, DescriptorShortage()))
    }
    // He may have been greeted by rules that a reload has changed since.
    guard terms.admits(arrival.label) else { return refuse(arrival, Ending(.denied)) }
    // Nobody overtakes those who came before and wait.
    let nobodyWaits = queue.isEmpty && candidates.isEmpty && lateCandidates.isEmpty
    if present.count < clients.max && nobodyWaits && crowd(of: arrival.label) == nil { return place(arrival) }
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
    for parcel in waiting { if let arrival = parcel.take() { decide(arrival) } }
    if !lateCandidates.isEmpty { lookForGhosts() }
  }

  /// Whoever still has a place now is really here.
  private func decide(_ arrival: consuming Arrival) {
    if crowd(of: arrival.label) != nil, let household = arrival.label.address?.household {
      group.freePlaceOfHalfClosed { $0.address?.household == household }
    }
    if let crowd = crowd(of: arrival.label) { return refuse(arrival, Ending(.full, crowd)) }
    if present.count >= clients.max { group.freePlaceOfHalfClosed() }
    if present.count < clients.max && queue.isEmpty { return place(arrival) }
    guard clients.whenFull != .refuse, queue.count < longestQueue else { return refuse(arrival, Ending(.full)) }
    let label = arrival.label
    queue.append(arrival.stream(on: poller), label, mayLeave: clients.whenFull == .queue)
    serveQueue()
  }

  /// The others of its address, where they are as many as there may be. Those who wait for a place count, too.
  private func crowd(of client: Arrival.Label) -> AddressIsFull? {
    guard let most = clients.perAddress, let address = client.address else { return nil }
    let household = address.household
    let waiting = queue.isEmpty ? 0 : queue.count { $0.address?.household == household }
    let count = crowds.count(of: address) + waiting
    guard count >= most, !address.isLoopback, !surroundings.proxies.contains(address) else { return nil }
    return AddressIsFull(host: address.host, count: count)
  }

  /// As many as have a place, and some where few have one.
  private var longestQueue: Int { max(clients.max, 16) }

  /// Gives free places to those who wait, in their order. With `replace-oldest` nobody waits: the oldest go for them.
  func serveQueue() {
    // A session that ends at once, or makes another end, comes back here.
    guard !isServingQueue, stopping == nil else { return }
    isServingQueue = true
    defer { isServingQueue = false }
    while !queue.isEmpty {
      if present.count < clients.max, let client = queue.takeFirst() {
        place(client)
      } else if clients.whenFull == .replaceOldest, let oldest = nextToReplace() {
        replaced.insert(oldest)
        end(oldest, Ending(.replaced))
      } else {
        break
      }
    }
    queueHasChanged()
  }

  private func queueHasChanged() {
    group.placesAreWanted = !queue.isEmpty
    guard queue.count != queueTold else { return }
    queueTold = queue.count
    status.tell(.queue(route: settings.name, waiting: queueTold))
  }

  /// The longest-present of those who stay, if not enough are on their way out already. Numbers grow with time.
  private func nextToReplace() -> UInt64? {
    guard present.count - replaced.count + queue.count > clients.max else { return nil }
    return present.keys.lazy.filter { !self.replaced.contains($0) }.min()
  }

  // MARK: - Those who don't get in

  func refuse(_ arrival: consuming Arrival, _ ending: Ending) {
    let label = arrival.label
    // An answer of HTTP says why, whoever it is for.
    let isShort = ending.cause is DescriptorShortage
    let notice = clients.notices || label.isWebSocket ? isShort ? Self.shortage : line(ending, to: label) : []
    let (stream, text) = arrival.refusedStream(on: poller, ending.word, notice: notice)
    // What is left is not for the tail of a line.
    group.turnAway(stream, label, nextNumber(), ending, text: text, atOnce: isShort)
  }

  private static let shortage = Array("baudway: out of descriptors\r\n".utf8)

  /// Ends the waiting of one who has left the queue, or can't stay in it.
  func turnAway(_ client: ClientQueue.Client, _ ending: Ending) {
    // A line that is begun is finished; but one who has left reads no more.
    let hasGone = ending.word == .queueLeft || ending.word == .internal
    let text = hasGone ? [] : client.unsent + notice(ending.word, to: client.label)
    group.turnAway(
      client.stream, client.label, nextNumber(), ending, text: text,
      nanoseconds: monotonicNanoseconds() &- client.since)
    queueHasChanged()
  }

  /// Those who came before the route stopped or changed, and were not decided on yet.
  func refuseCandidates(_ ending: Ending, unless mayStay: (Arrival.Label) -> Bool = { _ in false }) {
    candidates = refuse(candidates, ending, unless: mayStay)
    lateCandidates = refuse(lateCandidates, ending, unless: mayStay)
  }

  /// Who is left.
  private func refuse(
    _ waiting: [ArrivalParcel], _ ending: Ending, unless mayStay: (Arrival.Label) -> Bool
  ) -> [ArrivalParcel] {
    var left: [ArrivalParcel] = []
    for parcel in waiting {
      guard let arrival = parcel.take() else { continue }
      if mayStay(arrival.label) { left.append(ArrivalParcel(arrival)) } else { refuse(arrival, ending) }
    }
    return left
  }

  /// The line for a client who does not get in.
  private func notice(_ word: Ending.Word, to client: Arrival.Label) -> [UInt8] {
    clients.notices && !client.isWebSocket ? line(Ending(word), to: client) : []
  }

  private func line(_ ending: Ending, to client: Arrival.Label) -> [UInt8] {
    let reason =
      switch ending.word {
      case .full where ending.cause is AddressIsFull:
        "\(settings.name) has \(clients.perAddress ?? 0) clients of \(client.address?.host ?? "your address") already"
      case .denied: "\(settings.name) is not open to \(client.address?.host ?? "you")"
      case .shutdown: "shutting down"
      case .routeRemoved: "\(settings.name) is served no longer"
      default:
        "\(settings.name) is full (\(present.count) of \(clients.max) clients"
          + (queue.isEmpty ? ")" : ", \(queue.count) in the queue)")
      }
    return Array("baudway: \(reason)\r\n".utf8)
  }

  /// The line for one who waits at a place of the queue.
  func queueNotice(_ place: Int, _ client: Arrival.Label) -> String? {
    guard clients.notices, !client.isWebSocket, clients.whenFull == .queue else { return nil }
    return "baudway: \(settings.name) is full; you are number \(place) in the queue"
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
