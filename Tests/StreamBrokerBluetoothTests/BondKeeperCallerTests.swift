// Devices that connect to listeners, with a played kernel: which pairing requests are answered, how, and whose keys are
// kept.

import ByteStreams
import StreamTestKit
import Synchronization
import Testing

@testable import StreamBrokerBluetooth

extension BondKeeperTests {
  @Test("keeps the keys of devices that connect to listeners, up to their limit in the file")
  func callers() throws {
    let keeper = machine.keeper(store.path)
    _ = keeper.prepared(adapter)
    machine.say(0x09, [1] + Keys.phone.encoded + Keys.link(1).bytes)
    _ = keeper.prepared(adapter)
    #expect(try kept() == [])
    keeper.receive(at: [BluetoothAddress([9, 9, 9, 9, 9, 9])])
    machine.say(0x09, [1] + Keys.phone.encoded + Keys.link(2).bytes)
    _ = keeper.prepared(adapter)
    #expect(try kept() == [])
    keeper.receive(at: [Keys.adapter])
    // A key that must not be stored, a Low Energy key, and a key to keep.
    machine.say(0x09, [0] + Keys.phone.encoded + Keys.link(3).bytes)
    machine.say(0x0A, [1] + Keys.lamp.encoded + Keys.longTerm(1).bytes)
    _ = keeper.prepared(adapter)
    #expect(try kept() == [])
    machine.say(0x09, [1] + Keys.phone.encoded + Keys.link(4).bytes)
    _ = keeper.prepared(adapter)
    #expect(try store.read().bonds(with: Keys.adapter) == [Bond(Keys.adapter, Keys.phone, [Keys.link(4)])])
    var file = try store.read()
    for number in 1..<192 as Range<UInt8> {
      let other = PairedAddress(BluetoothAddress([0, 0, 0, 0, 1, number]), .classic)
      _ = file.keep(Keys.link(0), of: other, with: Keys.adapter)
    }
    try write(file)
    let late = PairedAddress(BluetoothAddress([0, 0, 0, 0, 2, 0]), .classic)
    machine.say(0x09, [1] + late.encoded + Keys.link(5).bytes)
    _ = keeper.prepared(adapter)
    #expect(try kept().count == 192)
    let reported = machine.news.withLock { $0.last }
    #expect(reported?.contains("has 192 bonds, and no more are kept for devices that connect to listeners") == true)
    // Known devices may change their keys, and an endpoint's device is kept beyond the limit.
    machine.say(0x09, [1] + Keys.phone.encoded + Keys.link(6).bytes)
    keeper.expect(late)
    machine.say(0x09, [1] + late.encoded + Keys.link(7).bytes)
    _ = keeper.prepared(adapter)
    let bonds = try store.read().bonds(with: Keys.adapter)
    #expect(bonds.first?.keys == [Keys.link(6)] && bonds.last == Bond(Keys.adapter, late, [Keys.link(7)]))
  }

  @Test("pairs an unknown device that connects, refuses one that claims a known address, and reports that once")
  func consent() throws {
    let keeper = machine.keeper(store.path)
    _ = keeper.prepared(adapter)
    let wish = Keys.phone.encoded + [1, 0, 0, 0, 0]
    machine.say(0x0F, wish)
    _ = keeper.prepared(adapter)
    #expect(machine.answers == [])  // no adapter has a listener
    keeper.receive(at: [Keys.adapter])
    machine.say(0x0F, wish)
    _ = keeper.prepared(adapter)
    #expect(machine.answers == [[0x1C, 0, 1, 0, 7, 0] + Keys.phone.encoded])
    try store.keep(Keys.link(1), of: Keys.phone, with: Keys.adapter)
    for _ in 1...3 { machine.say(0x0F, wish) }
    _ = keeper.prepared(adapter)
    let refusal = [0x1D, 0, 1, 0, 7, 0] + Keys.phone.encoded
    #expect(Array(machine.answers.dropFirst()) == [refusal, refusal, refusal])
    let reported = machine.news.withLock { $0 }
    #expect(reported.count == 1 && reported[0].contains("remove line 3 of \(store.path)"))
    // While bluetoothd runs, the keeper does not answer.
    machine.daemon.withLock { $0 = [true] }
    machine.say(0x0F, wish)
    _ = keeper.prepared(adapter)
    machine.daemon.withLock { $0 = [false] }
    _ = keeper.prepared(adapter)
    #expect(machine.answers.count == 4)
  }

