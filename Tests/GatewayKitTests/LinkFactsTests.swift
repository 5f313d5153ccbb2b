// The facts known about a link's device: reported when it opens, again when more is known, and never for a device that
// is gone.

import ByteStreams
import StreamTestKit
import Testing

@testable import GatewayKit

@Suite("The known facts of a device", .timeLimit(.minutes(5)))
struct LinkFactsTests {
  private func facts(_ name: String) -> DeviceFacts {
    var facts = DeviceFacts()
    facts.name = name
    return facts
  }

  @Test("are reported after the opening, and again when the device reports more")
  func reported() throws {
    let rig = try LinkRig()
    rig.join(ScriptedStream())
    let (endpoint, metadata) = (ScriptedStream(), StreamMetadata(facts("a")))
    endpoint.metadata = metadata
    var reported: [Int] = []
    rig.onStatus = { _ in reported.append(rig.facts.count) }
    rig.openings[0].succeed(endpoint)
    #expect(reported == [0])
    metadata.update { $0.name = "a" }
    #expect(rig.facts == [facts("a")])
    metadata.update { $0.name = "b" }
    #expect(rig.facts == [facts("a"), facts("b")])
  }

  @Test("are not reported while they are empty")
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

  @Test("are not reported once the device is gone")
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

  @Test(
    "are asked for when a client of a port comes or has received nothing, each ten seconds at most",
    arguments: [true, false])
  func otherReaders(isPort: Bool) throws {
    let rig = try LinkRig()
    let first = rig.join(ScriptedStream(takesAll: true))
    let (endpoint, metadata) = (ScriptedStream(takesAll: true), StreamMetadata())
    endpoint.metadata = metadata
    if isPort { endpoint.serialLine = ScriptedLine() }
    var looks = 0
    metadata.refresh = { done in
      looks += 1
      done()
    }
    rig.openings[0].succeed(endpoint)
    #expect(looks == 0, "the connector has just looked")
    rig.pass(.milliseconds(9999))
    rig.join(ScriptedStream(takesAll: true))
    #expect(looks == 0)
    rig.pass(.milliseconds(2))
    rig.join(ScriptedStream(takesAll: true))
    rig.join(ScriptedStream(takesAll: true))
    #expect(looks == (isPort ? 1 : 0))
    rig.pass(.seconds(10))
    endpoint.willRead(.bytes([1]))
    rig.wakeReader(endpoint)
    let late = rig.join(ScriptedStream(takesAll: true))
    #expect(looks == (isPort ? 2 : 0))
    rig.pass(.seconds(10))
    rig.link.hub.end(first, Ending(.kicked))
    #expect(looks == (isPort ? 2 : 0), "it has received a byte")
    rig.link.hub.end(late, Ending(.kicked))
    #expect(looks == (isPort ? 3 : 0), "it has received nothing")
  }
}
