// Where the bytes of one link meet: the endpoint's output goes into one ring in which every client has a cursor, and
// the clients' input goes to the endpoint in turns. A per-client link has a hub with one client. The hub does not open,
// retry or accept; the link that owns it does. Upstream moves the input, Downstream the output, LineControl controls
// the serial line, Hub+Endings.swift ends sessions.

import ByteStreams
import StreamBroker

protocol HubDelegate: AnyObject {
  /// The link's status.
  var status: LinkStatus { get }
  /// The endpoint has ended or broken. All its output is in the ring.
  func endpointIsGone(_ cause: (any Error)?)
  /// All clients have finished sending, and their input that was left is dropped: `Policy.flushesAfterLast`.
  func allClientsFinished()
  /// The session is no longer in the hub. Its client is still open and belongs to the receiver of this call.
  func sessionIsOver(_ session: Session, _ ending: Ending)
  /// The writer role has moved. Sessions may end in the same turn: only record the change, and do not change the hub.
  func writerChanged(from: Session?, to: Session?)
  /// The session has lost `bytes` since the last report; at most one report a second. Do not change the hub in this
  /// call.
  func sessionDrops(_ session: Session, bytes: UInt64)
  /// The session has asked for a change of the line, which was carried out, or refused for this reason.
  func lineWasAsked(_ request: ControlChannelRequest, refusal: String?, by session: Session)
  /// A reset recipe was carried out, for a session or by command. Do not change the hub in this call.
  func lineWasReset(by recipe: ResetRecipe, for session: UInt64?, _ result: Result<Void, SystemError>)
  /// `lineSettings` may have changed. Do not change the hub in this call.
  func lineChanged()
}

final class Hub: ByteStreamDelegate {
  struct Policy: Sendable {
    /// All clients share one endpoint. Otherwise client and endpoint pass on each other's half-close.
    var isShared: Bool
    /// Bytes kept for a slow client, and bytes of a client's input kept for a slow endpoint.
    var buffer: Int
    /// Bytes of output that a new client gets first.
    var backlog: Int
    /// What happens to clients that delay others.
    var slow: Config.Clients.Slow
    /// Output is dropped while there is no client: it would be stale for the next one.
    var dropsWithoutClients: Bool
    /// `device.drain`: how long the last input of a client may make no progress.
    var drain: Duration
    /// Shared links: how long a client still receives after its FIN. Nil: its FIN ends the session.
    var halfClose: Duration?
    /// Which clients may send to the endpoint.
    var writers = Config.Clients.Writers.all
    /// With one writer: which other client gets the writer role.
    var takeover = Config.Clients.Takeover.refuse
    /// Once all clients have finished sending, input that the endpoint has not taken is dropped.
    var flushesAfterLast = false
    /// How both directions are cut into packets. Nil: no packets.
    var packets: Config.Packets?
    /// The sequence on DTR and RTS that is recognised and replayed. Nil: none.
    var reset: ResetRecipe?
  }

  /// One copy for all hubs of a route: with a link per client there are thousands of hubs.
  final class SharedPolicy: Sendable {
    let value: Policy
    init(_ value: Policy) { self.value = value }
  }

  private var sharedPolicy: SharedPolicy
  var policy: Policy { sharedPolicy.value }
  let poller: Poller
  unowned let delegate: any HubDelegate  // the link, which owns the hub
  private(set) var endpoint: (any ByteStream)?
  private let list = SessionList()
  var sessions: [Session] { list.all }
  /// Position of the next byte from the endpoint.
  var head: UInt64 { downstream.head }

  /// Nil until a client has a control channel or `baudway reset` is used: nothing else can use the line.
  private(set) var lineControl: LineControl?
  let upstream: Upstream
  let downstream: Downstream
  /// With `packets.exchange`.
  private var exchange: Exchange?
  /// Records the endpoint's bytes and line.
  private var tap: CaptureTap?

  /// Another client waits for the slot of a half-closed client.
  private(set) var endsHalfClosed = false
  /// The endpoint of a per-client link has ended in order, and is not opened again.
  var endpointHasEnded: Bool { downstream.hasEnded }
  /// The endpoint's reason for its end, if it gave one.
  private(set) var endpointReason: (any Error)?

  init(_ policy: SharedPolicy, on poller: Poller, delegate: any HubDelegate) {
    sharedPolicy = policy
    self.poller = poller
    self.delegate = delegate
    upstream = Upstream(policy.value, on: poller)
    downstream = Downstream(policy, list, on: poller)
    upstream.delegate = self
    downstream.delegate = self
    startExchange()
  }

  private func startExchange() {
    if let exchange { return exchange.update(policy.packets) }
    guard policy.isShared, policy.packets?.exchange != nil else { return }
    let exchange = Exchange(policy.packets, upstream, on: poller)
    self.exchange = exchange
    upstream.follow(exchange)
    downstream.follow(exchange)
  }

  // MARK: - Sessions and the endpoint

  /// Adds a client. It receives the backlog, then everything from here on.
  func join(_ session: Session) {
    downstream.start(session)
    list.add(session)
    upstream.join(session)
    session.client.readerWaits = .readable
    if session.controlChannel != nil { (lineControl ?? startLineControl()).join(session) }
    upstream.reportStatus(to: session)
    downstream.join(session)
  }

