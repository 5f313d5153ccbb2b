// What wakes a link that waits, beside its timer, and whose time it is that ends an opening.

import ByteStreams
import StreamBroker
import StreamTestKit
import Testing

@testable import GatewayKit

@Suite("A link that waits for its device", .timeLimit(.minutes(1)))
struct LinkWatchTests {
  @Test("tries again at once when what it watches has news, also during a try, and watches no longer than it waits")
  func woken() throws {
    let rig = try LinkRig { $0.retry = .seconds(20) ... .seconds(30) }
    rig.join(ScriptedStream())
    #expect(rig.connector.watch == nil)
    rig.openings[0].fail()
    let watch = try #require(rig.connector.watch)
    #expect(rig.connector.watchedAfter?.errno == 2)
    watch.changed()
    #expect(rig.openings.count == 2)
    watch.changed()  // that try may have come too early
    rig.openings[1].fail()
    rig.pass(.seconds(20))
    #expect(rig.openings.count == 3 && rig.connector.watch === watch && !watch.isCancelled)
    rig.openings[2].succeed(ScriptedStream())
    #expect(watch.isCancelled && rig.link.status == .open)
    watch.changed()
    #expect(rig.openings.count == 3)
  }

  @Test("watches no more when nobody waits")
  func unwanted() throws {
    let rig = try LinkRig { $0.absent = .close }
    rig.join(ScriptedStream())
    var watch: ScriptedWatch?
    rig.onStatus = { _ in watch = watch ?? rig.connector.watch }
    rig.openings[0].fail()
    #expect(rig.link.status == .closed)
    #expect(watch?.isCancelled ?? true && rig.connector.watch == nil)
  }

  @Test("leaves the time to a connector with steps, which has the route's for connecting")
  func stepped() throws {
    let rig = try LinkRig()
    let script = ScriptedConnector()
    let settings = try rig.settings(connector: SteppedScript(script)) { device in
      device.open = .always
      device.connectTimeout = .seconds(3)
    }
    #expect((settings.connector as? SteppedScript)?.connectPatience == .seconds(3))
    let link = Link(settings, on: rig.poller, lingering: rig.lingering, delegate: rig)
    link.start()
    rig.pass(.seconds(60))
    #expect(script.openings.count == 1 && !script.openings[0].isCancelled && link.status == .opening)
    script.openings[0].succeed(ScriptedStream(takesAll: true))
    #expect(link.status == .open)
    link.stop(Ending(.shutdown))
  }
}
