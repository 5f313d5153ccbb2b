// Carries out clients' handshakes, on a lane of its own: PROXY header (with the client's address), TLS, HTTP, log-in. A
// client that completes its handshake is handed over once, as an AcceptedConnection, to the lane of its route, which
// decides whether to admit it. HandshakeDeadlines limits the time. A slow handshake here delays no session's bytes.

import ByteStreams
import Glibc
import StreamBroker
import StreamTLS

final class HandshakeServer {
  /// Settings of all listeners.
  struct Rules: Hashable, Sendable {
    var handshakesPerAddress = 100
    /// Unfinished handshakes of all addresses together.
    var handshakes = Int.max
    /// Networks that may send PROXY headers.
    var proxies: [AddressBlock] = []
    /// Hashes of users' passwords, one of each kind of hash.
    var hashes: [Secret] = []

    init(
      handshakesPerAddress: Int = 100, handshakes: Int = .max, proxies: [AddressBlock] = [], hashes: [Secret] = []
    ) {
      self.handshakesPerAddress = handshakesPerAddress
      self.handshakes = handshakes
      self.proxies = proxies
      self.hashes = hashes
    }

    init(_ config: Config, handshakes: Int) {
      self.init(
        handshakesPerAddress: config.limits.handshakesPerAddress, handshakes: handshakes, proxies: config.proxies,
        hashes: config.hashesByKind.map(\.hash))
    }
  }

  let poller: Poller
  let status: StatusSink
  let rates: ConnectRates
  let ownConnections: OwnConnections
  private let descriptors: DescriptorBudget
  /// Seconds since 1970, for certificates that expire.
  let wallTime: () -> Int
  let counts: HandshakeCounts
  private(set) var rules = Rules()
  private(set) var listenSockets: [ObjectIdentifier: SharedListenSocket] = [:]
  // The sockets of each port, those that several bindings can share, and the socket of each binding.
  private var socketsOfPort: [Int: [ObjectIdentifier: SharedListenSocket]] = [:]
  private var shared: [SharedListenSocket.Address: SharedListenSocket] = [:]
  private var socketOfBinding: [UInt64: SharedListenSocket] = [:]
  let news: CertificateReport

  /// Names of this machine that web pages may use; see `MachineNames`.
  var machineNames = MachineNames.own
  private var asksForNames = false

  private(set) var pendingConnections: [UInt64: PendingConnection] = [:]
  private var lastPending: UInt64 = 0
  private var limits = AddressLimits(most: Rules().handshakesPerAddress)
  private var deadlines: HandshakeDeadlines
  /// Deadlines of clients at a log-in prompt.
  private var promptDeadlines = HandshakeDeadlines(promptTimeout)
  static let promptTimeout = Duration.seconds(60)
  private var timer: Timers.Token?
  private var sweep: Timers.Token?

  /// Checks the credentials that clients send.
  let logIns: LogIns
  /// Log-ins that browsers have already passed.
  var tickets = Tickets()
  /// Closes refused connections in order, so that our answer arrives.
  private let closing: ClosingStreams

  /// `passwords` checks the passwords of log-ins.
  init(
    on poller: Poller, status: StatusSink, rates: ConnectRates, handshakeTimeout: Duration = .seconds(10),
    passwords: Passwords? = nil, descriptors: DescriptorBudget = DescriptorBudget(),
    counts: HandshakeCounts = HandshakeCounts(), ownConnections: OwnConnections = OwnConnections(),
    wallTime: @escaping () -> Int = { time(nil) }
  ) {
    self.wallTime = wallTime
    self.descriptors = descriptors
    self.counts = counts
    self.poller = poller
    self.status = status
    news = CertificateReport(status)
    self.rates = rates
    self.ownConnections = ownConnections
    deadlines = HandshakeDeadlines(handshakeTimeout)
    closing = ClosingStreams(on: poller)
    logIns = LogIns(on: poller, passwords: passwords)
  }

  func follow(_ rules: Rules) {
    self.rules = rules
    logIns.follow(rules.hashes)
    for number in limits.set(most: rules.handshakesPerAddress, at: poller.timers.now) {
      pendingConnections[number]?.mayGoOn()
    }
  }

