// Runs one input: a route's session group with its link, hub and device, on a manual clock, with the model in parallel.
// The fuzzer's bytes choose the policies and the events; README.md lists what is checked.

import Glibc
import StreamBroker

@testable import ByteStreams
@testable import GatewayKit

final class PolicyRun {
  private let rig: PollerRig
  let world: PolicyWorld
  private(set) lazy var recording = RecordingModel(self)
  private(set) var route: Config.Route
  let isShared: Bool
  let isLine: Bool
  /// Clients may be telnet clients, and the device's line is watched.
  let hasTelnet: Bool
  private var connector: PlayedConnector!
  private(set) var group: SessionGroup!
  private var links: [LinkModel] = []
  /// By slot, which a byte of the input names.
  private(set) var clients: [ClientModel?] = Array(repeating: nil, count: 8)
  /// Clients whose sessions are not over, and all earlier ones, whose streams may linger.
  private var everybody: [ClientModel] = []
  private var past: [ClientModel] = []
  private var streams: [PlayedStream] = []
  private var lastNumber: UInt64 = 0

  /// The first rule that did not hold.
  private(set) var broken: String?
  private(set) var step = 1
  private(set) var isReloading = false
  private(set) var reloadedIn = 0
  private(set) var isStopping = false
  private var hasStopped = false
  private var writer: UInt64?
  private var slotsAreWanted = false
  var now: UInt64 { rig.now }
  var deviceIsFullSince: UInt64?
  private var heldUpSince: UInt64?
  private var heldUpAt = 0

  // Policies that were in force at some time, and may still have consequences.
  private(set) var closeWas = false
  private var discardWas = false
  private var flushWas = false
  private(set) var leastDrain = Duration.seconds(3600)
  private(set) var idleLimits: [Duration] = []
  /// Reset recipes that were in force, and the first one.
  private(set) var recipes: [ResetRecipe] = []
  private var recipe: ResetRecipe??
  private(set) var recipeHasChanged = false

  init(_ world: PolicyWorld, _ input: inout ArraySlice<UInt8>) {
    self.world = world
    rig = world.rig
    let shape = input.popFirst() ?? 0
    isShared = shape & 7 != 7
    isLine = shape & 8 == 0
    hasTelnet = shape & 0x80 != 0
    route = world.route
    route.link = isShared ? .shared : .perClient
    for key in 0..<PolicyKey.places {
      let value = Int((input.popFirst() ?? 0) & 7)
      if key < PolicyKey.varied.count { vary(key, value) }
    }
    if isShared { route.capture = RecordingModel.settings(Int(shape >> 4)) }
    recording.begins(route.capture)
    noteSettings()
    if PoliciesProperty.tells {
      PoliciesProperty.report(
        "\(route.link) \(isLine ? "line" : "no line")\(hasTelnet ? " telnet" : "") \(route.clients) \(route.device) packets \(route.packets as Any) capture \(route.capture as Any)"
      )
    }
    connector = isLine ? PlayedConnector(self) : PlayedOtherConnector(self)
    if isShared { links.append(LinkModel(self)) }
    // `unsafe`, because the run, the sink and all reporters use one thread.
    nonisolated(unsafe) let run = Weak(self)
    let status = StatusSink([{ run.value?.hears($0) }])
    group = SessionGroup(settings, on: rig.poller, status: status, captures: world.recordings.environment) { _, _ in }
    if isShared {
      links[0].link = group.sharedLink
      links[0].hub = group.sharedLink?.hub
      group.sharedLink?.jitter = { 0.5 }
    }
  }

  private final class Weak {
    weak var value: PolicyRun?
    init(_ value: PolicyRun) { self.value = value }
  }

  private var settings: RouteSettings { RouteSettings(route, connector: connector) }

  private func vary(_ key: Int, _ value: Int) {
    if isShared || !PolicyKey.sharedOnly.contains(key) { PolicyKey.varied[key].vary(&route, value) }
  }

  private func noteSettings() {
    closeWas = closeWas || route.device.absent == .close
    discardWas = discardWas || route.device.absent == .discard
    flushWas = flushWas || route.device.flush.atDisconnect
    leastDrain = min(leastDrain, route.device.drain)
    if let recipe = route.device.reset, !recipes.contains(recipe) { recipes.append(recipe) }
    if let recipe, recipe != route.device.reset { recipeHasChanged = true }
    recipe = recipe ?? route.device.reset
    if let limit = route.clients.idleTimeout, !idleLimits.contains(limit) { idleLimits.append(limit) }
  }

