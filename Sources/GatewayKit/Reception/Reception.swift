// Where clients of listeners with a greeting are received, on a lane of its own: a PROXY header, and with it their address,
// comes first, TLS next, HTTP last. Whoever is through is handed over once, as an Arrival, to the lane of his route, which
// decides whether he gets in. However slow somebody is here, no byte of anybody else waits for him.

import ByteStreams
import StreamBroker

final class Reception {
  /// What holds for all listeners.
  struct Rules: Hashable, Sendable {
    var handshakesPerAddress = 100
    /// Networks whose PROXY headers are believed.
    var proxies: [Network] = []

    init(handshakesPerAddress: Int = 100, proxies: [Network] = []) {
      self.handshakesPerAddress = handshakesPerAddress
      self.proxies = proxies
    }

    init(_ config: Config) {
      self.init(handshakesPerAddress: config.limits.handshakesPerAddress, proxies: config.proxies)
    }
  }

  let poller: Poller
  let status: StatusSink
  let rates: ConnectRates
  private(set) var rules = Rules()
  private var entrances: [Entrance] = []
  private var faultsTold: [String] = []

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
    passwords: Passwords? = nil
  ) {
    self.poller = poller
    self.status = status
    self.rates = rates
    self.patience = patience
    lingering = Lingering(on: poller)
    logIns = LogIns(on: poller, passwords: passwords)
  }

  func follow(_ rules: Rules) {
    self.rules = rules
    for number in limits.set(most: rules.handshakesPerAddress, at: poller.timers.now) { guests[number]?.mayGoOn() }
  }

  /// Certificates may be others under the names that they have.
  func renewCertificates() { for entrance in entrances { entrance.renewCertificates() } }

  /// What is wrong with files of certificates, each once, and whether all have been read since that was asked for.
  var certificates: (faults: [String], areRead: Bool) {
    let each = entrances.map(\.certificates)
    let faults: [String] = each.flatMap { $0.faults }
    return (Set(faults).sorted(), each.allSatisfy { $0.areRead })
  }

  func tellFaults() {
    let faults = certificates.faults
    guard faults != faultsTold else { return }
    faultsTold = faults
    status.tell(.certificateFaults(faults))
  }

  // MARK: - Ways

  /// A listener wants its address: an entrance that is there already, or one of its own, bound now or as soon as it can be.
  func open(_ way: Way) {
    let address = Entrance.Address(way.listen)
    if let entrance = entrances.first(where: { $0.address == address && address.canBeShared }) {
      return entrance.add(way)
    }
    let entrance = Entrance(address, way, reception: self)
    entrances.append(entrance)
    entrance.start()
  }

  /// Other values hold for it; the address is the same.
  func change(_ way: Way) {
    for entrance in entrances { entrance.change(way) }
  }

  /// Closes an entrance with its last way. Who is on his way through ends with `word`.
  func close(_ number: UInt64, _ word: Ending.Word) {
    guard let entrance = entrances.first(where: { $0.has(number) }) else { return }
    entrance.remove(number)
    let isClosed = entrance.ways.isEmpty
    if isClosed {
      entrances.removeAll { $0 === entrance }
      tellFaults()
      entrance.close()
    }
    for guest in Array(guests.values) where guest.entrance === entrance && (isClosed || guest.way?.number == number) {
      guest.end(Ending(word))
    }
    // Another may have waited for that very address.
    if isClosed { for entrance in entrances { entrance.tryAgain() } }
  }

  // MARK: - Guests

  /// Somebody has connected.
  func receive(_ descriptor: consuming Descriptor, _ peer: SocketAddress?, at entrance: Entrance) {
    lastGuest += 1
    let guest = Guest(lastGuest, descriptor, peer, at: entrance, in: self)
    guests[guest.number] = guest
    deadlines.append((guest.number, poller.timers.now &+ patience.nanoseconds))
    if timer == nil { setTimer() }
    guest.begin()
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
    guard let address, let next = limits.leave(guest.number, from: address, at: poller.timers.now) else { return }
    // In a round of its own: whoever leaves may be in the middle of something.
    poller.timers.after(.zero) { [weak self] in self?.guests[next]?.mayGoOn() }
  }

  /// Closes a connection in order; what was written to it arrives.
  func part(from stream: any ByteStream) { lingering.close(stream, otherSideFinished: false) }

  /// For `status` and tests.
  var guestCount: Int { guests.count }
  var entranceCount: Int { entrances.count }
}
