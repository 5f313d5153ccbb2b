// What is known of the device behind a link: told when it opens, again when more is known, and never of one that is gone.

import ByteStreams
import StreamTestKit
import Testing

@testable import GatewayKit

@Suite("What is known of a device", .timeLimit(.minutes(1)))
struct LinkFactsTests {
  private func facts(_ name: String) -> DeviceFacts {
    var facts = DeviceFacts()
    facts.name = name
    return facts
  }

  @Test("is told behind the opening, and again when it has said more")
  func told() throws {
    let rig = try LinkRig()
    rig.join(ScriptedStream())
    let (endpoint, metadata) = (ScriptedStream(), StreamMetadata(facts("a")))
    endpoint.metadata = metadata
    var told: [Int] = []
    rig.onStatus = { _ in told.append(rig.facts.count) }
    rig.openings[0].succeed(endpoint)
    #expect(told == [0])
    metadata.update { $0.name = "a" }
    #expect(rig.facts == [facts("a")])
    metadata.update { $0.name = "b" }
    #expect(rig.facts == [facts("a"), facts("b")])
  }

  @Test("is not told while there is nothing to tell")
  func nothing() throws {
    let rig = try LinkRig()
    rig.join(ScriptedStream())
    let (endpoint, metadata) = (ScriptedStream(), StreamMetadata())
    endpoint.metadata = metadata
    rig.openings[0].succeed(endpoint)
    #expect(rig.facts.isEmpty)
    metadata.update { $0.mtu = 23 }
    #expect(rig.facts.map(\.mtu) == [23])
  }

  @Test("is not told of a device that is gone")
  func gone() throws {
    let rig = try LinkRig()
    rig.join(ScriptedStream())
    let metadata = StreamMetadata(facts("a"))
    let endpoint = ScriptedStream(reads: [.failed(SystemError("read", 5))])
    endpoint.metadata = metadata
    rig.openings[0].succeed(endpoint)
    rig.wakeReader(endpoint)
    #expect(rig.words.last == "waiting")
    metadata.update { $0.name = "late" }
    #expect(rig.facts == [facts("a")])
  }
}
