// Which peers count as gone, with played kernel answers and a manual clock. Only an end-to-end test with its own
// network can show that the kernel answers like this for a peer whose packets are dropped.

import CLinux
import StreamTestKit
import Testing

@testable import ByteStreams

@Suite("The watch over peers", .timeLimit(.minutes(5)))
struct PeerWatchTests {
  private final class Peer: WatchedPeer {
    var watchedDescriptor: Int32? = 7
    var watchIndex: Int?
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

    /// Advances time in steps of a second.
    func pass(_ seconds: Int) {
      for _ in 0..<seconds {
        clock.advance(by: .seconds(1))
        state.last_ack_milliseconds += 1000
        timers.fireDue()
      }
    }
  }

  @Test("finds within 30 s that a peer is gone which leaves bytes unacknowledged")
  func gone() throws {
    let bench = try Bench()
    let peer = Peer()
    bench.state.unacknowledged = 3
    bench.watch.add(peer)
    bench.pass(20)
    #expect(!peer.isGone)
    bench.pass(9)
    #expect(peer.isGone && peer.watchIndex == nil)
  }

  @Test("finds that a peer is gone which answers no window probe")
  func probes() throws {
    let bench = try Bench()
    let peer = Peer()
    bench.state.probes = 1
    bench.watch.add(peer)
    bench.pass(29)
    #expect(peer.isGone)
  }

  @Test("keeps a peer that reads slowly, for as long as it acknowledges")
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
    #expect(!peer.isGone && peer.watchIndex != nil)
  }

  @Test("does not count a silent peer as gone when no bytes are on their way")
  func idle() throws {
    let bench = try Bench()
    let peer = Peer()
    peer.isBlocked = true
    bench.state.last_ack_milliseconds = 3_600_000
    bench.watch.add(peer)
    bench.pass(60)
    #expect(!peer.isGone)
    bench.state.unacknowledged = 1  // one reading alone proves nothing: the bytes may have been sent just now
    bench.pass(5)
    #expect(!peer.isGone)
  }

  @Test("forgets a peer that has everything, and stops checking it")
  func cleared() throws {
    let bench = try Bench()
    let peer = Peer()
    bench.watch.add(peer)
    bench.pass(5)
    #expect(peer.watchIndex == nil && bench.asked == 1)
    bench.pass(60)
    #expect(bench.asked == 1)
    bench.watch.add(peer)
    bench.pass(5)
    #expect(bench.asked == 2)
  }

  @Test("forgets closed peers, and checks each of a thousand")
  func many() throws {
    let bench = try Bench()
    let peers = (0..<1000).map { _ in Peer() }
    bench.state.unacknowledged = 1
    for peer in peers { bench.watch.add(peer) }
    for peer in peers.prefix(100) { peer.watchedDescriptor = nil }
    bench.pass(10)
    #expect(peers.count { $0.watchIndex != nil } == 900)
    bench.pass(25)
    #expect(peers.count { $0.isGone } == 900 && peers.allSatisfy { $0.watchIndex == nil })
  }
}
