// Where the bytes of one link meet: the endpoint's output goes into one ring in which every client has a cursor, and
// the clients' input goes to the endpoint in turns. A link of one client is a hub with one client. Knows nothing of
// opening, retrying or accepting; the link that owns it does. Its two ways stand in Hub+Output.swift and Hub+Input.swift,
// how sessions end in Hub+Endings.swift, what becomes of slow clients in Hub+SlowClients.swift.

import ByteStreams

protocol HubDelegate: AnyObject {
  /// The endpoint said its last word, which is in the ring, or broke.
  func endpointIsGone(_ cause: (any Error)?)
  /// The session is out of the hub. Its client is open still and belongs to the receiver.
  func sessionIsOver(_ session: Session, _ ending: Ending)
}

final class Hub: ByteStreamDelegate {
  struct Policy: Sendable {
    /// One endpoint for all clients; else client and endpoint pass on each other's half-close.
    var isShared: Bool
    /// Bytes kept for a client that is behind, and of a client's input while the endpoint is.
    var buffer: Int
    /// Bytes of output that a newcomer gets first.
    var backlog: Int
    /// What becomes of clients that hold up others.
    var slow: Config.Clients.Slow
    /// What nobody hears is stale and is dropped.
    var dropsUnheard: Bool
    /// How long the last bytes of one who left may make no progress.
    var drain: Duration
  }

  let policy: Policy
  let poller: Poller
  unowned let delegate: any HubDelegate  // the link, which owns the hub
  private(set) var endpoint: (any ByteStream)?
  private(set) var sessions: [Session] = []

  // Down.
  var ring: RingBuffer?
  var lastHead: UInt64 = 0  // head of the ring when it was given back
  var head: UInt64 { ring?.head ?? lastHead }
  var isPaused = false  // the ring is too full to read on
  var holdUpTimer: Timers.Token?
  var lastLook: UInt64 = 0
  var someoneWaits = false

  // Up. Those with kept input, in the order they were blocked.
  var waiting: [Session] = []

  /// The endpoint has ended in order and is not coming back: for links of one client.
  var endpointHasEnded = false
  // A write to the endpoint failed; it is gone as soon as it has been read to its end.
  var writeFailure: (any Error)?

  init(_ policy: Policy, on poller: Poller, delegate: any HubDelegate) {
    self.policy = policy
    self.poller = poller
    self.delegate = delegate
  }

  deinit { if let ring { poller.rings.giveBack(ring) } }

  // MARK: - Coming and going

  /// Takes in a client; he hears from here on, after the backlog.
  func join(_ session: Session) {
    if let ring {
      let wanted = head &- min(head, UInt64(policy.backlog))
      session.cursor = sessions.isEmpty && policy.backlog == 0 ? ring.oldest : max(ring.oldest, wanted)
    } else {
      session.cursor = head
    }
    session.place = sessions.count
    sessions.append(session)
    session.pump.sink = writeFailure == nil ? endpoint : nil
    session.client.readerWaits = .readable
    giveOutput(to: session)
    if isPaused, let endpoint { pause(endpoint) }  // a newcomer who waits makes the clock of the slow ones run
  }

  /// The endpoint is open; the hub moves its bytes until `detach` or `endpointIsGone`.
  func attach(_ stream: any ByteStream) {
    endpoint = stream
    writeFailure = nil
    stream.delegate = self
    stream.readerWaits = .readable
    isPaused = false
    for session in sessions { session.pump.sink = stream }
    serve()
    for session in sessions where session.pump.sourceEnded { settle(session) }
  }

  /// Lets go of the endpoint; it belongs to the caller. Kept input stays for the next one.
  func detach() -> (any ByteStream)? {
    guard let stream = endpoint else { return nil }
    endpoint = nil
    stream.delegate = nil
    for session in sessions { session.pump.sink = nil }
    endHoldUp()
    return stream
  }

  /// Takes a session out of all lists; what was kept for it or of it counts as dropped.
  func remove(_ session: Session) {
    let last = sessions.removeLast()
    if last !== session {
      sessions[session.place] = last
      last.place = session.place
    }
    if session.isWaiting { waiting.removeAll { $0 === session } }
    session.dropped &+= UInt64(session.pump.discard())
    if session.takesOutput { session.dropped &+= head &- session.cursor }
    release()
    readOnIfRoom()
  }
}