  @Test("refuses PINs and numbers, and explains what they need", arguments: [0x0E, 0x0F, 0x10] as [UInt16])
  func numbers(question: UInt16) throws {
    let keeper = machine.keeper(store.path)
    _ = keeper.prepared(adapter)
    keeper.receive(at: [Keys.adapter])
    let rest: [UInt8] = question == 0x0F ? [0, 1, 0, 0, 0] : question == 0x0E ? [0] : []
    machine.say(question, Keys.phone.encoded + rest)
    _ = keeper.prepared(adapter)
    let codes: [UInt16: UInt8] = [0x0E: 0x17, 0x0F: 0x1D, 0x10: 0x1F]
    #expect(machine.answers == [[codes[question] ?? 0, 0, 1, 0, 7, 0] + Keys.phone.encoded])
    #expect(machine.news.withLock { $0.first }?.contains("an agent of bluetoothd") == true)
  }

  @Test("leaves a device's pairing to the opening that connects to it, for its time and at its adapter only")
  func opening() throws {
    let keeper = machine.keeper(store.path)
    keeper.receive(at: [Keys.adapter])
    func isAnswered() -> Bool { machine.hearsAnswer(of: keeper, at: adapter) }
    keeper.expect(Keys.phone)
    #expect(isAnswered())
    keeper.enter(Keys.phone, at: 2)
    #expect(isAnswered())
    for _ in 1...2 { keeper.enter(Keys.phone, at: 1) }
    #expect(!isAnswered())
    keeper.leave(Keys.phone, at: 1)
    #expect(!isAnswered())
    keeper.leave(Keys.phone, at: 1)
    #expect(isAnswered())
    try store.keep(Keys.link(1), of: Keys.phone, with: Keys.adapter)
    #expect(isAnswered())
    #expect(machine.answers.last?.first == 0x1D)
    // A device stays known after its opening is over: a key it pairs at the end is kept.
    keeper.receive(at: [])
    machine.say(0x09, [1] + Keys.phone.encoded + Keys.link(2).bytes)
    _ = keeper.prepared(adapter)
    #expect(try store.read().bonds(with: Keys.adapter).first?.keys == [Keys.link(2)])
  }

  @Test("reports each refused device once, also when several try in turns, and again after a pairing")
  func refusals() throws {
    let keeper = machine.keeper(store.path)
    keeper.receive(at: [Keys.adapter])
    let callers = (1...17 as ClosedRange<UInt8>).map { PairedAddress(BluetoothAddress([0, 0, 0, 0, 1, $0]), .classic) }
    func toldOf(_ devices: ArraySlice<PairedAddress>) -> Int {
      _ = keeper.prepared(adapter)
      machine.news.withLock { $0 = [] }
      for device in devices { machine.say(0x10, device.encoded) }
      _ = keeper.prepared(adapter)
      return machine.news.withLock { $0.count { $0.hasPrefix("refused") } }
    }
    #expect(toldOf(callers[..<16]) == 16)
    #expect(toldOf(callers[..<16]) == 0)
    #expect(toldOf(callers[16...]) == 1)
    #expect(toldOf(callers[1...]) == 0)
    #expect(toldOf(callers[..<1]) == 1)
    machine.say(0x09, [1] + Keys.phone.encoded + Keys.link(1).bytes)
    #expect(toldOf(callers[..<1]) == 1)
  }
}

extension BondKeeperTests.Machine {
  /// Whether the keeper answers a phone that asks to pair.
  func hearsAnswer(of keeper: BondKeeper, at adapter: ManagedAdapter) -> Bool {
    _ = keeper.prepared(adapter)
    let count = answers.count
    say(0x0F, Keys.phone.encoded + [1, 0, 0, 0, 0])
    _ = keeper.prepared(adapter)
    return answers.count > count
  }
}