  var tells: Bool { PoliciesProperty.tells }
  /// `device.flush` may drop what the port holds.
  var mayFlush: Bool { flushWas }
  var hasShortDrains: Bool { leastDrain < .seconds(5) }
  func telnetClients(of link: LinkModel) -> [ClientModel] {
    hasTelnet ? (everybody + past).filter { $0.link === link && $0.telnet != nil } : []
  }

  func fail(_ rule: String) { if broken == nil { broken = "step \(step): \(rule)" } }

  /// Input that is not delivered need not be a fault.
  var mayDropAnyInput: Bool { dropsByPolicy || isStopping }
  var dropsByPolicy: Bool { discardWas || flushWas }

  // MARK: - Steps

  /// Plays one step; false if the input is used up.
  func play(_ input: inout ArraySlice<UInt8>) -> Bool {
    guard let what = input.popFirst(), let how = input.popFirst() else { return false }
    step += 1
    if PoliciesProperty.tells { report(Int(what), Int(how)) }
    grantRights()
    act(Int(what & 15), slot: Int(what >> 4 & 7), Int(how))
    if what & 0x80 == 0 { turn() }
    endStep()
    if PoliciesProperty.tells { tellState() }
    return broken == nil
  }

  private func act(_ what: Int, slot: Int, _ how: Int) {
    let client = clients[slot].flatMap { $0.isOver ? nil : $0 }
    switch what {
    case 0: connect(slot, UInt8(how))
    case 2 where client?.telnet != nil: client?.telnet?.command(how)
    case 1, 2: if let client { send(client, how) }
    case 3:
      guard let stream = client?.stream else { break }
      stream.room = how == 0 ? 0 : how >= 250 ? .max : stream.room == .max ? how : stream.room + how
    case 4: if let client { leave(client, how) }
    case 5, 6: if let link = link(slot) { say(link, how, times: what == 6 ? 4 : 1) }
    case 7:
      guard let device = link(slot)?.device else { break }
      device.room = how == 0 ? 0 : how >= 250 ? .max : device.room == .max ? how : device.room + how
    case 8: if let link = link(slot) { endDevice(link, how) }
    case 9: answerOpening(how)
    case 11 where hasTelnet && how < 96: touchPort(link(slot), how)
    case 10, 11: pass(how)
    case 12: reload(how)
    case 13: if !isStopping { sendAway(client, how) }
    case 14: touchLine(link(slot), how)
    default:
      if how < 64 {
        connector.watch?.changed(how & 1 == 0 ? .appeared : .freed)
      } else if how >= Self.releases, how < 255 {
        release(how < Self.reopenings)
      } else if how < 255 {
        beCalm()
      } else {
        stop()
      }
    }
  }

  /// Prints the next step, with FUZZ_TELL=1.
  private func report(_ what: Int, _ how: Int) {
    let slot = what >> 4 & 7
    let name =
      switch what & 15 {
      case 0:
        "client \(slot) connects, kind \(how & 127)\(how & 128 == 0 ? "" : hasTelnet ? ", and is a telnet client" : ", and speaks HTTP")"
      case 2 where clients[slot]?.telnet != nil: "client \(slot) sends command \((how >> 3) % 13), value \(how & 7)"
      case 1, 2: "client \(slot) sends \((how & 31) + 1) bytes, delimiters \(how >> 5)"
      case 3: "client \(slot) has room: \(how)"
      case 4: "client \(slot) \(["finishes", "finishes", "is reset", "takes no more"][how & 3])"
      case 5, 6:
        "the device says \((how & 31) + 1) bytes, delimiters \(how >> 5)\(what & 15 == 6 ? ", four times" : "")"
      case 7: "the device has room: \(how)"
      case 8: "the device \(["ends", "breaks", "takes no more", "hangs up"][how & 3])"
      case 9: "the opening \(how & 7 == 7 ? "fails" : "succeeds, kind \(how >> 3 & 15)")"
      case 11 where hasTelnet && how < 96: "the port changes: \(how >> 4), \(how & 15)"
      case 10, 11: "\(Self.times[how & 15]) pass\(how & 0xF0 == 0xF0 ? ", all at once" : "")"
      case 12 where how >> 3 < PolicyKey.varied.count: "reload: \(PolicyKey.varied[how >> 3].name), value \(how & 7)"
      case 12 where how >= Self.recordings: "reload: recording, kind \(how & 3)"
      case 12: "reload: endpoint \(how % world.endpoints.count)"
      case 13: "client \(slot) is sent away, kind \(how & 7)"
      case 14: "the line answers \((how & 7) + 1) calls"
      default:
        how < 64
          ? "the node \(how & 1 == 0 ? "appears" : "is freed")"
          : how == 255
            ? "the route stops"
            : how < Self.releases ? "quiet" : how < Self.reopenings ? "the port is released" : "the port is reopened"
      }
    PoliciesProperty.report("\(step): \(name)\(what & 0x80 == 0 ? "" : "; no turn")")
  }

