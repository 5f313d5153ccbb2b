// Devices that call where listeners are, before a kernel that is played: who is answered and what, and whose keys are kept.

import ByteStreams
import StreamTestKit
import Synchronization
import Testing

@testable import StreamBrokerBluetooth

extension BondKeeperTests {
  @Test("keeps the keys of those who call where listeners are, until the file has as many as they may have")
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
    // One that is not to last, one of Low Energy, and one that is meant.
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
    let told = machine.news.withLock { $0.last }
    #expect(told?.contains("has 192 bonds, and takes no more of devices that call") == true)
    // Those that are known may change theirs, and an endpoint's device has room.
    machine.say(0x09, [1] + Keys.phone.encoded + Keys.link(6).bytes)
    keeper.expect(late)
    machine.say(0x09, [1] + late.encoded + Keys.link(7).bytes)
    _ = keeper.prepared(adapter)
    let bonds = try store.read().bonds(with: Keys.adapter)
    #expect(bonds.first?.keys == [Keys.link(6)] && bonds.last == Bond(Keys.adapter, late, [Keys.link(7)]))
  }

  @Test("lets a stranger who calls be paired, and nobody in the name of one who is known; once is enough to say so")
  func consent() throws {
    let keeper = machine.keeper(store.path)
    _ = keeper.prepared(adapter)
    let wish = Keys.phone.encoded + [1, 0, 0, 0, 0]
    machine.say(0x0F, wish)
    _ = keeper.prepared(adapter)
    #expect(machine.answers == [])  // nobody listens
    keeper.receive(at: [Keys.adapter])
    machine.say(0x0F, wish)
    _ = keeper.prepared(adapter)
    #expect(machine.answers == [[0x1C, 0, 1, 0, 7, 0] + Keys.phone.encoded])
    try store.keep(Keys.link(1), of: Keys.phone, with: Keys.adapter)
    for _ in 1...3 { machine.say(0x0F, wish) }
    _ = keeper.prepared(adapter)
    let refusal = [0x1D, 0, 1, 0, 7, 0] + Keys.phone.encoded
    #expect(Array(machine.answers.dropFirst()) == [refusal, refusal, refusal])
    let told = machine.news.withLock { $0 }
    #expect(told.count == 1 && told[0].contains("remove line 3 of \(store.path)"))
    // Beside bluetoothd nothing is answered.
    machine.daemon.withLock { $0 = [true] }
    machine.say(0x0F, wish)
    _ = keeper.prepared(adapter)
    machine.daemon.withLock { $0 = [false] }
    _ = keeper.prepared(adapter)
    #expect(machine.answers.count == 4)
  }

  @Test("refuses a PIN and numbers, and says what they take", arguments: [0x0E, 0x0F, 0x10] as [UInt16])
  func numbers(question: UInt16) throws {
    let keeper = machine.keeper(store.path)
    _ = keeper.prepared(adapter)
    keeper.receive(at: [Keys.adapter])
    let rest: [UInt8] = question == 0x0F ? [0, 1, 0, 0, 0] : question == 0x0E ? [0] : []
    machine.say(question, Keys.phone.encoded + rest)
    _ = keeper.prepared(adapter)
    let codes: [UInt16: UInt8] = [0x0E: 0x17, 0x0F: 0x1D, 0x10: 0x1F]
    #expect(machine.answers == [[codes[question] ?? 0, 0, 1, 0, 7, 0] + Keys.phone.encoded])
    #expect(machine.news.withLock { $0.first }?.contains("an agent of bluetoothd's") == true)
  }

  @Test("leaves it to who connects to a device to answer it, as long as he does, at his adapter only")
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
    // Whose opening is over is named still: what he pairs in its end is kept.
    keeper.receive(at: [])
    machine.say(0x09, [1] + Keys.phone.encoded + Keys.link(2).bytes)
    _ = keeper.prepared(adapter)
    #expect(try store.read().bonds(with: Keys.adapter).first?.keys == [Keys.link(2)])
  }

  @Test("says once of each that it was refused, also where several try by turns, and anew after somebody was paired")
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
  /// Whether the keeper says anything to a phone that wants to be paired.
  func hearsAnswer(of keeper: BondKeeper, at adapter: ManagedAdapter) -> Bool {
    _ = keeper.prepared(adapter)
    let count = answers.count
    say(0x0F, Keys.phone.encoded + [1, 0, 0, 0, 0])
    _ = keeper.prepared(adapter)
    return answers.count > count
  }
}
