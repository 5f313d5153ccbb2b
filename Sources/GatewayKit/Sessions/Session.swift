// One client from accept to ending: its stream, and the state of its input, its output and its end. The hub and its
// parts move the bytes and decide when the session is over; the session passes on the events of its stream.

import ByteStreams

final class Session: ByteStreamDelegate {
  /// Unique in the process; the session's name in the log.
  let number: UInt64
  let accepted: AcceptedConnection.Label
  private(set) var client: any ByteStream
  private(set) unowned var hub: Hub  // the link keeps the hub longer than any of its sessions
  let began: UInt64  // nanoseconds on the lane's clock

  /// Its place in the link's `SessionList`.
  fileprivate var index = 0

  var up: SessionUp
  var down = SessionDown()
  var ending = SessionEnding()
  /// The pump of `up`, here as well: reading a constant costs no reference counting.
  let pump: Pump
  var isOver: Bool { ending.isOver }
  var leaving: Ending? { ending.leaving }
  var isLeaving: Bool { ending.leaving != nil }

  /// Bytes of both directions that were dropped, by policy or because the session ended.
  private(set) var dropped: UInt64 = 0
  /// The client's requests and events beside its bytes; nil for clients that have only bytes.
  let controlChannel: ControlChannel?
  /// What `IdleWatch` keeps of the session.
  var idle = IdleRecord()
  /// The client was sent text of ours: a banner, or its position in the queue.
  let hasReadText: Bool
  /// For a client of the gateway's own.
  var whenOver: ((SessionReport) -> Void)?

  init(
    _ accepted: AcceptedConnection.Label, client: any ByteStream, controlChannel: ControlChannel? = nil,
    hasReadText: Bool = false, number: UInt64, hub: Hub, buffer: Int, on poller: Poller
  ) {
    self.number = number
    self.accepted = accepted
    self.client = client
    self.controlChannel = controlChannel
    self.hasReadText = hasReadText
    self.hub = hub
    began = poller.timers.now
    pump = Pump(from: client, to: nil, capacity: buffer, on: poller)
    up = SessionUp(pump)
    client.delegate = self
  }

  func countDropped(_ bytes: UInt64) { dropped &+= bytes }

  /// Exchanges the client's stream: the layer in front of it has done its work.
  func exchangeClient(for stream: any ByteStream) {
    client = stream
    pump.exchangeSource(for: stream)
  }

  /// Keeps the first bytes back until it is known whether they are an HTTP request. Nil once that is known.
  var requestGuard: HTTPRequestGuard? { client as? HTTPRequestGuard }

  /// Changes whenever bytes were carried, in either direction.
  var activity: UInt64 { down.bytes &+ pump.taken &+ UInt64(requestGuard?.kept ?? 0) }
  /// The client has finished sending and all its input is delivered; it may still receive.
  var isHalfClosed: Bool { pump.sourceEnded && pump.count == 0 && !isLeaving }
  var isBlocked: Bool { !client.writerWaits.isEmpty }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    guard !isOver else { return }
    switch event {
    case .hasBytesAvailable: hub.upstream.takeInput(of: self)
    case .hasSpaceAvailable: hub.downstream.give(to: self)
    case .errorOccurred(let error): hub.clientFailed(self, error)
    case .endEncountered: hub.clientFailed(self, nil)
    case .inputEnded:
      ending.inputEnded()
      hub.evaluate(self)
    case .openCompleted: break
    }
  }
}

/// The sessions of one link, in no particular order. The hub adds and removes them; Upstream and Downstream iterate over
/// them.
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