  private func tellState() {
    for link in links {
      guard let hub = link.hub else { continue }
      PoliciesProperty.report(
        "     link \(link.link?.status.word ?? "") head \(hub.head) ring \(hub.downstream.output.oldest) packets to \(link.lastEnd) "
          + "\(hub.downstream.isPaused ? "paused " : "")the device has \(link.device?.left ?? 0)")
      for session in hub.sessions {
        PoliciesProperty.report(
          "     session \(session.number) at \(session.down.cursor) of \(session.pump.taken) kept \(session.pump.count) "
            + "dropped \(session.dropped)\(session.down.takesOutput ? "" : " takes nothing")\(session.leaving.map { " leaving \($0.word)" } ?? "")"
        )
      }
    }
  }

  private func link(_ slot: Int) -> LinkModel? { isShared ? links[0] : clients[slot]?.link }

  private func connect(_ slot: Int, _ kind: UInt8) {
    guard clients[slot]?.isOver ?? true, !isStopping else { return }
    let link: LinkModel
    if isShared {
      link = links[0]
      link.followCuts()
    } else {
      link = LinkModel(self)
      links.append(link)
    }
    lastNumber += 1
    let starts = link.hub.map { link.starts(hub: $0) } ?? 0...0
    var label = AcceptedConnection.Label(
      address: nil, listener: "tcp://127.0.0.1:1", role: kind & 1 == 0 ? .writer : .monitor)
    let isTelnet = hasTelnet && kind & 128 != 0
    label.isRawTCP = !isTelnet  // HTTP is played with other clients
    let client = ClientModel(
      self, link, number: lastNumber, slot: slot, kind: kind, starts: starts,
      banner: route.clients.banner == nil ? [] : Array("hello a local client".utf8), isTelnet: isTelnet)
    clients[slot] = client
    everybody.append(client)
    streams.append(client.stream)
    connector.link = link
    grantRights()
    client.begin(on: rig.poller) {
      group.take($0, label, preface: [], lastNumber)
      if let own = group.links[lastNumber] { (link.link, link.hub) = (own, own.hub) }
    }
    client.couldWriteAtOnce = client.meet()?.up.mayWrite == true
    noteCompany()
    if isShared, route.clients.writers == .one, route.clients.takeover == .newest, client.role == .writer,
      !client.isOver, let session = client.session, session.leaving == nil, session.hub.upstream.writer !== session
    {
      // A client that was sent away because the device had ended has lost the role again.
      fail("the newest client does not get the writer role")
    }
  }

  private func noteCompany() {
    let present = everybody.filter { !$0.isOver }
    if present.count > 1 { for client in present { client.hadCompany = true } }
  }

  /// Bytes that only this client sends; delimiters where the fuzzer puts them.
  private func send(_ client: ClientModel, _ how: Int) {
    guard !client.stream.hasEnded, !client.stream.isBroken, client.stream.content.count < 1 << 16 else { return }
    if let telnet = client.telnet { return send(telnet, of: client, how) }
    for _ in 0..<(how & 31) + 1 {
      let place = client.stream.content.count
      if let byte = client.opening.popFirst() {
        client.stream.content.append(byte)
        continue
      }
      client.stream.content.append(0x80 | UInt8(client.slot << 4) | Self.mix(place) & 15)
    }
    Self.delimit(&client.stream.content, how)
    client.stream.arrived()
  }

  private func send(_ telnet: TelnetModel, of client: ClientModel, _ how: Int) {
    var bytes: [UInt8] = []
    for place in telnet.plain.count..<telnet.plain.count + (how & 31) + 1 {
      let low = Self.mix(place) & 15
      bytes.append(low == 15 ? 255 : 0x80 | UInt8(client.slot << 4) | low)
    }
    Self.delimit(&bytes, how)
    telnet.send(bytes)
  }

