// Which peers count as gone, with the kernel's answers played and the clock turned. That the kernel does answer so, for a
// peer whose packets are dropped, only an end-to-end test with a network of its own can show.

import CLinux
import StreamTestKit
import Testing

@testable import ByteStreams

@Suite("The watch over peers", .timeLimit(.minutes(1)))
struct PeerWatchTests {
  private final class Peer: WatchedPeer {
    var watchedDescriptor: Int32? = 7
    var watchPlace: Int?
    var isQuiet = false
    func peerIsQuiet() { isQuiet = true }
    var isBlocked = false
    var isGone = false
    func peerIsGone() { isGone = true }
  }

  private final class Bench {
    let clock = ManualClock()
    let timers: Timers
    var state = linux_tcp_state()
    private(set) var asked = 0
    private(set) lazy var watch = PeerWatch(timers: timers) { [unowned self] _ in
      asked += 1
      return state
    }
    init() throws { timers = try Timers(clock: clock.clock) }

    /// Lets time pass in steps of a second.
    func pass(_ seconds: Int) {
      for _ in 0..<seconds {
        clock.advance(by: .seconds(1))
        state.last_ack_milliseconds += 1000
        timers.fireDue()
      }
    }
  }

  @Test("finds one gone that leaves bytes unacknowledged within 30 s")
  func gone() throws {
    let bench = try Bench()
    let peer = Peer()
    bench.state.unacknowledged = 3
    bench.watch.add(peer)
    bench.pass(20)
    #expect(!peer.isGone)
    bench.pass(9)
    #expect(peer.isGone && peer.watchPlace == nil)
  }

  @Test("finds one gone that answers no window probe")
  func probes() throws {
    let bench = try Bench()
    let peer = Peer()
    bench.state.probes = 1
    bench.watch.add(peer)
    bench.pass(29)
    #expect(peer.isGone)
  }

  @Test("keeps one that reads slowly, for as long as it acknowledges")
  func slow() throws {
    let bench = try Bench()
    let peer = Peer()
    peer.isBlocked = true
    bench.state.not_sent = 100_000
    bench.watch.add(peer)
    for _ in 0..<20 {
      bench.state.unacknowledged = 1
      bench.pass(14)
      bench.state.last_ack_milliseconds = 0
    }
    #expect(!peer.isGone && peer.watchPlace != nil)
  }

  @Test("does not take a long silence for death when nothing is on its way")
  func idle() throws {
    let bench = try Bench()
    let peer = Peer()
    peer.isBlocked = true
    bench.state.last_ack_milliseconds = 3_600_000
    bench.watch.add(peer)
    bench.pass(60)
    #expect(!peer.isGone)
    bench.state.unacknowledged = 1  // one reading alone proves nothing: it may have been sent just now
    bench.pass(5)
    #expect(!peer.isGone)
  }

  @Test("forgets who has everything, and asks no more")
  func cleared() throws {
    let bench = try Bench()
    let peer = Peer()
    bench.watch.add(peer)
    bench.pass(5)
    #expect(peer.watchPlace == nil && bench.asked == 1)
    bench.pass(60)
    #expect(bench.asked == 1)
    bench.watch.add(peer)
    bench.pass(5)
    #expect(bench.asked == 2)
  }

  @Test("forgets who closed, and looks at all of a thousand")
  func many() throws {
    let bench = try Bench()
    let peers = (0..<1000).map { _ in Peer() }
    bench.state.unacknowledged = 1
    for peer in peers { bench.watch.add(peer) }
    for peer in peers.prefix(100) { peer.watchedDescriptor = nil }
    bench.pass(10)
    #expect(peers.count { $0.watchPlace != nil } == 900)
    bench.pass(25)
    #expect(peers.count { $0.isGone } == 900 && peers.allSatisfy { $0.watchPlace == nil })
  }
}