  /// The endpoint is open. Sends it `words` first, then moves bytes until `detach` or `endpointIsGone`.
  func attach(_ stream: any ByteStream, saying words: [UInt8] = []) {
    endpoint = stream
    let setsLineFirst = lineControl?.attach(stream.serialLine) ?? false
    stream.delegate = self
    downstream.attach(stream)
    upstream.attach(stream, saying: words, isHeld: setsLineFirst)
    // Run the commands that waited for this endpoint. Some come after a command that was lost with the previous
    // endpoint.
    lineControl?.begin()
    // Bytes may have arrived with the endpoint's greeting; no event reports them.
    if stream.hasBufferedInput { poller.again(stream) }
  }

  /// Detaches the endpoint, which the caller owns now. Kept input stays for the next endpoint.
  func detach() -> (any ByteStream)? {
    downstream.endPacket()
    guard let stream = endpoint else { return nil }
    lineControl?.detach()
    endpoint = nil
    stream.delegate = nil
    upstream.detach()
    downstream.detach()
    exchange?.forget()
    return stream
  }

  /// Removes a session from all lists. What was kept for it or from it counts as dropped.
  func remove(_ session: Session) {
    list.remove(session)
    upstream.leave(session)
    lineControl?.leave(session)
    downstream.leave(session)
  }

  private func startLineControl() -> LineControl {
    let control = LineControl(writers: policy.writers, reset: policy.reset, on: poller)
    control.delegate = upstream
    control.linkIs(delegate.status)
    control.record(to: tap)
    lineControl = control
    if let endpoint { _ = control.attach(endpoint.serialLine) }
    return control
  }

  /// The settings of the open line, without changes of sessions that are over.
  var lineSettings: LineSettings? { lineControl.map(\.lastingSettings) ?? endpoint?.serialLine?.settings }

  /// A reload has changed the settings of the line.
  func lineIsSet(to settings: LineSettings) {
    lineControl?.isSet(to: settings)
    delegate.lineChanged()
  }

  /// Carries out the recipe at the line of the open endpoint.
  func reset(by recipe: ResetRecipe, then done: @escaping (Result<Void, LinkRefusal>) -> Void) {
    (lineControl ?? startLineControl()).reset(by: recipe, then: done)
  }

  /// Changes the line of the open endpoint.
  func change(by ask: LineAsk, then done: @escaping (Result<LineSettings, LinkRefusal>) -> Void) {
    (lineControl ?? startLineControl()).change(by: ask.requests[...], then: done)
  }

  /// Whether a client that finishes sending has to give its slot to another one.
  func endHalfClosed(_ ends: Bool) { endsHalfClosed = ends }

  // MARK: - A recording

  /// From now on, `tap` records the bytes of both directions and what the line reports.
  func record(to tap: CaptureTap?) {
    self.tap = tap
    upstream.record(to: tap)
    downstream.record(to: tap)
    if let lineControl { lineControl.record(to: tap) } else if tap != nil { _ = startLineControl() }
  }

  // MARK: - A reload

  func update(_ policy: SharedPolicy) {
    let (old, new) = (self.policy, policy.value)
    guard new.isShared == old.isShared else { return }  // that makes another route; `Route.update` reports it
    sharedPolicy = policy
    downstream.update(policy)  // ends the packet under way by the rules with which it began
    startExchange()
    upstream.update(new, from: old)
    lineControl?.update(reset: new.reset)
    if new.halfClose != old.halfClose { for session in sessions where session.isHalfClosed { evaluate(session) } }
    downstream.goOn()
  }

  // MARK: - The endpoint

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    guard stream === endpoint else { return }
    switch event {
    case .hasBytesAvailable: downstream.read()
    case .hasSpaceAvailable: upstream.serve()
    case .errorOccurred(let error): upstream.fail(error)
    case .endEncountered: endpointHungUp()
    case .openCompleted, .inputEnded: break
    }
  }

  /// The endpoint of a per-client link has ended in order. `error` is its reason, if it gave one.
  func endpointEnded(saying error: (any Error)? = nil) {
    downstream.endpointHasEnded()
    endpointReason = error
    for session in sessions { evaluate(session) }
  }

  /// The endpoint's end was read before; now it takes no more bytes either.
  func endpointHungUp() {
    upstream.stopWriting()
    for session in sessions { leave(session, session.ending.first ?? Ending(.endpointLeft, endpointReason)) }
  }

  /// The state kept for all clients is inconsistent, by a mistake of ours. The sessions end as `internal`, and the link
  /// is lost as if it had broken. Both start again with nothing kept.
  func isBroken(_ fault: InternalFault) {
    downstream.clear()
    exchange?.forget()
    upstream.queue.endPacket()
    upstream.withoutHeir { for session in sessions { end(session, Ending(.internal, fault)) } }
    if endpoint != nil { delegate.endpointIsGone(fault) }
  }
}

extension Hub: UpstreamDelegate {
  /// The endpoint's output is still read and delivered.
  func writeFailed(_ cause: any Error) { downstream.writeFailed(cause) }
  func writerChanged(from old: Session?, to new: Session?) { delegate.writerChanged(from: old, to: new) }
  func lineWasAsked(_ request: ControlChannelRequest, refusal: String?, by session: Session) {
    delegate.lineWasAsked(request, refusal: refusal, by: session)
  }
  func lineWasReset(by recipe: ResetRecipe, for session: UInt64?, _ result: Result<Void, SystemError>) {
    delegate.lineWasReset(by: recipe, for: session, result)
  }
  func lineChanged() { delegate.lineChanged() }
}

extension Hub: DownstreamDelegate {
  func outputIsOver(_ cause: (any Error)?) { delegate.endpointIsGone(cause) }
  func sessionDrops(_ session: Session, bytes: UInt64) { delegate.sessionDrops(session, bytes: bytes) }
}