  private func say(_ link: LinkModel, _ how: Int, times: Int) {
    guard let device = link.device, !device.isClosed, !device.hasEnded, device.readFailure == nil else { return }
    guard device.content.count < 1 << 16 else { return }
    for _ in 0..<times {
      for _ in 0..<(how & 31) + 1 {
        let byte = 0x80 | Self.mix(device.content.count + link.head)
        device.content.append(hasTelnet && byte & 7 == 7 ? 255 : byte)
      }
      Self.delimit(&device.content, how)
    }
    device.arrived()
  }

  private static func mix(_ place: Int) -> UInt8 { UInt8(truncatingIfNeeded: (place &* 0x9E37_79B1) >> 16) & 127 }

  private static func delimit(_ content: inout [UInt8], _ how: Int) {
    if how & 64 != 0 { content += [13] }
    if how & 128 != 0 { content += [10, 10] }
    if how & 32 != 0 { content += [10] }
  }

  /// It finishes sending, or is reset, or only takes no more output.
  private func leave(_ client: ClientModel, _ how: Int) {
    switch how & 3 {
    case 0, 1: client.finishes()
    case 2:
      client.telnet?.release()
      client.stream.readFailure = SystemError("read", ECONNRESET)
      client.stream.writeFailure = SystemError("write", EPIPE)
    default: client.stream.writeFailure = SystemError("write", how & 4 == 0 ? EPIPE : ECONNRESET)
    }
  }

  private func endDevice(_ link: LinkModel, _ how: Int) {
    guard let device = link.device else { return }
    switch how & 3 {
    case 0: device.hasEnded = true
    case 1: device.readFailure = device.readFailure ?? SystemError("read", EIO)
    case 2: device.writeFailure = SystemError("write", EIO)
    default:
      device.hasEnded = true
      device.writeFailure = SystemError("write", EPIPE)
    }
    device.arrived()
  }

  private func answerOpening(_ how: Int) {
    guard let opening = connector.openings.first(where: { !$0.isOver }) else { return }
    connector.openings.removeAll { $0 === opening || $0.isOver }
    if how & 7 == 7 { return opening.answer(.failure(OpenFailure("open x", SystemError("open", ENOENT)))) }
    // The calls of a port that was open before are over.
    if hasTelnet { opening.link.device?.line?.answerAll() }
    let device = PlayedStream(
      PlayedStream.Kind(rawValue: UInt8(how >> 3 & 15) | (isLine ? 20 : 0)),
      line: isLine ? line(of: opening.link) : nil,
      account: opening.link)
    streams.append(device)
    opening.link.opened(device, route.device.onOpen)
    opening.answer(.success(device))
  }

  private func line(of link: LinkModel) -> PlayedLine {
    guard hasTelnet, let url = link.link?.settings.url else { return PlayedLine { [rig] in rig.now } }
    return PlayedLine(LineSettings(url), outputs: ModemOutputStates(dtr: true, rts: true)) { [rig] in rig.now }
  }

  /// The port's inputs change, errors occur, or its driver begins to refuse.
  private func touchPort(_ link: LinkModel?, _ how: Int) {
    guard let line = link?.device?.line else { return }
    switch how >> 4 {
    case 0, 1: line.changes { $0.inputs = ModemInputs(rawValue: UInt8(how & 15)) }
    case 2: line.changes { $0.changes &+= 1 }
    case 3: line.refuses = PlayedLine.Refusal(rawValue: how & 15) ?? .nothing
    case 5:
      guard let link, let owner = link.link, let recipe = try? ResetRecipe(how & 1 == 0 ? "esp32" : "avr") else {
        break
      }
      link.line.isCommanded(recipe)
      owner.reset(by: recipe) { [weak link] _ in link?.line.commandIsAnswered() }
    default:
      line.changes {
        if how & 1 != 0 { $0.counts?.breaks &+= 1 }
        if how & 2 != 0 { $0.counts?.framing &+= 1 }
        if how & 4 != 0 { $0.counts?.parity &+= 1 }
        if how & 8 != 0 { $0.counts?.overruns &+= 1 }
      }
    }
  }

