// What ends a link's wait besides its timer, and which timeout ends an opening.

import ByteStreams
import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import GatewayKit

@Suite("A link that waits for its device", .timeLimit(.minutes(5)))
struct LinkWatchTests {
  @Test("retries at once when its watch reports news, also during a try, and watches only while it waits")
  func woken() throws {
    let rig = try LinkRig { $0.retry = .seconds(20) ... .seconds(30) }
    rig.join(ScriptedStream())
    #expect(rig.connector.watch == nil)
    rig.openings[0].fail()
    let watch = try #require(rig.connector.watch)
    #expect(rig.connector.watchedAfter?.errno == 2)
    watch.changed(.appeared)
    #expect(rig.openings.count == 2)
    watch.changed(.appeared)  // that try may have come too early
    rig.openings.last?.fail()
    rig.pass(.zero)
    try #require(rig.openings.count == 3 && rig.connector.watch === watch && !watch.isCancelled)
    rig.openings[2].succeed(ScriptedStream())
    #expect(watch.isCancelled && rig.link.status == .open)
    watch.changed(.appeared)
    #expect(rig.openings.count == 3)
  }

  @Test("reports its own tries to its watch, and tries four times when another program releases the device")
  func freed() throws {
    let rig = try LinkRig { $0.retry = .seconds(20) ... .seconds(30) }
    rig.join(ScriptedStream())
    rig.openings[0].fail(EBUSY)
    let watch = try #require(rig.connector.watch)
    #expect(rig.connector.watchedAfter?.errno == EBUSY && watch.tries.isEmpty)
    watch.changed(.freed)
    for (count, pause) in [(2, 20), (3, 80), (4, 400)] {
      #expect(rig.openings.count == count)
      rig.openings[count - 1].fail(EBUSY)
      rig.pass(.milliseconds(pause - 1))
      #expect(rig.openings.count == count)
      rig.pass(.milliseconds(1))
    }
    #expect(rig.openings.count == 5 && watch.tries == [nil, EBUSY, nil, EBUSY, nil, EBUSY, nil])
  }

  @Test(
    "that is lost is retried after its shortest pause only if it stayed open for 10 s after a client's first bytes",
    arguments: Carried.allCases, [Duration.milliseconds(200), .seconds(9), .seconds(11)])
  func lostSoon(carried: Carried, held: Duration) throws {
    let rig = try LinkRig()
    let client = ScriptedStream(takesAll: true)
    rig.join(client)
    if carried == .before {
      let device = ScriptedStream(reads: [.ended], takesAll: true)
      rig.openings[0].succeed(device)
      client.willRead(.moved(3))
      rig.wakeReader(client)
      #expect(device.written.count == 3)
      rig.wakeReader(device)
      rig.pass(.seconds(30))
    }
    for _ in 0..<12 {
      rig.openings.last?.fail()
      rig.pass(.seconds(30))
    }
    let device = ScriptedStream(
      reads: (carried == .down ? [.moved(3)] : []) + [.blocked(until: .readable), .ended], takesAll: carried != .kept)
    rig.openings.last?.succeed(device)
    rig.wakeReader(device)
    switch carried {
    case .up, .kept:
      client.willRead(.moved(3))
      rig.wakeReader(client)
      if carried == .kept {
        // The endpoint was blocked, and takes them later.
        #expect(device.written.isEmpty)
        device.willWrite(.moved(3))
        rig.wakeWriter(device)
      }
    case .upOfOneWhoLeft:
      let other = ScriptedStream(reads: [.moved(3)], takesAll: true)
      let session = rig.join(other)
      rig.wakeReader(other)
      rig.link.hub.end(session, Ending(.clientLeft))
    case .down, .before, .nothing: break
    }
    let isUp = carried == .up || carried == .kept || carried == .upOfOneWhoLeft
    #expect(device.written.count == (isUp ? 3 : 0))
    rig.pass(held)
    for _ in 0..<3 { rig.wakeReader(device) }
    #expect(rig.words.last == "waiting")
    let pause = try #require(rig.pauses.last)
    #expect(isUp && held > .seconds(10) ? pause <= .milliseconds(250) : pause > .seconds(20))
  }

  /// Which bytes the link carried; `before`: only an earlier opening did.
  enum Carried: CaseIterable { case down, up, kept, upOfOneWhoLeft, before, nothing }

  @Test("watches no more when no client waits")
  func unwanted() throws {
    let rig = try LinkRig { $0.absent = .close }
    rig.join(ScriptedStream())
    var watch: ScriptedWatch?
    rig.onStatus = { _ in watch = watch ?? rig.connector.watch }
    rig.openings[0].fail()
    #expect(rig.link.status == .closed)
    #expect(watch?.isCancelled ?? true && rig.connector.watch == nil)
  }

  @Test("leaves the timeout to a connector with steps, which gets the route's connect timeout")
  func stepped() throws {
    let rig = try LinkRig()
    let script = ScriptedConnector()
    let settings = try rig.settings(connector: SteppedScript(script)) { device in
      device.open = .always
      device.connectTimeout = .seconds(3)
    }
    let link = Link(settings, on: rig.poller, closing: rig.closing, delegate: rig)
    link.start()
    #expect(script.connectTimeout == .seconds(3))
    rig.pass(.seconds(60))
    #expect(script.openings.count == 1 && !script.openings[0].isCancelled && link.status == .opening)
    script.openings[0].succeed(ScriptedStream(takesAll: true))
    #expect(link.status == .open)
    link.stop(Ending(.shutdown))
  }
}
