// Decides which clients get a slot: networks first, then slots. A full route first looks for clients that have just
// left; then it refuses the new client, ends another for it, or queues it.

import ByteStreams

extension Route {
  /// A client of the admin listener, which has no listener of the route.
  func admit(_ accepted: consuming AcceptedConnection, asTerminal acceptance: WebSocketAcceptance) {
    let role = terms.terminals.role(of: accepted.label.identity, listener: .writer)
    accepted.becomeTerminal(acceptance, role: role ?? .monitor)
    if role == nil { refuse(accepted, Ending(.denied)) } else { admit(accepted) }
  }

  /// `last` is the number of the last link that connected when the client was looked at first.
  func admit(_ accepted: consuming AcceptedConnection, _ last: UInt64? = nil) {
    if let stopping { return refuse(accepted, stopping) }
    if accepted.mayBeOwn {
      switch environment.ownConnections.isLoop(
        accepted.descriptor.raw, from: accepted.peer, to: settings.name, accepted.label.listener, waitingFor: last)
      {
      case .loop: return  // it closes; the link that it comes from reports it
      case .noLoop: break
      case .notYet(let last):
        let parcel = AcceptedConnectionParcel(accepted)
        return LaneRef(self, on: lane).post { _, route in
          if let accepted = parcel.take() { route.admit(accepted, last) }
        }
      }
    }
    guard present.isEmpty || environment.descriptors.admits(accepted.descriptor.raw) else {
      return refuse(accepted, Ending(.full, DescriptorShortage()))
    }
    // A reload may have changed the rules since the handshake.
    guard terms.admits(accepted.label) else { return refuse(accepted, Ending(.denied)) }
    // No client overtakes earlier ones that wait.
    let nobodyWaits = queue.isEmpty && candidates.isEmpty && lateCandidates.isEmpty
    if present.count < clients.max && nobodyWaits && crowd(of: accepted.label) == nil { return admitted(accepted) }
    lateCandidates.append(AcceptedConnectionParcel(accepted))
    if answersAwaited == 0 { checkForClosedConnections() }
  }

  /// A client may have left while the event still waits in a lane's epoll set. So look before a new client is refused.
  private func checkForClosedConnections() {
    candidates = lateCandidates
    lateCandidates = []
    let me = LaneRef(self, on: lane)
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
    for parcel in waiting { if let accepted = parcel.take() { decide(accepted) } }
    if !lateCandidates.isEmpty { checkForClosedConnections() }
  }

  /// Every session with a slot is really connected now.
  private func decide(_ accepted: consuming AcceptedConnection) {
    if crowd(of: accepted.label) != nil, let rateLimitKey = accepted.label.address?.rateLimitKey {
      group.freeSlotOfHalfClosed { $0.address?.rateLimitKey == rateLimitKey }
    }
    if let crowd = crowd(of: accepted.label) { return refuse(accepted, Ending(.full, crowd)) }
    let replaces = clients.whenFull == .replaceOldest
    if present.count >= clients.max && !replaces { group.freeSlotOfHalfClosed() }
    if present.count < clients.max && queue.isEmpty { return admitted(accepted) }
    if replaces && queue.count >= longestQueue {
      queue.claimFirst()
      serveQueue()
    }
    guard clients.whenFull != .refuse, queue.count < longestQueue else { return refuse(accepted, Ending(.full)) }
    let label = accepted.label
    queue.append(accepted.stream(on: poller), label, waitingFor: replaces ? Self.wait(of: label) : .turn)
    serveQueue()
  }

  /// A port check connects and closes: it must not cost a client its slot. A WebSocket's request is no such check.
  private static func wait(of label: AcceptedConnection.Label) -> ClientQueue.Wait {
    label.isWebSocket ? .slot : .firstByte
  }

  /// Set if the client's address has as many clients as allowed. Clients in the queue count, too.
  private func crowd(of client: AcceptedConnection.Label) -> AddressIsFull? {
    guard let most = clients.perAddress, let address = client.address else { return nil }
    let rateLimitKey = address.rateLimitKey
    let waiting = queue.isEmpty ? 0 : queue.count { $0.address?.rateLimitKey == rateLimitKey }
    let count = crowds.count(of: address) + waiting
    guard count >= most, !address.isLoopback, !environment.proxies.contains(address) else { return nil }
    return AddressIsFull(host: address.host, count: count)
  }

  /// As many as there are slots, and 16 where there are fewer.
  private var longestQueue: Int { max(clients.max, 16) }

  /// Gives free slots to waiting clients, in their order. With `replace-oldest` the oldest sessions end to make room
  /// for those that want a slot now.
  func serveQueue() {
    // A session that ends at once, or ends another, calls this again.
    guard !isServingQueue, stopping == nil else { return }
    isServingQueue = true
    defer { isServingQueue = false }
    while !queue.isEmpty {
      let replaces = clients.whenFull == .replaceOldest && queue.wanting > 0
      if replaces && present.count >= clients.max { group.freeSlotOfHalfClosed() }
      if present.count < clients.max, let client = queue.takeFirst() {
        admitted(client)
      } else if replaces, let oldest = nextToReplace() {
        replaced.insert(oldest)
        end(oldest, Ending(.replaced))
      } else {
        break
      }
    }
    queueHasChanged()
  }