  /// Reloads with one key changed; `how` names the key and its value.
  private func reload(_ how: Int) {
    guard !isStopping else { return }
    let key = how >> 3
    let writers = route.clients.writers
    if key < PolicyKey.varied.count {
      vary(key, how & 7)
      for link in links { link.line.policyChanged(writers: route.clients.writers != writers) }
    } else if how >= Self.recordings {
      if isShared { route.capture = RecordingModel.settings(how) }
    } else {
      let old = route.endpoint
      route.endpoint = world.endpoints[how % world.endpoints.count]
      let changesLine = isShared && route.endpoint != old && route.endpoint.differsInLineOnly(from: old)
      if changesLine { links[0].line.isReloaded(to: LineSettings(route.endpoint)) }
    }
    noteSettings()
    for client in clients { client?.upPacket.mayEnd() }
    if route.clients.slow == .dropOldest { for client in everybody { client.mayLose = true } }
    isReloading = true
    reloadedIn = step
    grantRights()
    if !route.clients.refuseHttp { for client in everybody { client.screenEnds() } }
    group.update(settings)
    recording.begins(route.capture)  // behind what the reload itself has read
    for link in links { link.followReload() }
    isReloading = false
    grantRights()
    for client in everybody where !mayWrite(client) { client.losesRight() }
  }

  private static let recordings = 252

  /// Sends clients away, as a route does.
  private func sendAway(_ client: ClientModel?, _ how: Int) {
    switch how & 7 {
    case 0, 1, 2:
      guard let client else { return }
      let word: Ending.Word = how & 7 == 0 ? .kicked : how & 7 == 1 ? .replaced : .denied
      client.reported = word
      if word == .denied {
        group.endForbidden { _ in true }
        client.reported = nil
      } else {
        group.end(client.number, Ending(word))
      }
    case 3:
      for client in everybody { client.reported = .denied }
      group.endForbidden { $0.role == .writer }
      for client in everybody where !client.isOver { client.reported = nil }
    case 4: group.freeSlotOfHalfClosed()
    default:
      slotsAreWanted.toggle()
      group.slotsAreWanted(slotsAreWanted)
    }
  }

  private static let releases = 244
  private static let reopenings = 250

  /// `baudway release` and `reopen`.
  private func release(_ isReleased: Bool) {
    guard isShared, !isStopping, let link = links[0].link else { return }
    releasedIn = step
    self.isReleased = isReleased
    if isReleased {
      if route.device.absent == .discard { discardWas = true }
      link.release { [weak self] _ in self?.releasesDue -= 1 }
      releasesDue += 1
    } else {
      link.reopen()
    }
  }
  /// The last step that released or reopened the port.
  private(set) var releasedIn = 0
  /// Nothing may be opened.
  private(set) var isReleased = false
  /// Answers that are due.
  private var releasesDue = 0

  private func touchLine(_ link: LinkModel?, _ how: Int) {
    guard let line = link?.device?.line else { return }
    if how & 128 != 0 { line.unsentCount = how & 63 }
    for _ in 0..<(how & 7) + 1 { line.answer() }
  }

  private func stop() {
    guard !isStopping else { return }
    isStopping = true
    group.stop(Ending(.shutdown)) { [weak self] in self?.hasStopped = true }
  }

  // MARK: - The lane

  /// Runs the lane once. Returns whether anything happened.
  @discardableResult
  private func turn() -> Bool {
    var isBusy = false
    var place = 0
    while place < streams.count {
      if streams[place].isClosed {
        streams.swapAt(place, streams.count - 1)
        streams.removeLast()
        continue
      }
      if streams[place].poll() { isBusy = true }
      place += 1
    }
    if rig.poller.hasAgain {
      rig.poller.runAgain()
      isBusy = true
    }
    rig.poller.timers.fireDue()
    return isBusy
  }

  private static let times: [Duration] = [
    .milliseconds(1), .milliseconds(5), .milliseconds(10), .milliseconds(20), .milliseconds(50), .milliseconds(100),
    .milliseconds(250), .milliseconds(500), .seconds(1), .seconds(2), .seconds(5), .seconds(10), .seconds(30),
    .milliseconds(40), .milliseconds(60), .seconds(3),
  ]

  private func pass(_ how: Int) { pass(Self.times[how & 15], late: how & 0xF0 == 0xF0) }

