// Ends sessions whose client certificate is no longer valid: it has expired, or authorities or revocation lists have
// changed since the handshake. Only sessions with a certificate cost anything here.

import ByteStreams
import Dispatch
import StreamTLS

/// One per group of sessions, on its lane.
final class ClientTrust {
  private let poller: Poller
  private let wallTime: () -> Int
  /// Ends a session, if it is still there.
  private let end: (UInt64, Ending) -> Void
  /// The current contexts by the names of their files; set when a listener starts or its files change.
  private var current: [TrustAnchors: TLSServerContext] = [:]
  private var expiries: [UInt64: Timers.Token] = [:]

  // Verifying thousands of chains takes a second, too long for a lane.
  static let queue = DispatchQueue(label: "baudway.trust")
  /// The pause before chains are verified again for which there was no memory.
  private static let pause = Duration.seconds(2)
  /// The longest wait in seconds. The wall clock may be set meanwhile, so a distant expiry is waited for in parts.
  private static let longestWait = 3600

  init(on poller: Poller, wallTime: @escaping () -> Int, end: @escaping (UInt64, Ending) -> Void) {
    self.poller = poller
    self.wallTime = wallTime
    self.end = end
  }

  /// A listener verifies client certificates by `context` from now on. `sessions` are all of the group.
  func changed(to context: TLSServerContext, sessions: [Session]) {
    let anchors = TrustAnchors(context.settings)
    let before = current.updateValue(context, forKey: anchors)
    guard before?.trust != context.trust else { return }
    let old = sessions.compactMap { session in
      session.accepted.shown.flatMap { $0.anchors == anchors ? $0.shown : nil }.map { (session.number, $0) }
    }
    verify(old.filter { $0.1.trust != context.trust }.map { ($0.0, $0.1.chain) }, by: context, anchors: anchors)
  }

  /// A session has begun.
  func joined(_ number: UInt64, _ client: AcceptedConnection.Label) {
    guard let asked = client.shown, let (chain, trust) = asked.shown else { return }
    watchExpiry(of: chain, number)
    // Trust may have changed between the client's handshake and its slot.
    if let now = current[asked.anchors], now.trust != trust {
      verify([(number, chain)], by: now, anchors: asked.anchors)
    }
  }

  func left(_ number: UInt64) {
    if let timer = expiries.removeValue(forKey: number) { poller.timers.cancel(timer) }
  }

  private typealias Chains = [(number: UInt64, chain: TLSClientChain)]

  private func verify(_ chains: Chains, by context: TLSServerContext, anchors: TrustAnchors) {
    guard !chains.isEmpty else { return }
    poller.offload(to: Self.queue) {
      chains.map { ($0.number, $0.chain, context.verdict(on: $0.chain)) }
    } then: { [weak self] verdicts in
      guard let self else { return }
      var unknown: Chains = []
      for (number, chain, verdict) in verdicts {
        switch verdict {
        case .good: break
        case .refused(let fault): end(number, Ending(.denied, TLSFailure.certificate(fault)))
        case .unknown: unknown.append((number, chain))
        }
      }
      verifyAgain(unknown, anchors: anchors)
    }
  }

  /// A chain that can't be verified for lack of memory must not stay unverified.
  private func verifyAgain(_ chains: Chains, anchors: TrustAnchors) {
    guard !chains.isEmpty else { return }
    poller.timers.after(Self.pause) { [weak self] in
      guard let self, let now = current[anchors] else { return }
      verify(chains.filter { self.expiries[$0.number] != nil }, by: now, anchors: anchors)  // sessions that still exist
    }
  }

  private func watchExpiry(of chain: TLSClientChain, _ number: UInt64) {
    let left = chain.lastSecond.subtractingReportingOverflow(wallTime()).partialValue
    let wait = min(max(0, left + 1), Self.longestWait)
    expiries[number] = poller.timers.after(.seconds(wait)) { [weak self] in
      guard let self else { return }
      guard wallTime() > chain.lastSecond else { return watchExpiry(of: chain, number) }
      expiries[number] = nil
      end(number, Ending(.denied, TLSFailure.certificate(chain.hasExpired)))
    }
  }
}
