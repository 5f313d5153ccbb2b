// A link whose endpoint can't be opened or goes: what it said before reaches the clients, and `device.absent` says what
// becomes of them and of what they send.

import ByteStreams
import StreamBroker

/// An endpoint that was there and ended without an error, which is also how ttys and ptys say that they were unplugged.
struct EndpointEnded: Error, CustomStringConvertible {
  let endpoint: String
  let isLine: Bool
  var description: String { isLine ? "\(endpoint) hung up; was it unplugged?" : "\(endpoint) ended" }
}

extension Link {
  func failed(_ failure: OpenFailure) {
    failedAt = poller.timers.now
    lastCause = failure.cause
    let step = device.handle(.failed, jitter: .random(in: 0...1))
    let ending = Ending(.openFailed, failure)
    if step == .giveUp {
      say(.closed)
      hub.leaveAll(ending)
    } else {
      isAway(.openFailed(failure), ending, then: step)
    }
  }

  func endpointIsGone(_ cause: (any Error)?) {
    if !settings.hub.isShared && cause == nil {
      hub.endpointHasEnded = true
      for session in hub.sessions { hub.settle(session) }
      return
    }
    if hub.endpointHasEnded {
      // It had said its last word in order; that it takes no more is its leave, not its failure.
      hub.endpointHungUp()
      return
    }
    hub.detach()?.close()
    stopLingering()
    failedAt = poller.timers.now
    lastCause = cause as? SystemError
    let step = device.handle(.lost, jitter: .random(in: 0...1), heldFor: elapsed(since: openedAt))
    if step == .giveUp {
      say(.closed)
      hub.leaveAll(Ending(.deviceLost, cause))
    } else {
      let ending = Ending(.deviceLost, cause ?? lost(settings))
      isAway(LinkStatus.Reason(losingBy: cause), ending, then: step)
    }
  }

  private func lost(_ settings: RouteSettings) -> EndpointEnded {
    EndpointEnded(endpoint: settings.endpoint, isLine: type(of: settings.connector).isLine)
  }

  private func isAway(_ reason: LinkStatus.Reason, _ ending: Ending, then step: Device.Step) {
    let absent = poller.timers.now >= heldUntil ? settings.device.absent : .hold
    let endsClients = absent == .close
    say(.waiting(reason), retry: endsClients && !settings.staysOpen ? .nothing : step)
    follow(step)
    switch absent {
    case .hold: break
    case .discard: hub.setDropsInput(true)
    case .close: hub.leaveAll(ending)
    }
    closeIfUnneeded()
  }
}