  /// Advances the clock from deadline to deadline, as a lane does; or all at once, like a late lane. With `calm` the
  /// lane comes to rest at each.
  private func pass(_ time: Duration, late: Bool = false, calm: Bool = false) {
    let end = now + time.nanoseconds
    var left = late ? 0 : 200
    while left > 0, let next = rig.poller.timers.nextMoment, next <= end, broken == nil {
      left -= 1
      setClock(max(now, next))
      turn()
      if calm { settleDown() }
      lookWhoHoldsUp(isLate: false)
    }
    setClock(end)
    turn()
    lookWhoHoldsUp(isLate: true)
  }

  /// What the device took was taken before this moment.
  private func setClock(_ moment: UInt64) {
    for link in links { link.settleUndecided() }
    for client in everybody { client.follow() }
    rig.now = moment
  }

  /// No client waits longer than 50 ms for another one, unless the policy allows it; with the check interval, 70 ms.
  private func lookWhoHoldsUp(isLate: Bool) {
    let isHeldUp = isShared && isOutputHeldUp
    if !isHeldUp {
      heldUpSince = nil
    } else if isLate || heldUpSince == nil || heldUpAt != links[0].head {
      heldUpSince = now
      heldUpAt = links[0].head
    } else if let heldUpSince, now - heldUpSince > 70_000_000 {
      fail("a client that takes all waits for others since \((now - heldUpSince) / 1_000_000) ms")
    }
  }

  private var isOutputHeldUp: Bool {
    guard route.clients.slow != .block, let device = links[0].device, device.left > 0, !device.isClosed,
      let hub = links[0].hub, hub.endpoint === device, hub.downstream.isPaused
    else { return false }
    return everybody.contains { $0.waitsForMore }
  }

  // MARK: - What must hold after each step

  private func grantRights() {
    for case let client? in clients where !client.isOver && mayWrite(client) { client.mayWrite() }
  }

  private func mayWrite(_ client: ClientModel) -> Bool {
    guard client.role == .writer else { return false }
    return switch route.clients.writers {
    case .all: true
    case .one: client.number == writer || !isShared
    case .none: false
    }
  }

  private func endStep() {
    for link in links {
      link.settleUndecided()
      if let hub = link.hub { link.look(hub) }
    }
    for client in everybody { client.look() }
    if isReleased, connector.openings.contains(where: { !$0.isOver }) { fail("a released port is opened") }
    if isShared, let hub = links[0].hub, route.clients.writers == .one, hub.upstream.writer == nil,
      let heir = hub.sessions.first(where: {
        $0.accepted.role == .writer && !$0.pump.sourceEnded && $0.leaving == nil
      }), !isStopping
    {
      fail("nobody has the writer role, though session \(heir.number) could")
    }
  }

  private func hears(_ event: StatusEvent) {
    if recording.hears(event) { return }
    for client in everybody { client.follow() }
    switch event {
    case .sessionEnded(_, let number, _, let report):
      guard let client = everybody.first(where: { $0.number == number }) else {
        return fail("a session ends that never was")
      }
      client.ended(report)
      everybody.removeAll { $0 === client }
      past.append(client)
      sessionsHaveEnded.insert(number)
      if isShared, let hub = links[0].hub, hub.sessions.isEmpty {
        // The output kept for the next client begins here.
        links[0].followCuts()
        links[0].mustFrom = links[0].available
        if route.device.flush.atDisconnect { links[0].unheardIsDropped() }
      }
    case .writerChanged(_, let from, let to): writerRoleMoves(from, to)
    case .link(_, _, let status, _):
      if status == .closed || status == .draining { links[0].unheardIsDropped() }
    default: break
    }
  }
  private var sessionsHaveEnded: Set<UInt64> = []

  private func writerRoleMoves(_ from: UInt64?, _ to: UInt64?) {
    if from != writer { fail("the writer role comes from \(from ?? 0), who does not have it") }
    writer = to
    everybody.first { $0.number == from }?.losesRight()
    guard let to else { return }
    guard let client = everybody.first(where: { $0.number == to }), client.role == .writer else {
      return fail("the writer role goes to \(to), which may not write")
    }
    client.mayWrite()
    guard let from, let holder = everybody.first(where: { $0.number == from }), !isReloading else { return }
    // Taken from a client that is still connected: it has finished, or another client may take over.
    if holder.stream.hasEnded || holder.stream.isBroken { return }
    if holder.session?.leaving != nil || holder.session?.isOver == true { return }
    switch route.clients.takeover {
    case .refuse: fail("the writer role is taken from \(from)")
    case .newest: if to != lastNumber { fail("the writer role goes to \(to), which is not the newest") }
    case .idle(let pause):
      if now - holder.activeAt < pause.nanoseconds && holder.wroteAt + pause.nanoseconds > now {
        fail("the writer role is taken from \(from), which was not idle for so long")
      }
    }
  }

