// Scanning for all devices: discovery is restarted when it ends, names are requested, and at the end discovery is
// stopped.

import Testing

@testable import StreamBrokerBluetooth

@Suite("A discovery")
struct DiscoveryFlowTests {
  private func handle(_ flow: inout DiscoveryFlow, _ event: ManagementEvent?) -> DiscoveryFlow.Step {
    event.map { flow.handle($0) } ?? .giveUp(.isGone)
  }

  private func begun(_ kinds: DiscoveryKinds = [.classic, .lowEnergy]) -> DiscoveryFlow {
    var flow = DiscoveryFlow(kinds, on: 0)
    #expect(handle(&flow, Kernel.answer(.startDiscovery, 0, [7])) == .wait)
    return flow
  }

  /// A Classic device; flag 0: the kernel asks whether its name is known.
  private static func classic(wantsName: Bool, _ advertised: [UInt8] = []) -> ManagementEvent? {
    Kernel.event(
      0x12, 0,
      [1, 0, 0, 1, 0xAA, 0, 0, 0xC4, wantsName ? 1 : 0, 0, 0, 0] + LittleEndian.bytes(UInt16(advertised.count))
        + advertised)
  }

  @Test(
    "scans for the requested kinds",
    arguments: [([.classic, .lowEnergy], 7), (.classic, 1), (.lowEnergy, 6)] as [(DiscoveryKinds, UInt8)])
  func kinds(kinds: DiscoveryKinds, bits: UInt8) {
    var flow = DiscoveryFlow(kinds, on: 0)
    #expect(flow.firstCommand.encoded == [0x23, 0, 0, 0, 1, 0, bits])
    #expect(handle(&flow, Kernel.answer(.startDiscovery, 0, [bits])) == .wait)
    #expect(flow.ending?.encoded == [0x24, 0, 0, 0, 1, 0, bits])
    guard case .send(let command) = flow.stop() else {
      Issue.record("not ended")
      return
    }
    #expect(command.encoded == [0x24, 0, 0, 0, 1, 0, bits])
  }

  @Test("reports each device, and requests unknown names")
  func received() throws {
    var flow = begun()
    guard case .received(let device, let question) = handle(&flow, Self.classic(wantsName: true)) else {
      Issue.record("not heard")
      return
    }
    #expect(device.kind == .classic && device.address.description == "00:AA:01:00:00:01" && device.strength == -60)
    #expect(question?.encoded == [0x25, 0, 0, 0, 8, 0, 1, 0, 0, 1, 0xAA, 0, 0, 0])
    guard case .received(_, nil) = handle(&flow, Self.classic(wantsName: false)),
      case .received(_, nil) = handle(&flow, Kernel.found(0, 5, []))
    else {
      Issue.record("not heard, or asked for")
      return
    }
    #expect(handle(&flow, Kernel.found(1, 5, [])) == .wait)  // of another adapter
  }

  @Test("restarts when it ends by itself, and reports when it is stopped")
  func again() {
    var flow = begun()
    #expect(handle(&flow, Kernel.event(0x13, 0, [7, 1])) == .wait)
    #expect(handle(&flow, Kernel.event(0x13, 0, [7, 0])) == .send(flow.firstCommand))
    #expect(handle(&flow, Kernel.event(0x13, 0, [7, 0])) == .wait)
    #expect(handle(&flow, Kernel.answer(.startDiscovery, 0, [7])) == .wait)
    #expect(flow.stop() == .send(.discovery(false, 0, of: [.classic, .lowEnergy])))
    #expect(flow.stop() == .wait)
    #expect(handle(&flow, Self.classic(wantsName: true)) == .wait)
    #expect(handle(&flow, Kernel.event(0x13, 0, [7, 0])) == .wait)
    #expect(handle(&flow, Kernel.answer(.stopDiscovery, 0, [7])) == .stopped)
    #expect(handle(&flow, Kernel.answer(.stopDiscovery, 0, [7])) == .wait)
    #expect(flow.stop() == .wait)
  }

