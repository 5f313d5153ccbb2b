// An adapter that devices can connect to: what the flow asks, what it switches on, what it reports when that fails, and
// what later events mean.

import Testing

@testable import StreamBrokerBluetooth

extension Kernel {
  /// An adapter with Classic. hciN has the address 00:…:0N.
  static func classic(
    _ adapter: UInt16, isOn: Bool = true, isConnectable: Bool = true, isDiscoverable: Bool = false,
    hasClassic: Bool = true
  ) -> ManagementEvent? {
    let bits: [(Bool, UInt8)] = [(isOn, 1), (isConnectable, 2), (isDiscoverable, 8), (hasClassic, 0x80)]
    let settings: [UInt8] = [0xFF, 2, 0, 0, bits.reduce(0) { $1.0 ? $0 | $1.1 : $0 }, 0, 0, 0]
    return answer(.information, adapter, [UInt8(adapter), 0, 0, 0, 0, 0, 9, 0xFF, 0xFF] + settings + [0, 0, 0])
  }
  static func added(_ adapter: UInt16) -> ManagementEvent? { event(4, adapter, []) }
  static func removed(_ adapter: UInt16) -> ManagementEvent? { event(5, adapter, []) }
  static func settings(_ adapter: UInt16) -> ManagementEvent? { event(6, adapter, [0, 0, 0, 0]) }
}

@Suite("An adapter that others connect to")
struct ReachabilityFlowTests {
  /// The steps that follow the events, without `.wait`.
  private func play(
    _ wanted: String? = nil, isDiscoverable: Bool = false, _ events: ManagementEvent?...
  ) -> [ReachabilityFlow.Step] {
    var flow = ReachabilityFlow(wanted, isDiscoverable: isDiscoverable)
    #expect(flow.begin() == .list)
    return events.map { $0.map { handle($0, &flow) } ?? .waits(.noClassic("an event that is none")) }
      .filter { $0 != .wait }
  }

  /// Handles `event`, and prepares the adapter if that is the next step. Returns the step after it.
  private func handle(_ event: ManagementEvent, _ flow: inout ReachabilityFlow) -> ReachabilityFlow.Step {
    let step = flow.handle(event)
    if case .prepare = step { return flow.handlePrepared(.ours) }
    return step
  }

  private func reached(_ step: ReachabilityFlow.Step?) -> (name: String, remark: ReachabilityFlow.Remark?)? {
    if case .reachable(let reached) = step { (reached.name, reached.remark) } else { nil }
  }

