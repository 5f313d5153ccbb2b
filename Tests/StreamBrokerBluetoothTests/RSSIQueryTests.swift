// Signal strength: the request to the kernel, the meaning of its answers, and an end to the wait for one that never
// comes.

import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import StreamBrokerBluetooth

@Suite("A query of signal strength", .timeLimit(.minutes(5)))
struct RSSIQueryTests {
  private typealias Device = GATTStreamTests.Device
  private typealias Made = (Result<DescriptorParcel, OpenFailure>) -> Void

  private final class Hanging: Opening {
    private(set) var isCancelled = false
    func cancel() { isCancelled = true }
  }

  private let clock = ManualClock()
  private let poller: Poller
  private let metadata = StreamMetadata()
  private let making = Hanging()

  init() throws {
    let clock = clock.clock
    poller = try Poller(clock: clock) { _ in }
  }

  private func make(_ made: @escaping (@escaping Made) -> Void) -> RSSIQuery {
    RSSIQuery(of: Keys.phone, on: 1, for: metadata, on: poller) { [making] _, done in
      made(done)
      return making
    }
  }

  /// The kernel's answer about a link of adapter 1.
  private func answer(_ strength: Int8, of device: PairedAddress = Keys.phone, status: UInt8 = 0) -> [UInt8] {
    let content = device.encoded + [UInt8(bitPattern: strength), 4, 4]
    return [status == 0 ? 1 : 2, 0, 1, 0, UInt8(content.count + 3), 0, 0x31, 0, status] + content
  }

  @Test("asks once for all waiting callers, stores the result, notifies no listener, and leaves no socket open")
  func asks() throws {
    let (parcel, device) = try Device.pair()
    defer { device.hangUp() }
    var made: [Made] = []
    let query = make { made.append($0) }
    var done = 0
    metadata.changed = { Issue.record("it was told") }
    for _ in 1...3 { query.ask { done += 1 } }
    try #require(made.count == 1)
    made[0](.success(parcel))
    #expect(device.handle() == [0x31, 0, 1, 0, 7, 0] + Keys.phone.encoded)
    try device.say([6, 0, 1, 0, 4, 0, 0, 0, 0, 0])
    var other = answer(-3)
    other[2] = 2
    try device.say(other)
    _ = poller.turn(waiting: 10)
    #expect(done == 0)
    try device.say(answer(-71))
    for _ in 0..<100 where done == 0 { _ = poller.turn(waiting: 10) }
    #expect(done == 3 && metadata.facts.signalStrength == -71)
    #expect(throws: (any Error).self, "its socket is closed") { try device.say([0]) }
    // A later query makes a new socket.
    query.ask { done += 1 }
    #expect(made.count == 2)
    made[1](.failure(OpenFailure("open", nil)))
    #expect(done == 4)
  }

  @Test("ends in time without an answer, whatever does not answer")
  func silent() throws {
    var made: [Made] = []
    let query = make { made.append($0) }
    var done = 0
    query.ask { done += 1 }
    clock.advance(by: .milliseconds(500))
    poller.timers.fireDue()
    #expect(done == 1 && making.isCancelled)
    let (parcel, device) = try Device.pair()
    defer { device.hangUp() }
    query.ask { done += 1 }
    made[1](.success(parcel))
    clock.advance(by: .milliseconds(500))
    poller.timers.fireDue()
    #expect(done == 2 && metadata.facts.isEmpty)
    #expect(throws: (any Error).self) { try device.say([0]) }
  }

  @Test(
    "has no result if the controller sends none, or for another device",
    arguments: [
      ([0, 0, 0, 0, 0, 0], 0, nil), ([9, 0, 0, 1, 0xAA, 0, 0, 0x80], 0, -128), ([9, 0, 0, 1, 0xAA, 0, 0, 127], 0, nil),
      ([9, 0, 0, 1, 0xAA, 0, 0, 5], 0, 5), ([9, 0, 0, 1, 0xAA, 0, 0, 5], 0x14, nil),
      ([9, 0, 0, 1, 0xAA, 0, 0], 0, nil), ([9, 0, 0, 1, 0xAA, 0, 1, 5], 0, nil), ([], 0, nil),
    ] as [([UInt8], UInt8, Int?)])
  func answers(content: [UInt8], status: UInt8, strength: Int?) {
    #expect(RSSIQuery.strength(of: Keys.phone, status, content[...]) == strength)
  }
}
