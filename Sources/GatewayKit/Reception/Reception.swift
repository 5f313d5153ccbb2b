// Where clients of listeners with a greeting are received, on a lane of its own: a PROXY header, and with it their address,
// comes first, TLS next, HTTP last. Whoever is through is handed over once, as an Arrival, to the lane of his route, which
// decides whether he gets in. However slow somebody is here, no byte of anybody else waits for him.

import ByteStreams
import Glibc
import StreamBroker
import StreamTLS

final class Reception {
  /// What holds for all listeners.
  struct Rules: Hashable, Sendable {
    var handshakesPerAddress = 100
    /// Of all addresses.
    var handshakes = Int.max
    /// Networks whose PROXY headers are believed.
    var proxies: [Network] = []
    /// Of users' passwords, one of each kind.
    var hashes: [Secret] = []

    init(
      handshakesPerAddress: Int = 100, handshakes: Int = .max, proxies: [Network] = [], hashes: [Secret] = []
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
  private let descriptors: DescriptorBudget
  private let counts: HandshakeCounts
  private(set) var rules = Rules()
  private(set) var entrances: [ObjectIdentifier: Entrance] = [:]
  /// Those of each port, and those that several ways may share; of each way the one that it leads through.
  private var entrancesOfPort: [Int: [ObjectIdentifier: Entrance]] = [:]
  private var shared: [Entrance.Address: Entrance] = [:]
  private var entranceOfWay: [UInt64: Entrance] = [:]
  let news: CertificateNews

  /// What this machine is called, for pages of browsers; see `MachineNames`.
  var machineNames = MachineNames.own
  private var asksForNames = false

  private(set) var guests: [UInt64: Guest] = [:]
  private var lastGuest: UInt64 = 0
  private var limits = AddressLimits(most: Rules().handshakesPerAddress)
  /// In the order they came; many have long gone. One timer is for all, as all have the same time.
  private var deadlines: [(guest: UInt64, time: UInt64)] = []
  private var firstDeadline = 0
  private var timer: Timers.Token?
  private var sweep: Timers.Token?
  /// From accept(2) on, however much comes of him.
  private let patience: Duration

  /// Finds out who clients are that say so.
  let logIns: LogIns
  /// Ends connections that are not to be: what was said to them arrives.
  private let lingering: Lingering

  /// `passwords` checks those of log-ins.
  init(
    on poller: Poller, status: StatusSink, rates: ConnectRates, patience: Duration = .seconds(10),
    passwords: Passwords? = nil, descriptors: DescriptorBudget = DescriptorBudget(),
    counts: HandshakeCounts = HandshakeCounts()
  ) {
    self.descriptors = descriptors
    self.counts = counts
    self.poller = poller
    self.status = status
    news = CertificateNews(status)
    self.rates = rates
    self.patience = patience
    lingering = Lingering(on: poller)
    logIns = LogIns(on: poller, passwords: passwords)
  }

  func follow(_ rules: Rules) {
    self.rules = rules
    logIns.follow(rules.hashes)
    for number in limits.set(most: rules.handshakesPerAddress, at: poller.timers.now) { guests[number]?.mayGoOn() }
  }

  /// Looks up what this machine is called in the domain name system, beside the lanes. Meanwhile the names from before hold.
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

  /// Certificates may be others under the names that they have.
  func renewCertificates() { for entrance in entrances.values { entrance.renewCertificates() } }

  /// What is wrong with files of certificates, each once, and whether all have been read since that was asked for.
  var certificates: (faults: [String], areRead: Bool) {
    let each = entrances.values.map(\.certificates)
    let faults: [String] = each.flatMap { $0.faults.map(\.description) }
    return (Set(faults).sorted(), each.allSatisfy { $0.areRead })
  }

  func tellNews() {
    let each = entrances.values.map(\.certificates)
    news.areAtFault(each.flatMap { $0.faults })
    news.areInDoubt(each.flatMap { $0.doubts })
  }

  // MARK: - Ways

  /// A listener wants its address: an entrance that is there already, or one of its own, bound now or as soon as it can be.
  func open(_ way: Way) {
    let address = Entrance.Address(way.listen)
    if let entrance = shared[address] {
      entranceOfWay[way.number] = entrance
      return entrance.add(way)
    }
    let entrance = Entrance(address, way, reception: self)
    let name = ObjectIdentifier(entrance)
    entrances[name] = entrance
    entrancesOfPort[address.port, default: [:]][name] = entrance
    if address.canBeShared { shared[address] = entrance }
    entranceOfWay[way.number] = entrance
    entrance.start()
  }

  /// Other values hold for it; the address is the same.
  func change(_ way: Way) { entranceOfWay[way.number]?.change(way) }

  /// Closes an entrance with its last way. Who is on his way through ends with `word`.
  func close(_ number: UInt64, _ word: Ending.Word) {
    guard let entrance = entranceOfWay.removeValue(forKey: number) else { return }
    entrance.remove(number)
    let (isClosed, port) = (entrance.ways.isEmpty, entrance.address.port)
    if isClosed {
      let name = ObjectIdentifier(entrance)
      entrances[name] = nil
      entrancesOfPort[port]?[name] = nil
      if shared[entrance.address] === entrance { shared[entrance.address] = nil }
      if !news.isQuiet { tellNews() }
      entrance.close()
    }
    for guest in Array(guests.values) where guest.entrance === entrance && (isClosed || guest.way?.number == number) {
      guest.end(Ending(word))
    }
    // Another may have waited for that very address.
    guard isClosed, let others = entrancesOfPort[port] else { return }
    if others.isEmpty { entrancesOfPort[port] = nil }
    for entrance in others.values { entrance.tryAgain() }
  }

  // MARK: - Guests

  /// Somebody has connected.
  func receive(_ descriptor: consuming Descriptor, _ peer: SocketAddress?, at entrance: Entrance) {
    lastGuest += 1
    guard let descriptor = makeRoom(for: descriptor, peer, at: entrance) else { return }
    let guest = Guest(lastGuest, descriptor, peer, at: entrance, in: self)
    guests[guest.number] = guest
    counts.note(unfinished: guests.count)
    deadlines.append((guest.number, poller.timers.now &+ patience.nanoseconds))
    if timer == nil { setTimer() }
    guest.begin()
  }

  /// Where there are too many, one of the address that has most goes for a newcomer, and a newcomer of that very address does not get
  /// in: who comes from few addresses can't keep out others. The descriptor that it is to have, nil when it was refused.
  private func makeRoom(
    for descriptor: consuming Descriptor, _ peer: SocketAddress?, at entrance: Entrance
  ) -> Descriptor? {
    let isShort = !descriptors.admits(descriptor.raw)
    // As many as there are listeners may use what is reserved: each may be the first client of its route.
    let areTooMany = guests.count >= rules.handshakes
    guard areTooMany || isShort && guests.count >= entrances.count else { return descriptor }
    counts.noteRefusal()
    let fault: any CountedRefusal = areTooMany ? GreetingFault.tooManyInAll : DescriptorShortage()
    // Behind a proxy it is not known yet who it is.
    let victim = limits.toMakeRoom(for: entrance.address.isProxied ? nil : peer, oldest: oldestGuest)
    guard let victim, let guest = guests[victim] else {
      Guest(lastGuest, descriptor, peer, at: entrance, in: self).refuse(fault)
      return nil
    }
    guest.refuse(fault)
    guard isShort else { return descriptor }
    // Its number is one of those that are reserved; a lower one has just become free.
    let lower = fcntl(descriptor.raw, F_DUPFD_CLOEXEC, 0)
    return lower < 0 ? descriptor : Descriptor(owning: lower)
  }

  private var oldestGuest: UInt64? {
    deadlines[firstDeadline...].lazy.map(\.guest).first { self.guests[$0] != nil }
  }

  /// Gives up the room of clients that were many once.
  func shrink() {
    if guests.isEmpty { guests = [:] }
    if deadlines.isEmpty { deadlines = [] }
    limits.shrink()
  }

  private func setTimer() {
    let left = deadlines[firstDeadline].time &- min(poller.timers.now, deadlines[firstDeadline].time)
    timer = poller.timers.after(.nanoseconds(Int64(clamping: left))) { [weak self] in self?.timeIsOver() }
  }

  private func timeIsOver() {
    timer = nil
    let now = poller.timers.now
    while firstDeadline < deadlines.count, deadlines[firstDeadline].time <= now {
      let number = deadlines[firstDeadline].guest
      firstDeadline += 1
      guests[number]?.timeIsOver(after: patience)
    }
    // Nothing is waited for on behalf of those who have gone.
    while firstDeadline < deadlines.count, guests[deadlines[firstDeadline].guest] == nil { firstDeadline += 1 }
    deadlines.removeFirst(firstDeadline)
    firstDeadline = 0
    if !deadlines.isEmpty { setTimer() }
  }

  /// Whether the guest may be greeted now. Who waits is told by `mayGoOn()`.
  func mayBeGreeted(_ guest: Guest, from address: SocketAddress) -> AddressLimits.Verdict {
    let verdict = limits.enter(guest.number, from: address, at: poller.timers.now)
    watchCrowds()
    return verdict
  }

  /// Who is greeted while others of his address wait has a share of the time: else some who dribble would keep out those who
  /// come behind them until their own time is over.
  private func watchCrowds() {
    guard sweep == nil, limits.isCrowded else { return }
    sweep = poller.timers.after(patience / 60) { [weak self] in
      guard let self else { return }
      sweep = nil
      for number in limits.overdue(at: poller.timers.now, after: (patience * 3 / 20).nanoseconds) {
        guests[number]?.makeRoom()
      }
      watchCrowds()
    }
  }

  /// The guest is through, or gone.
  func left(_ guest: Guest, from address: SocketAddress?) {
    guests[guest.number] = nil
    counts.note(unfinished: guests.count)
    guard let address, let next = limits.leave(guest.number, from: address, at: poller.timers.now) else { return }
    // In a round of its own: whoever leaves may be in the middle of something.
    poller.timers.after(.zero) { [weak self] in self?.guests[next]?.mayGoOn() }
  }

  /// Closes a connection in order; what was written to it arrives.
  func part(from stream: any ByteStream) {
    lingering.close(stream, otherSideFinished: false, readingAtMost: Lingering.mostBeforeSession)
  }

  /// For `status` and tests.
  var guestCount: Int { guests.count }
  var entranceCount: Int { entrances.count }
}