  /// Looks up this machine's name in the DNS, on a queue that may block. Until the answer comes the old names stay
  /// valid.
  func renewMachineNames() {
    machineNames = MachineNames.own + machineNames.filter { !MachineNames.own.contains($0) }
    guard !asksForNames else { return }
    asksForNames = true
    poller.offload(to: MachineNames.queue) {
      MachineNames.lookUp()
    } then: { [self] names in
      asksForNames = false
      machineNames = names
    }
  }

  /// Reads all certificates again: their files can have new content under the same names.
  func renewCertificates() { for listenSocket in listenSockets.values { listenSocket.renewCertificates() } }

  /// The faults of certificate files, each once, and whether no file is being read.
  var certificates: (faults: [String], areRead: Bool) {
    let each = listenSockets.values.map(\.certificates)
    let faults: [String] = each.flatMap { $0.faults.map(\.description) }
    return (Set(faults).sorted(), each.allSatisfy { $0.areRead })
  }

  func reportChanges() {
    let each = listenSockets.values.map(\.certificates)
    news.areAtFault(each.flatMap { $0.faults })
    news.areInDoubt(each.flatMap { $0.doubts })
  }

  // MARK: - Bindings

  /// A listener starts. It joins a shared listen socket of its address, or gets a new one, bound now or as soon as
  /// possible.
  func open(_ binding: RouteBinding) {
    let address = SharedListenSocket.Address(binding.listen)
    if let listenSocket = shared[address] {
      socketOfBinding[binding.number] = listenSocket
      return listenSocket.add(binding)
    }
    let listenSocket = SharedListenSocket(address, binding, handshakeServer: self)
    let name = ObjectIdentifier(listenSocket)
    listenSockets[name] = listenSocket
    socketsOfPort[address.port, default: [:]][name] = listenSocket
    if address.canBeShared { shared[address] = listenSocket }
    socketOfBinding[binding.number] = listenSocket
    listenSocket.start()
  }

  /// Replaces the settings of a binding; its address is the same.
  func change(_ binding: RouteBinding) { socketOfBinding[binding.number]?.change(binding) }

  /// Removes a binding, and closes the shared listen socket after its last one. Pending connections of the binding end
  /// with `word`.
  func close(_ number: UInt64, _ word: Ending.Word) {
    guard let listenSocket = socketOfBinding.removeValue(forKey: number) else { return }
    listenSocket.remove(number)
    let (isClosed, port) = (listenSocket.bindings.isEmpty, listenSocket.address.port)
    if isClosed {
      let name = ObjectIdentifier(listenSocket)
      listenSockets[name] = nil
      socketsOfPort[port]?[name] = nil
      if shared[listenSocket.address] === listenSocket { shared[listenSocket.address] = nil }
      if !news.isQuiet { reportChanges() }
      listenSocket.close()
    }
    for pending in Array(pendingConnections.values)
    where pending.listenSocket === listenSocket && (isClosed || pending.binding?.number == number) {
      pending.end(Ending(word))
    }
    // Another socket may be waiting to bind this address.
    guard isClosed, let others = socketsOfPort[port] else { return }
    if others.isEmpty { socketsOfPort[port] = nil }
    for listenSocket in others.values { listenSocket.tryAgain() }
  }

  // MARK: - Pending connections

  /// Begins the handshake of a new connection.
  func receive(_ descriptor: consuming Descriptor, _ peer: SocketAddress?, at listenSocket: SharedListenSocket) {
    lastPending += 1
    guard let descriptor = makeRoom(for: descriptor, peer, at: listenSocket) else { return }
    let pending = PendingConnection(lastPending, descriptor, peer, at: listenSocket, in: self)
    pendingConnections[pending.number] = pending
    counts.note(unfinished: pendingConnections.count)
    deadlines.add(pending.number, at: poller.timers.now)
    if timer == nil { setTimer() }
    pending.begin()
  }

