// A link whose endpoint can't be opened or goes: what it said before reaches the clients, and `device.absent` says what
// becomes of them and of what they send.

import ByteStreams
import StreamBroker
import StreamWebSocket

/// An endpoint that was there and ended without an error, which is also how ttys and ptys say that they were unplugged.
struct EndpointEnded: Error, CustomStringConvertible {
  let endpoint: String
  let isLine: Bool
  /// What a WebSocket's close frame said.
  var close: WebSocketClose?

  var description: String {
    guard let close, let code = close.code else {
      return isLine ? "\(endpoint) hung up; was it unplugged?" : "\(endpoint) ended"
    }
    return "\(endpoint) ended: \(code)" + (close.reason.isEmpty ? "" : " \(close.reason)")
  }
}

extension Link {
  func failed(_ failure: OpenFailure) {
    failedAt = poller.timers.now
    lastCause = failure.cause
    tellWatch(failure.cause)
    let step = device.handle(.failed, jitter: jitter(), now: poller.timers.now)
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
      let end = end(of: hub.endpoint)
      if let close = end.close, close != .normal { hub.endpointSaid = end }
      for session in hub.sessions { hub.settle(session) }
      return
    }
    if hub.endpointHasEnded {
      // It had said its last word in order; that it takes no more is its leave, not its failure.
      hub.endpointHungUp()
      return
    }
    let endpoint = hub.detach()
    endpoint?.close()
    stopLingering()
    failedAt = poller.timers.now
    lastCause = cause as? SystemError
    let step = device.handle(
      .lost, jitter: jitter(), heldFor: elapsed(since: openedAt), hasCarried: hub.hasCarried,
      now: poller.timers.now)
    let word: Ending.Word = cause is InternalFault ? .internal : .deviceLost
    if step == .giveUp {
      say(.closed)
      hub.leaveAll(Ending(word, cause))
    } else {
      let ending = Ending(word, cause ?? end(of: endpoint))
      isAway(LinkStatus.Reason(losingBy: cause), ending, then: step)
    }
  }

  private func end(of stream: (any ByteStream)?) -> EndpointEnded {
    EndpointEnded(
      endpoint: settings.endpoint, isLine: type(of: settings.connector).isLine,
      close: (stream as? WebSocketStream)?.heardClose)
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