  private func queueHasChanged() {
    group.slotsAreWanted(queue.wanting > 0)
    // With `replace-oldest` a client waits for a moment, and in no order.
    let waiting = clients.whenFull == .queue ? queue.count : 0
    guard waiting != queueTold else { return }
    queueTold = waiting
    status.publish(.queue(route: settings.name, waiting: queueTold))
  }

  /// The oldest session that is not ending; nil if enough are ending already. Session numbers grow with time.
  private func nextToReplace() -> UInt64? {
    guard present.count - replaced.count + queue.wanting > clients.max else { return nil }
    return present.keys.lazy.filter { !self.replaced.contains($0) }.min()
  }

  // MARK: - Refused clients

  func refuse(_ accepted: consuming AcceptedConnection, _ ending: Ending) {
    let label = accepted.label
    // A WebSocket client always gets the reason, in the HTTP response.
    let isShort = ending.cause is DescriptorShortage
    let notice = clients.notices || label.isWebSocket ? isShort ? Self.shortage : line(ending, to: label) : []
    let (stream, text) = accepted.refusedStream(on: poller, ending.word, notice: notice)
    // The last descriptors are not for connections that linger.
    group.refuse(stream, label, nextNumber(), ending, text: text, atOnce: isShort)
  }

  private static let shortage = Array("baudway: out of descriptors\r\n".utf8)

  /// Ends a client that has left the queue, or can't stay in it.
  func refuse(_ client: ClientQueue.Client, _ ending: Ending) {
    // A notice that is partly sent is finished, unless the client has left and reads no more.
    let hasGone = ending.word == .queueLeft || ending.word == .internal
    let text = hasGone ? [] : client.unsent + notice(ending.word, to: client.label)
    group.refuse(
      client.stream, client.label, nextNumber(), ending, text: text,
      nanoseconds: poller.timers.now &- client.since)
    queueHasChanged()
  }

  /// Refuses clients that came before the route stopped or changed, and are not decided on yet.
  func refuseCandidates(_ ending: Ending, unless mayStay: (AcceptedConnection.Label) -> Bool = { _ in false }) {
    candidates = refuse(candidates, ending, unless: mayStay)
    lateCandidates = refuse(lateCandidates, ending, unless: mayStay)
  }

  /// Returns the clients that stay.
  private func refuse(
    _ waiting: [AcceptedConnectionParcel], _ ending: Ending, unless mayStay: (AcceptedConnection.Label) -> Bool
  ) -> [AcceptedConnectionParcel] {
    var left: [AcceptedConnectionParcel] = []
    for parcel in waiting {
      guard let accepted = parcel.take() else { continue }
      if mayStay(accepted.label) { left.append(AcceptedConnectionParcel(accepted)) } else { refuse(accepted, ending) }
    }
    return left
  }

  /// The notice for a client that is refused.
  private func notice(_ word: Ending.Word, to client: AcceptedConnection.Label) -> [UInt8] {
    clients.notices && !client.isWebSocket ? line(Ending(word), to: client) : []
  }

  private func line(_ ending: Ending, to client: AcceptedConnection.Label) -> [UInt8] {
    let reason =
      switch ending.word {
      case .full where ending.cause is AddressIsFull:
        "\(settings.name) already has \(clients.perAddress == 1 ? "a client" : "\(clients.perAddress ?? 0) clients") "
          + "from \(client.address?.host ?? "your address")"
      case .denied: "\(settings.name) is not open to \(client.address?.host ?? "you")"
      case .shutdown: "shutting down"
      case .routeRemoved: "route \(settings.name) was removed"
      default:
        "\(settings.name) is full (\(present.count) of \(clients.max) clients"
          + (queue.isEmpty ? ")" : ", \(queue.count) in the queue)")
      }
    return Array("baudway: \(reason)\r\n".utf8)
  }

  /// The notice for a client at a position of the queue.
  func queueNotice(_ position: Int, _ client: AcceptedConnection.Label) -> String? {
    guard clients.notices, !client.isWebSocket, clients.whenFull == .queue else { return nil }
    return "baudway: \(settings.name) is full; you are number \(position) in the queue"
  }
}

extension Config.Clients {
  /// Whether a client from `address` may connect. Local clients have no address; lists of networks do not apply to
  /// them.
  func admits(_ address: SocketAddress?) -> Bool {
    guard let address else { return true }
    if deny.contains(where: { $0.contains(address) }) { return false }
    return allow?.contains { $0.contains(address) } ?? true
  }
}
