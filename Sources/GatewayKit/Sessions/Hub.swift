// Where the bytes of one link meet: the endpoint's output goes into one ring in which every client has a cursor, and
// the clients' input goes to the endpoint in turns. A link of one client is a hub with one client. Knows nothing of
// opening, retrying or accepting; the link that owns it does. Its two ways stand in Hub+Output.swift and Hub+Input.swift,
// who may write in Hub+Pen.swift, when nobody does in Hub+Absence.swift, packets in Hub+Packets.swift and PacketGate.swift, how sessions end in
// Hub+Endings.swift, what becomes of slow clients in Hub+SlowClients.swift.

import ByteStreams
import StreamBroker

protocol HubDelegate: AnyObject {
  /// The endpoint said its last word, which is in the ring, or broke.
  func endpointIsGone(_ cause: (any Error)?)
  /// All clients have finished sending, and what they left behind was dropped: `Policy.flushesBehindLast`.
  func allHaveFinished()
  /// The session is out of the hub. Its client is open still and belongs to the receiver.
  func sessionIsOver(_ session: Session, _ ending: Ending)
  /// The pen has gone from one to another. Sessions may end in the same turn: take note, and leave the hub as it is.
  func writerChanged(from: Session?, to: Session?)
  /// The session has lost `bytes` since this was last told of it, at most once a second. Leave the hub as it is.
  func sessionDrops(_ session: Session, bytes: UInt64)
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
    /// Shared links: how long a client still receives after its FIN; nil = its FIN ends the session.
    var halfClose: Duration?
    /// Who may send to the endpoint.
    var writers = Config.Clients.Writers.all
    /// With one writer: who else gets the pen.
    var takeover = Config.Clients.Takeover.refuse
    /// What the endpoint has not taken when the last client leaves is dropped.
    var flushesBehindLast = false
    /// How both ways are cut into packets; nil = not at all.
    var packets: Config.Packets?
  }

  private(set) var policy: Policy
  let poller: Poller
  unowned let delegate: any HubDelegate  // the link, which owns the hub
  private(set) var endpoint: (any ByteStream)?
  private(set) var sessions: [Session] = []

  // Down.
  var ring: RingBuffer?
  /// What the ring was made for. The policy's, but where a reload gave it others while bytes were kept.
  var ringSizes: (buffer: Int, backlog: Int)
  var lastHead: UInt64 = 0  // head of the ring when it was given back
  var head: UInt64 { ring?.head ?? lastHead }
  var isPaused = false  // the ring is too full to read on
  var holdUpTimer: Timers.Token?
  var stallTimer: Timers.Token?
  var lastLook: UInt64 = 0
  var someoneWaits = false
  /// Finds the packets of what the endpoint says, where they are on.
  var cutter: PacketCutter?
  var packetTimer: Timers.Token?

  // Up. Those with kept input, in the order they were blocked.
  var waiting: [Session] = []
  /// With one writer: who it is.
  var pen: Session?
  /// All are being sent away, so the pen goes to nobody else.
  var isDismissing = false
  /// When he last sent something; nanoseconds on the lane's clock. Noted where an idle one loses the pen.
  var penUsedAt: UInt64 = 0
  private(set) var notesPenUse: Bool
  /// Keeps the packets of several writers apart, where packets are on.
  var packetLine: PacketLine?
  /// With many writers: who was the first to set the line.
  weak var lineHolder: Session?
  var keeping = LineKeeping()
  /// As its link told last.
  var linkStatus = LinkStatus.closed

  /// Somebody waits for the place of a client who only listens.
  var endsHalfClosed = false
  /// The endpoint has ended in order and is not coming back: for links of one client.
  var endpointHasEnded = false
  /// What it said to that.
  var endpointSaid: (any Error)?
  // A write to the endpoint failed; it is gone as soon as it has been read to its end.
  var writeFailure: (any Error)?
  /// Nor does it listen any more.
  var endpointIsDeaf = false
  // Bytes both ways: clients' that are gone, and all when the endpoint was attached.
  private var upOfGone: UInt64 = 0
  private var carriedBefore: UInt64 = 0
  /// Bytes went over the link that is open now, or was open last.
  var hasCarried: Bool { carried != carriedBefore }
  private var carried: UInt64 { sessions.reduce(head &+ upOfGone) { $0 &+ $1.up } }
  /// Said to the endpoint before anything of the clients'.
  var preface: ArraySlice<UInt8> = []
  /// So many reasons to keep clients' input back, though the endpoint is there.
  var holds = 0
  /// What clients send is dropped, for the endpoint is away.
  var dropsInput = false

  init(_ policy: Policy, on poller: Poller, delegate: any HubDelegate) {
    self.policy = policy
    self.poller = poller
    self.delegate = delegate
    ringSizes = (policy.buffer, policy.backlog)
    notesPenUse = policy.takesIdlePen
    if policy.packets != nil { startPackets() }
  }

  deinit { if let ring { poller.rings.giveBack(ring) } }

  // MARK: - Coming and going

  /// Takes in a client; he hears from here on, after the backlog.
  func join(_ session: Session) {
    session.cursor = place(forNewcomer: ring)
    session.place = sessions.count
    sessions.append(session)
    if let packetLine { session.gate = PacketGate(packetLine, session, self) }
    letWrite(newcomer: session)
    connect(session)
    session.client.readerWaits = .readable
    tellStatus(to: session)
    release()  // what was kept for the first to come, and begins in the middle of a packet
    giveOutput(to: session)
    if isPaused, let endpoint { pause(endpoint) }  // a newcomer who waits makes the clock of the slow ones run
  }

  private func place(forNewcomer ring: RingBuffer?) -> UInt64 {
    guard let ring else { return head }
    let wanted = head &- min(head, UInt64(ringSizes.backlog))
    let place = sessions.isEmpty && ringSizes.backlog == 0 ? ring.oldest : max(ring.oldest, wanted)
    return cutter?.start(from: place) ?? place
  }

  /// What he sends has a way from now on, or none.
  func connect(_ session: Session) {
    session.pump.sink = takesInput ? session.gate ?? endpoint : nil
  }

  /// The endpoint is open and hears `words` first; the hub moves its bytes until `detach` or `endpointIsGone`.
  func attach(_ stream: any ByteStream, saying words: [UInt8] = []) {
    endpoint = stream
    carriedBefore = carried
    writeFailure = nil
    preface = words[...]
    holds = 0
    for session in sessions { session.desk?.abandon() }
    lineIsAttached(stream.serialLine)
    dropsInput = false
    stream.delegate = self
    stream.readerWaits = .readable
    isPaused = false
    letInputFlow()
    // What was asked for behind something that went with the endpoint before.
    carryOutAll()
    // What came with its greeting: no event tells of it.
    if stream.holdsBytes { poller.again(stream) }
  }

  /// Lets go of the endpoint; it belongs to the caller. Kept input stays for the next one.
  func detach() -> (any ByteStream)? {
    endPacket()
    guard let stream = endpoint else { return nil }
    lineIsDetached(stream.serialLine)
    endpoint = nil
    stream.delegate = nil
    for session in sessions { session.pump.sink = nil }
    endHoldUp()
    packetLine?.end()
    return stream
  }

  /// Takes a session out of all lists; what was kept for it or of it counts as dropped.
  func remove(_ session: Session) {
    if session.place < sessions.count, sessions[session.place] === session, let last = sessions.popLast(),
      last !== session
    {
      sessions[session.place] = last
      last.place = session.place
    }
    if session.isWaiting { waiting.removeAll { $0 === session } }
    upOfGone &+= session.up
    let cut = session.pump.discard()
    if cut > 0 { session.isInputCut = true }
    session.dropped &+= UInt64(cut + (session.screen?.kept ?? 0))
    if session.takesOutput { session.dropped &+= session.kept(head: head) }
    leavesLine(session)
    inputIsOver(session)
    stopTellingDrops(of: session)
    release()
    readOnIfRoom()
  }

  // MARK: - Other policies

  /// Other policies, from now on. Sizes hold for the next ring; one that is in use is changed as soon as what it keeps
  /// fits into the other, and nothing is lost by it.
  func update(_ policy: Policy) {
    guard policy.isShared == self.policy.isShared else { return }  // another route; `Route.update` reports it
    let old = self.policy
    self.policy = policy
    notesPenUse = policy.takesIdlePen
    for session in sessions { session.pump.resize(to: policy.buffer) }
    if policy.packets != old.packets { changePackets() }
    if policy.writers != old.writers || policy.takeover != old.takeover { changeWriters() }
    if policy.halfClose != old.halfClose { for session in sessions where session.isHalfClosed { settle(session) } }
    changeSlow()
    changeRing()
    release()
    readOnIfRoom()
    if isPaused, let endpoint { pause(endpoint) }
  }
}