  /// Above the limit, a client of the address with most connections is refused in favour of the new one; a new client
  /// of that address is refused itself. So a few addresses can't lock out the others. Returns the descriptor to use,
  /// nil if the new client was refused.
  private func makeRoom(
    for descriptor: consuming Descriptor, _ peer: SocketAddress?, at listenSocket: SharedListenSocket
  ) -> Descriptor? {
    let isShort = !descriptors.admits(descriptor.raw)
    // One pending connection per listen socket may use reserved descriptors: it may be the first client of its route.
    let areTooMany = pendingConnections.count >= rules.handshakes
    guard areTooMany || isShort && pendingConnections.count >= listenSockets.count else { return descriptor }
    counts.noteRefusal()
    let fault: any CountedRefusal = areTooMany ? HandshakeFault.tooManyInAll : DescriptorShortage()
    // With a PROXY header the client's address is not known yet.
    let victim = limits.toMakeRoom(for: listenSocket.address.isProxied ? nil : peer, oldest: oldestPending())
    guard let victim, let pending = pendingConnections[victim] else {
      PendingConnection(lastPending, descriptor, peer, at: listenSocket, in: self).refuse(fault)
      return nil
    }
    pending.refuse(fault)
    guard isShort else { return descriptor }
    // The descriptor's number is in the reserved range; the refused client has just freed a lower one.
    let lower = fcntl(descriptor.raw, F_DUPFD_CLOEXEC, 0)
    return lower < 0 ? descriptor : Descriptor(owning: lower)
  }

  private func oldestPending() -> UInt64? {
    let isPending = { self.pendingConnections[$0] != nil }
    return promptDeadlines.oldest(where: isPending) ?? deadlines.oldest(where: isPending)
  }

  /// Someone types at the log-in prompt of `pending`, which needs longer than a handshake of machines.
  func prompts(_ pending: PendingConnection) {
    promptDeadlines.add(pending.number, at: poller.timers.now)
    if timer == nil { setTimer() }
  }

  /// Frees the tables' memory once they are empty: they keep the size of the largest wave.
  func shrink() {
    if pendingConnections.isEmpty { pendingConnections = [:] }
    deadlines.shrink()
    promptDeadlines.shrink()
    limits.shrink()
  }

  private func setTimer() {
    let now = poller.timers.now
    guard let left = [deadlines.next(at: now), promptDeadlines.next(at: now)].compactMap(\.self).min() else { return }
    timer = poller.timers.after(left) { [weak self] in self?.timeIsOver() }
  }

  private func timeIsOver() {
    timer = nil
    for number in deadlines.expired(at: poller.timers.now) {
      pendingConnections[number]?.timeIsOver(after: deadlines.timeout)
    }
    for number in promptDeadlines.expired(at: poller.timers.now) {
      pendingConnections[number]?.timeIsOver(after: promptDeadlines.timeout)
    }
    deadlines.forget { pendingConnections[$0] != nil }
    promptDeadlines.forget { pendingConnections[$0] != nil }
    setTimer()
  }

  /// Whether the handshake may begin now. After `.wait`, `mayGoOn()` is called on the pending connection.
  func admit(_ pending: PendingConnection, from address: SocketAddress) -> AddressLimits.Verdict {
    let verdict = limits.enter(pending.number, from: address, at: poller.timers.now)
    watchCrowds()
    return verdict
  }

  /// Refuses handshakes that take longer than their share while others of the same address wait. Otherwise a few
  /// clients that send slowly would block the later ones until their own timeout.
  private func watchCrowds() {
    guard sweep == nil, limits.isCrowded else { return }
    sweep = poller.timers.after(deadlines.timeout / 60) { [weak self] in
      guard let self else { return }
      sweep = nil
      for number in limits.overdue(at: poller.timers.now, after: deadlines.share.nanoseconds) {
        pendingConnections[number]?.makeRoom()
      }
      watchCrowds()
    }
  }

  /// The pending connection was handed over or closed.
  func left(_ pending: PendingConnection, from address: SocketAddress?) {
    pendingConnections[pending.number] = nil
    counts.note(unfinished: pendingConnections.count)
    guard let address, let next = limits.leave(pending.number, from: address, at: poller.timers.now) else { return }
    // In a later round: the caller may be in the middle of its own work.
    poller.timers.after(.zero) { [weak self] in self?.pendingConnections[next]?.mayGoOn() }
  }

  /// Closes a connection in order, so that what was written to it arrives.
  func part(from stream: any ByteStream) {
    closing.close(stream, otherSideFinished: false, readingAtMost: ClosingStreams.mostBeforeSession)
  }
}