  // MARK: - Quiet

  /// All clients take their output and the device answers: afterwards nothing deliverable is left.
  private func beCalm() {
    for stream in streams where !stream.isClosed { stream.room = .max }
    for client in everybody { client.telnet?.becomesCalm() }
    settleDown()
    // A packet's beginning holds up other writers for the idle gap that ends it, one writer after another; without
    // `idle` the gap is a second. It is counted from the last bit, and follows `on-open`, too.
    let isSlow = links.contains { $0.packets.map { ($0.idle ?? .seconds(1)) >= .seconds(1) } ?? false }
    let rounds = isSlow ? 2 * (2 + clients.count) : 3
    for round in 1...rounds + 64 {
      pass(.seconds(1), calm: true)
      let line = timeToSend
      let breaks = round > 1 ? .zero : everybody.reduce(.zero) { $0 + ($1.telnet?.timeOfBreaks ?? .zero) }
      if line + breaks > .zero { pass(line + breaks, calm: true) }
      settleDown()
      if round >= rounds, line == .zero, timeToSend == .zero { break }
    }
    // With `exchange` each packet may wait for an answer and for its silence.
    if links.contains(where: \.hasExchanges) {
      let packets = everybody.reduce(0) { $0 + $1.inputLeft }
      for _ in 0..<2 * packets where broken == nil {
        // Only another step opens a device that is away.
        if everybody.allSatisfy({ $0.inputLeft == 0 || !$0.link.isAttached }) { break }
        pass(.seconds(1) + timeToSend, calm: true)
        settleDown()
      }
    }
    // Breaks wait for the bytes ahead of them, and each of a client's ends by itself; settings wait for those bytes, too.
    // The line may be slower behind such a change. And a client that held up the device may have gone only now, so that
    // a packet has just begun.
    let isBusy = { (link: LinkModel) in
      link.followCuts()
      return link.device?.line.map { $0.isBreak || $0.isSending } ?? false
        || link.packets?.idle != nil && link.lastEnd != link.head && link.device?.hasEnded == false
    }
    for _ in 0..<64 where broken == nil && (links.contains(where: isBusy) || timeToSend > .zero) {
      pass(.seconds(1) + timeToSend, calm: true)
      settleDown()
    }
    for link in links where link.hub?.endpoint != nil && link.hub?.endpoint === link.device {
      // A client that has suspended can't go on while its session is not read.
      let isSuspended = everybody.contains { $0.link === link && $0.telnet?.isSuspendedForSession == true }
      // The device's last output may wait for a new client.
      if isShared, let hub = link.hub, hub.upstream.writeFailure != nil,
        !hub.downstream.isPaused || !hub.sessions.isEmpty && !isSuspended
      {
        fail("the device can't be written to, and is open still")
      }
      guard let device = link.device, !device.isBroken, link.link?.status == .open else { continue }
      if device.left > 0, !isSuspended,
        link.hub?.sessions.isEmpty == false || link.hub?.policy.dropsWithoutClients == true
      {
        fail("the device has \(device.left) bytes more, and nobody reads them")
      }
      link.followCuts()
      if link.packets?.idle != nil, link.lastEnd != link.head, !device.hasEnded, !isSuspended {
        fail("a packet is not over after seconds of silence")
      }
      for client in everybody where client.link === link { client.mustBeServed() }
      if hasTelnet, isLine { link.line.mustBeAtRest() }
      if hasTelnet, !isLine { link.line.mustKnow([.cts, .dsr, .dcd]) }
    }
  }

  private var timeToSend: Duration { links.map(\.timeToSend).max() ?? .zero }

  private func settleDown() {
    for _ in 0..<200_000 {  // one byte each, where packets are that short
      var isBusy = turn()
      for link in links {
        guard let line = link.device?.line, line.isAsked else { continue }
        line.answer()
        isBusy = true
      }
      if !isBusy || broken != nil { return }
    }
    fail("the lane does not come to rest")
  }