  @Test("is stopped after its start if it was stopped before")
  func early() {
    var flow = DiscoveryFlow(.classic, on: 0)
    #expect(flow.stop() == .wait)
    #expect(handle(&flow, Kernel.answer(.startDiscovery, 0, [1])) == .send(.discovery(false, 0, of: .classic)))
    #expect(handle(&flow, Kernel.answer(.stopDiscovery, 0, status: 0x0B)) == .stopped)
    var refused = DiscoveryFlow(.classic, on: 0)
    #expect(refused.stop() == .wait)
    #expect(handle(&refused, Kernel.answer(.startDiscovery, 0, status: 0x14)) == .stopped)
  }

  @Test("does not stop another program's discovery, and need not wait for it")
  func another() {
    var flow = DiscoveryFlow(.classic, on: 0)
    #expect(handle(&flow, Kernel.answer(.startDiscovery, 0, status: 0x0A)) == .retryLater)
    guard case .received = handle(&flow, Self.classic(wantsName: false)) else {
      Issue.record("not heard")
      return
    }
    #expect(handle(&flow, Kernel.event(0x13, 0, [1, 0])) == .wait)
    #expect(flow.ending == nil)
    #expect(flow.stop() == .stopped)
    #expect(flow.handleRetry() == .wait)
  }

  @Test("ends when the adapter is removed")
  func gone() {
    var flow = begun()
    #expect(handle(&flow, Kernel.event(5, 1, [])) == .wait)
    #expect(handle(&flow, Kernel.event(5, 0, [])) == .giveUp(.isGone))
    #expect(flow.stop() == .wait)
    var late = begun()
    #expect(handle(&late, Kernel.event(0x13, 0, [7, 0])) == .send(late.firstCommand))
    #expect(handle(&late, Kernel.answer(.startDiscovery, 0, status: 0x11)) == .giveUp(.isGone))
    var stopping = begun()
    _ = stopping.stop()
    #expect(handle(&stopping, Kernel.event(5, 0, [])) == .stopped)
  }

  @Test("ends when the adapter, or the kind it scans for, is switched off", arguments: [0x0F, 0x0B] as [UInt8])
  func off(status: UInt8) {
    var flow = begun()
    #expect(handle(&flow, Kernel.event(0x13, 0, [7, 0])) == .send(flow.firstCommand))
    #expect(handle(&flow, Kernel.answer(.startDiscovery, 0, status: status)) == .giveUp(.isOff))
  }

  @Test("takes an adapter with Low Energy where there is one, and one without where that will do")
  func needs() {
    func steps(_ need: AdapterFlow.Need, _ information: ManagementEvent?) -> AdapterFlow.Step? {
      var flow = AdapterFlow(nil, need: need)
      return [Kernel.list(0), information].compactMap { $0 }.map { flow.handle($0) }.last
    }
    let both = Kernel.information(0, isOn: false, speaksLE: false, speaksClassic: true)
    #expect(steps([], both) == .send(.turnOn(.setLE, of: 0)))
    #expect(steps(.classic, both) == .send(.turnOn(.setPowered, of: 0)))
    #expect(steps(.lowEnergy, both) == .send(.turnOn(.setLE, of: 0)))
    let old = Kernel.information(0, hasLE: false, isOn: false, speaksLE: false, speaksClassic: true)
    #expect(steps([], old) == .send(.turnOn(.setPowered, of: 0)))
    #expect(steps(.lowEnergy, old) == .giveUp(.noLE("hci0")))
    let new = Kernel.information(0, isOn: true, speaksLE: true, speaksClassic: false)
    #expect(steps(.classic, new) == .giveUp(.noClassic("hci0")))
    guard case .ready = steps([], new) else {
      Issue.record("not taken")
      return
    }
  }
}
