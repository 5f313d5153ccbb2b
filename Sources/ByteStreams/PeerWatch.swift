// Finds TCP peers that vanished while bytes were on their way to them. The kernel's keepalive finds idle ones.
// TCP_USER_TIMEOUT would work in the middle of a transfer, but it also ends live peers that read slowly.

import CLinux

/// A socket's stream whose peer is watched.
protocol WatchedPeer: AnyObject {
  /// Nil once closed.
  var watchedDescriptor: Int32? { get }
  /// Set by the watch: the peer's index in its list.
  var watchIndex: Int? { get set }
  /// Whether the stream waits for writability.
  var isBlocked: Bool { get }
  /// Everything is acknowledged; from now on keepalive watches the peer.
  func peerIsQuiet()
  func peerIsGone()
}

/// Costs nothing while nobody writes: the timer runs only while a socket has unacknowledged bytes or is blocked.
package final class PeerWatch {
  private struct Suspect {
    let peer: any WatchedPeer
    var wasSilent = false
  }

  private enum Verdict { case clear, waiting, silent, gone }

  private let timers: Timers
  private let stateOf: (Int32) -> linux_tcp_state?
  private var suspects: [Suspect] = []
  private var next = 0  // where this round continues
  private var timer: Timers.Token?

  static let interval = Duration.seconds(5)
  static let longestSilence: UInt32 = 20_000  // milliseconds since the last acknowledgement
  private static let mostPerTurn = 512  // a getsockopt each, about 1 µs

  /// `stateOf` asks the kernel; tests replace it.
  init(timers: Timers, stateOf: @escaping (Int32) -> linux_tcp_state? = PeerWatch.kernelState) {
    self.timers = timers
    self.stateOf = stateOf
  }

  private static func kernelState(of descriptor: Int32) -> linux_tcp_state? {
    var state = linux_tcp_state()
    return linux_tcp_state(descriptor, &state) == 0 ? state : nil
  }

  /// Watches `peer` until everything sent to it is acknowledged.
  func add(_ peer: any WatchedPeer) {
    guard peer.watchIndex == nil else { return }
    peer.watchIndex = suspects.count
    suspects.append(Suspect(peer: peer))
    if timer == nil { schedule(Self.interval) }
  }

  /// Stops watching `peer`: its stream closes.
  func remove(_ peer: any WatchedPeer) {
    guard let index = peer.watchIndex else { return }
    peer.watchIndex = nil
    let last = suspects.removeLast()
    if index < suspects.count {
      suspects[index] = last
      last.peer.watchIndex = index
    }
  }

  func forgetAll() {
    for suspect in suspects { suspect.peer.watchIndex = nil }
    suspects = []
  }

  private func schedule(_ delay: Duration) {
    timer = timers.after(delay) { [unowned self] in look() }  // both end with the lane
  }

  private func look() {
    timer = nil
    var gone: [any WatchedPeer] = []
    var left = Self.mostPerTurn
    while next < suspects.count, left > 0 {
      left -= 1
      let verdict = judge(suspects[next])
      switch verdict {
      case .waiting, .silent:
        suspects[next].wasSilent = verdict == .silent
        next += 1
      case .clear, .gone:
        let peer = suspects[next].peer
        remove(peer)
        if verdict == .gone { gone.append(peer) } else { peer.peerIsQuiet() }
      }
    }
    if next < suspects.count {
      schedule(.milliseconds(1))  // the others on the lane get their turn in between
    } else {
      next = 0
      if suspects.isEmpty { suspects = [] } else { schedule(Self.interval) }  // a wave of clients has made it large
    }
    for peer in gone { peer.peerIsGone() }
  }

  private func judge(_ suspect: Suspect) -> Verdict {
    guard let descriptor = suspect.peer.watchedDescriptor, let state = stateOf(descriptor) else { return .clear }
    // The age of the last acknowledgement alone proves nothing: an idle peer has no reason to send one.
    if state.unacknowledged > 0 || state.probes > 0 {
      return suspect.wasSilent && state.last_ack_milliseconds > Self.longestSilence ? .gone : .silent
    }
    return state.not_sent > 0 || suspect.peer.isBlocked ? .waiting : .clear
  }
}