  /// All clients finish, and the route stops: each session must have ended once, and nothing may be left.
  func conclude() {
    step += 1
    if PoliciesProperty.tells { PoliciesProperty.report("\(step): the end: quiet, all finish, the route stops") }
    grantRights()
    if isReleased { release(false) }
    for _ in 0..<4 where broken == nil {
      while connector.openings.contains(where: { !$0.isOver }), broken == nil { answerOpening(0) }
      beCalm()
      connector.watch?.changed(.appeared)
    }
    endStep()
    step += 1
    grantRights()
    for client in everybody { client.finishes() }
    for link in links where !isShared { link.device?.hasEnded = true }
    for _ in 0..<5 where broken == nil && !everybody.isEmpty {
      pass(.seconds(30))
      settleDown()
    }
    if let left = everybody.first, broken == nil { fail("client \(left.number) has finished, and does not end") }
    endStep()
    stop()
    settleDown()
    for _ in 0..<3 where broken == nil && !hasStopped {
      pass(.seconds(10))
      settleDown()
    }
    if broken == nil, releasesDue != 0 { fail("\(releasesDue) releases have no answer") }
    if !hasStopped && broken == nil {
      group.cutOff(Ending(.shutdown))
      settleDown()
      pass(.seconds(10))
      if !hasStopped { fail("the route has not stopped") }
    }
    if broken == nil, UInt64(sessionsHaveEnded.count) != lastNumber {
      fail("\(sessionsHaveEnded.count) of \(lastNumber) sessions have ended")
    }
    if broken == nil { recording.mustBeWritten() }
  }

  /// Releases everything, so that the next input starts fresh.
  func end() {
    for stream in streams {
      stream.line?.forget()
      stream.close()
    }
    for client in everybody { client.stream.close() }
    for client in everybody + past { client.telnet?.close() }
    if recording.wasOn {
      group.recording.end(of: nil) {}
      world.recordings.write()
      world.recordings.remove()
    }
    rig.restart()
  }

  // MARK: - The endpoint

  fileprivate var linkToOpen: LinkModel { connector.link ?? links[0] }
}

/// What all inputs share.
final class PolicyWorld {
  let rig: PollerRig
  let route: Config.Route
  let endpoints: [EndpointURL]
  let recordings: RecordingFolder

  init() throws(Broken) {
    rig = try PollerRig()
    recordings = try RecordingFolder(rig)
    var routes: [Config.Route] = []
    for endpoint in ["tty:///dev/a?baud=9600", "tty:///dev/a?baud=115200", "tty:///dev/b?baud=9600"] {
      let text = "routes: { x: { listen: 'tcp://127.0.0.1:0', endpoint: '\(endpoint)' } }\n"
      guard let config = try? ConfigFile.read(Array(text.utf8), broker: Gateway.broker) else {
        throw Broken("the fuzzer's own configuration is wrong")
      }
      routes += config.routes
    }
    route = routes[0]
    endpoints = routes.map(\.endpoint)
  }
}

/// Each opening waits for the fuzzer.
class PlayedConnector: Connector, @unchecked Sendable {  // used by one thread
  class var grammar: SchemeGrammar {
    SchemeGrammar("played", example: "played:///x", authority: .none, path: .file)
  }
  class var isLine: Bool { true }
  private unowned let run: PolicyRun
  var link: LinkModel?
  var openings: [PlayedOpening] = []
  weak var watch: PlayedWatch?

  init(_ run: PolicyRun) { self.run = run }
  required init(_ url: EndpointURL) { fatalError("made by its run only") }

  func watch(
    on poller: Poller, after cause: SystemError?, _ changed: @escaping (DeviceNews) -> Void
  ) -> (any DeviceWatch)? {
    let watch = PlayedWatch(changed)
    self.watch = watch
    return watch
  }

  func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    let opening = PlayedOpening(run.linkToOpen, done)
    openings.append(opening)
    return opening
  }
}

final class PlayedOtherConnector: PlayedConnector, @unchecked Sendable {
  override class var isLine: Bool { false }
}

final class PlayedOpening: Opening {
  let link: LinkModel
  private(set) var isOver = false
  private let done: (Result<any ByteStream, OpenFailure>) -> Void

  init(_ link: LinkModel, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void) {
    self.link = link
    self.done = done
  }

  func answer(_ result: Result<any ByteStream, OpenFailure>) {
    isOver = true
    done(result)
  }

  func cancel() { isOver = true }
}

final class PlayedWatch: DeviceWatch {
  private var report: ((DeviceNews) -> Void)?
  init(_ changed: @escaping (DeviceNews) -> Void) { report = changed }
  func changed(_ news: DeviceNews) { report?(news) }
  func cancel() { report = nil }
}
