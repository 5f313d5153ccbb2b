import StreamBroker
import StreamConformanceKit
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("The figures of a route", .timeLimit(.minutes(1)))
struct RouteFiguresTests {
  private func figures(of rig: GroupRig) throws -> RouteFigures {
    var all: [RouteFigures] = []
    rig.group.figures { all.append($0) }
    return try #require(all.first)
  }

  @Test("count clients, bytes, and what is kept from them and for them")
  func queued() throws {
    let rig = try GroupRig("link: shared")
    let quick = ScriptedStream(reads: [.moved(7)], writes: [.moved(100)])
    let slow = ScriptedStream(writes: [.moved(4), .blocked(until: .writable)])
    let session = try #require(rig.take(quick, 1))
    rig.take(slow, 2)
    rig.wake(quick, .hasBytesAvailable)  // kept: the endpoint is not open yet
    #expect(try figures(of: rig).queuedUp == 7 && figures(of: rig).links == ["opening": 1])
    let endpoint = ScriptedStream(reads: [.moved(10)], writes: [.moved(100)])
    rig.open(endpoint)
    rig.wake(endpoint, .hasBytesAvailable)
    let now = try figures(of: rig)
    #expect(now.clients == 2 && now.queuedUp == 0 && now.queuedDown == 6)
    #expect(now.totals.up == 7 && now.totals.down == session.down.bytes + 4 && now.links == ["open": 1])
  }

  @Test("of several lanes are added up; the port and the recording are those of one")
  func parts() {
    var part = RouteFigures()
    part.totals.up = 1
    part.totals.ended = [.kicked: 2]
    part.clients = 3
    part.queuedUp = 4
    part.queuedDown = 5
    part.links = ["open": 6]
    part.linkCounts = LinkCounts(opened: 7, lost: 8, failed: 9)
    part.line = LineCounts(breaks: 10)
    part.capture = Snapshot.Capture(file: "/x", error: nil, written: 11, dropped: 12)
    var all = RouteFigures()
    all.add(RouteFigures())
    all.add(part)
    all.add(part)
    #expect(all.totals.up == 2 && all.totals.ended == [.kicked: 4] && all.clients == 6)
    #expect(all.queuedUp == 8 && all.queuedDown == 10 && all.links == ["open": 12])
    #expect(all.linkCounts == LinkCounts(opened: 14, lost: 16, failed: 18))
    #expect(all.line == part.line && all.capture == part.capture)
  }

  @Test("count how often the link was opened, lost and could not be opened")
  func links() throws {
    let rig = try GroupRig("link: shared, device: { open: always, retry: 10ms..10ms }")
    rig.connector.openings[0].fail()
    rig.pass(.milliseconds(20))
    let endpoint = ScriptedStream(reads: [.ended])
    rig.open(endpoint)
    rig.wake(endpoint, .hasBytesAvailable)
    rig.pass(.milliseconds(20))
    rig.open(ScriptedStream())
    #expect(try figures(of: rig).linkCounts == LinkCounts(opened: 2, lost: 1, failed: 1))
  }

  @Test("have the port's error counters, and the last ones while the driver is slow or the port is away")
  func line() throws {
    let rig = try GroupRig("link: shared, device: { open: always }")
    #expect(try figures(of: rig).line == nil)
    let (endpoint, line) = (ScriptedStream(), ScriptedLine())
    endpoint.serialLine = line
    rig.open(endpoint)
    line.conditionNow = .success(LineCondition(counts: LineCounts(breaks: 1, overruns: 3)))
    var all: [LineCounts?] = []
    rig.group.figures { all.append($0.line) }
    #expect(all.isEmpty)
    line.answer()
    #expect(all == [LineCounts(breaks: 1, overruns: 3)])
    line.conditionNow = .success(LineCondition(counts: LineCounts(breaks: 2)))
    rig.group.figures { all.append($0.line) }
    rig.pass(.milliseconds(190))
    #expect(all.count == 1)
    rig.pass(.milliseconds(20))
    #expect(all.count == 2 && all.last == LineCounts(breaks: 1, overruns: 3))
    line.answer()  // late: for the next time
    #expect(all.count == 2)
    line.conditionNow = .failure(SystemError("ioctl", 25))
    rig.group.figures { all.append($0.line) }
    line.answer()
    #expect(all.last == LineCounts(breaks: 2))
  }
}