  @Test("is prepared for pairing before devices can connect; events meanwhile are not lost")
  func prepared() throws {
    var flow = ReachabilityFlow(nil, isDiscoverable: false)
    _ = flow.begin()
    _ = flow.handle(try #require(Kernel.list(0)))
    let dark = try #require(Kernel.classic(0, isOn: false, isConnectable: false))
    guard case .prepare(let adapter) = flow.handle(dark), adapter.index == 0 else {
      Issue.record("it was not prepared")
      return
    }
    #expect(flow.handle(try #require(Kernel.removed(7))) == .send(.list))
    #expect(flow.handlePrepared(.ours) == .wait)  // too late
    _ = flow.handle(try #require(Kernel.list(0)))
    _ = flow.handle(dark)
    #expect(flow.handle(try #require(Kernel.settings(0))) == .wait)
    #expect(flow.handlePrepared(.ours) == .send(.turnOn(.setConnectable, of: 0)))
    #expect(flow.handlePrepared(.ours) == .wait)
    _ = flow.handle(try #require(Kernel.answer(.setConnectable, 0)))
    // The adapter has changed meanwhile.
    #expect(flow.handle(try #require(Kernel.answer(.setPowered, 0))) == .send(.list))
    _ = flow.handle(try #require(Kernel.list(0)))
    _ = flow.handle(try #require(Kernel.classic(0)))
    guard case .reachable(let reached) = flow.handlePrepared(.daemon) else {
      Issue.record("it can't be reached")
      return
    }
    #expect(reached.pairing == .daemon)
    #expect(flow.handle(try #require(Kernel.added(1))) == .send(.list))
    _ = flow.handle(try #require(Kernel.list(0)))
    _ = flow.handle(try #require(Kernel.classic(0)))
    #expect(flow.handle(try #require(Kernel.removed(0))) == .send(.list))
    #expect(flow.handlePrepared(.ours) == .wait)
  }

  @Test("is prepared once, and again when adapters have come, gone or changed, or when that may not have been seen")
  func once() throws {
    var flow = ReachabilityFlow(nil, isDiscoverable: false)
    let (list, on) = (try #require(Kernel.list(0)), try #require(Kernel.classic(0)))
    /// Runs up to the preparation; false if there is none.
    func look(hasMissed: Bool = false) -> Bool {
      _ = flow.begin(hasMissed: hasMissed)
      _ = flow.handle(list)
      guard case .prepare = flow.handle(on) else { return false }
      return true
    }
    for side in [.nobody, .daemon, .ours] as [BondKeeper.Standing.Side] {
      #expect(look() && flow.prepared.isEmpty)
      _ = flow.handlePrepared(side)
    }
    #expect(look() && flow.prepared == [0])
    for event in [Kernel.added(1), Kernel.removed(1), Kernel.settings(0)] {
      _ = flow.handle(try #require(event))
      #expect(look() && flow.prepared.isEmpty)
      _ = flow.handlePrepared(.ours)
      #expect(flow.prepared == [0])
    }
    #expect(look(hasMissed: true) && flow.prepared.isEmpty)
    // An event that arrives meanwhile counts.
    _ = flow.handle(try #require(Kernel.settings(0)))
    _ = flow.handlePrepared(.ours)
    #expect(flow.prepared.isEmpty)
  }

  @Test(
    "has a limit where devices must pair and cannot",
    arguments: [
      ("low", false, .nobody, nil), ("medium", false, .ours, nil), ("high", true, .ours, "a number is compared"),
      ("medium", false, .nobody, "CAP_NET_BIND_SERVICE"), ("medium", true, .nobody, nil),
      ("high", false, .daemon, "bluetoothctl agent on"), ("high", true, .daemon, nil),
    ] as [(String, Bool, BondKeeper.Standing.Side, String?)])
  func limits(security: String, isBondable: Bool, pairing: BondKeeper.Standing.Side, words: String?) throws {
    let reached = ReachabilityFlow.Reached(
      name: "hci0", address: Keys.adapter, isBondable: isBondable, pairing: pairing)
    let limit = reached.pairingLimit(of: try BluetoothHostTests.offer("?security=\(security)"))
    #expect(limit?.contains(words ?? "nothing") ?? false == (words != nil), "\(limit ?? "none")")
  }

  @Test("is used unchanged when it is ready; the first that is on")
  func ready() {
    let steps = play(nil, Kernel.list(1, 0), Kernel.classic(0, isOn: false), Kernel.classic(1))
    #expect(steps.dropLast() == [.send(.ask(0)), .send(.ask(1))])
    #expect(reached(steps.last)?.name == "hci1")
    for wanted in ["hci1", "00:00:00:00:00:01"] {
      #expect(reached(play(wanted, Kernel.list(0, 1), Kernel.classic(0), Kernel.classic(1)).last)?.name == "hci1")
    }
    let le = Kernel.classic(0, hasClassic: false)
    #expect(reached(play(nil, Kernel.list(0, 1), le, Kernel.classic(1)).last)?.name == "hci1")
  }

  @Test("is made connectable, discoverable if requested, and switched on, in that order")
  func switched() {
    let dark = Kernel.classic(0, isOn: false, isConnectable: false)
    let plain = play(
      nil, Kernel.list(0), dark, Kernel.answer(.setConnectable, 0), Kernel.answer(.setPowered, 0))
    #expect(
      plain.dropLast() == [
        .send(.ask(0)), .send(.turnOn(.setConnectable, of: 0)), .send(.turnOn(.setPowered, of: 0)),
      ])
    #expect(reached(plain.last)?.name == "hci0" && reached(plain.last)?.remark == nil)
    let shown = play(
      nil, isDiscoverable: true, Kernel.list(0), dark, Kernel.answer(.setConnectable, 0),
      Kernel.answer(.setDiscoverable, 0), Kernel.answer(.setPowered, 0))
    #expect(shown[2] == .send(.showAlways(0)) && reached(shown.last)?.remark == nil)
    #expect(ManagementCommand.showAlways(2).encoded == [6, 0, 2, 0, 3, 0, 1, 0, 0])
    #expect(ManagementCommand.turnOn(.setConnectable, of: 2).encoded == [7, 0, 2, 0, 1, 0, 1])
    // An adapter that is discoverable already stays so.
    #expect(play(nil, isDiscoverable: true, Kernel.list(0), Kernel.classic(0, isDiscoverable: true)).count == 2)
  }

  @Test("is used as it is if the gateway may not switch it")
  func mayNot() {
    let denied: UInt8 = 0x14
    let closed = Kernel.classic(0, isConnectable: false)
    let limited = play(
      nil, isDiscoverable: true, Kernel.list(0), closed, Kernel.answer(.setConnectable, 0, status: denied))
    #expect(reached(limited.last)?.remark == .notConnectable("hci0"))
    let hidden = play(
      nil, isDiscoverable: true, Kernel.list(0), Kernel.classic(0), Kernel.answer(.setDiscoverable, 0, status: denied))
    #expect(reached(hidden.last)?.remark == .notDiscoverable("hci0"))
    // Only a denied command is reported as a missing capability.
    let refused = play(
      nil, isDiscoverable: true, Kernel.list(0), closed, Kernel.answer(.setConnectable, 0, status: 0x0B))
    #expect(reached(refused.last)?.remark == .refused("hci0", .setConnectable, status: 0x0B))
    #expect(reached(refused.last)?.remark?.advice.contains("status 11") == true)
    let unseen = play(
      nil, isDiscoverable: true, Kernel.list(0), Kernel.classic(0), Kernel.answer(.setDiscoverable, 0, status: 0x0B))
    #expect(reached(unseen.last)?.remark == .refused("hci0", .setDiscoverable, status: 0x0B))
    let gone = play(nil, Kernel.list(0), closed, Kernel.answer(.setConnectable, 0, status: 0x11))
    #expect(gone.last == .waits(.isGone("hci0")))
    let off = play(nil, Kernel.list(0), Kernel.classic(0, isOn: false), Kernel.answer(.setPowered, 0, status: denied))
    #expect(off.last == .waits(.mayNot("hci0", isOff: true)))
  }

  @Test("is waited for, with the reason")
  func missing() {
    #expect(play(nil, Kernel.list()) == [.waits(.none)])
    #expect(play(nil, Kernel.list(0), Kernel.answer(.information, 0, status: 0x11)).last == .waits(.none))
    #expect(play("hci7", Kernel.list()) == [.waits(.none)])
    guard case .waits(.noSuch("hci7", others: _)) = play("hci7", Kernel.list(0), Kernel.classic(0)).last else {
      Issue.record("taken")
      return
    }
    let le = play(nil, Kernel.list(0), Kernel.classic(0, hasClassic: false))
    #expect(le.last == .waits(.noClassic("hci0")))
    let off = Kernel.classic(0, isOn: false)
    for status in [0x03, 0x12] as [UInt8] {
      let steps = play(nil, Kernel.list(0), off, Kernel.answer(.setPowered, 0, status: status))
      #expect(steps.last == .waits(.isBlocked("hci0")))
    }
    #expect(
      play(nil, Kernel.list(0), off, Kernel.answer(.setPowered, 0, status: 0x11)).last
        == .waits(.isGone("hci0")))
    #expect(
      play(nil, Kernel.list(0), off, Kernel.answer(.setPowered, 0, status: 0x0D)).last
        == .waits(.refused("hci0", status: 0x0D)))
  }

  @Test("is the next one if the first can't be switched on and none is named")
  func blocked() {
    let off = [Kernel.list(0, 1), Kernel.classic(0, isOn: false), Kernel.classic(1, isOn: false)]
    let blocked = Kernel.answer(.setPowered, 0, status: 0x12)
    let other = play(nil, off[0], off[1], off[2], blocked, Kernel.answer(.setPowered, 1))
    #expect(other.dropLast().last == .send(.turnOn(.setPowered, of: 1)) && reached(other.last)?.name == "hci1")
    let none = play(nil, off[0], off[1], off[2], blocked, Kernel.answer(.setPowered, 1, status: 0x14))
    #expect(none.last == .waits(.isBlocked("hci0")))
    #expect(play("hci0", off[0], off[1], off[2], blocked).last == .waits(.isBlocked("hci0")))
  }

  @Test("is checked again whenever adapters appear, disappear or change, at any step")
  func news() {
    for news in [Kernel.added(1), Kernel.removed(0)] {
      #expect(play(nil, news) == [.send(.list)])
      #expect(play(nil, Kernel.list(0), news).last == .send(.list))
      #expect(play(nil, Kernel.list(0), Kernel.classic(0, isOn: false), news).last == .send(.list))
      #expect(play(nil, Kernel.list(0), Kernel.classic(0), news).last == .send(.list))
      #expect(play(nil, Kernel.list(), news).last == .send(.list))
    }
    #expect(play(nil, Kernel.list(0), Kernel.classic(0), Kernel.settings(0)).last == .send(.list))
    // An event in the middle of a look causes one more look afterwards.
    #expect(play(nil, Kernel.list(0), Kernel.settings(0), Kernel.classic(0)) == [.send(.ask(0)), .send(.list)])
    let back = play(nil, Kernel.list(), Kernel.added(0), Kernel.list(0), Kernel.classic(0))
    #expect(reached(back.last)?.name == "hci0")
  }

  @Test("is checked again when another program is switching it; late and repeated events are ignored")
  func late() throws {
    var flow = ReachabilityFlow(nil, isDiscoverable: false)
    _ = flow.begin()
    for event in [Kernel.list(0), Kernel.classic(0, isOn: false)] { _ = handle(try #require(event), &flow) }
    #expect(flow.handle(try #require(Kernel.answer(.setPowered, 1))) == .wait)
    #expect(flow.handle(try #require(Kernel.answer(.setConnectable, 0))) == .wait)
    let busy = try #require(Kernel.answer(.setPowered, 0, status: ManagementStatus.busy))
    #expect(flow.handle(busy) == .retryLater)
    #expect(flow.handleRetry() == .send(.list))
    #expect(flow.handle(try #require(Kernel.classic(0))) == .wait)
    _ = flow.handle(try #require(Kernel.list(0)))
    #expect(reached(handle(try #require(Kernel.classic(0)), &flow))?.name == "hci0")
    for event in [Kernel.classic(0), Kernel.list(0), Kernel.answer(.setPowered, 0)] {
      #expect(flow.handle(try #require(event)) == .wait)
    }
    #expect(flow.handleRetry() == .wait)
  }
}
