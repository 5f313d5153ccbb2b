// What a link does when its endpoint can't be opened or is lost. Earlier output still reaches the clients;
// `device.absent` decides what happens to them and to their input.

import ByteStreams
import StreamBroker
import StreamWebSocket

/// An endpoint that was open and ended without an error. Ttys and ptys that are unplugged report this, too.
struct EndpointEnded: Error, CustomStringConvertible {
  let endpoint: String
  let isLine: Bool
  /// Code and reason of a WebSocket's close frame.
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
    notifyWatch(failure.cause)
    let step = machine.handle(.failed, jitter: jitter(), now: poller.timers.now)
    let ending = Ending(.openFailed, failure)
    if step == .giveUp {
      setStatus(.closed)
      hub.leaveAll(ending)
    } else {
      isAway(.openFailed(failure), ending, then: step)
    }
  }

  func endpointIsGone(_ cause: (any Error)?) {
    let loop = loop
    if !settings.hub.isShared && cause == nil && loop == nil {
      let end = end(of: hub.endpoint)
      hub.endpointEnded(saying: end.close.map { $0 != .normal } == true ? end : nil)
      return
    }
    if hub.endpointHasEnded && loop == nil {
      // The endpoint ended its output in order earlier. It is no failure if it now accepts no input either.
      hub.endpointHungUp()
      return
    }
    let endpoint = hub.detach()
    closesNow()
    endpoint?.close()
    stopLingering()
    failedAt = poller.timers.now
    lastCause = cause as? SystemError
    let step = machine.handle(.lost, jitter: jitter(), use: use, now: poller.timers.now)
    let word: Ending.Word = loop != nil ? .openFailed : cause is InternalFault ? .internal : .deviceLost
    if step == .giveUp {
      setStatus(.closed)
      hub.leaveAll(Ending(word, loop ?? cause))
    } else {
      let ending = Ending(word, loop ?? cause ?? end(of: endpoint))
      isAway(loop.map { .openFailed($0) } ?? LinkStatus.Reason(losingBy: cause), ending, then: step)
    }
  }

  private func end(of stream: (any ByteStream)?) -> EndpointEnded {
    EndpointEnded(
      endpoint: settings.endpoint, isLine: type(of: settings.connector).isLine,
      close: (stream as? WebSocketStream)?.receivedClose)
  }

  private func isAway(_ reason: LinkStatus.Reason, _ ending: Ending, then step: LinkStateMachine.Step) {
    let absent = poller.timers.now >= heldUntil ? settings.device.absent : .hold
    let endsClients = absent == .close
    setStatus(.waiting(reason), retry: endsClients && !settings.staysOpen ? .nothing : step)
    follow(step)
    treatClients(by: absent, leavingWith: ending)
    closeIfUnneeded()
  }

  /// While nothing is open. Nil: by `device.absent`.
  func treatClients(by absent: Config.Device.Absent? = nil, leavingWith ending: Ending) {
    switch absent ?? settings.device.absent {
    case .hold: break
    case .discard: hub.upstream.setDropsInput(true)
    case .close: hub.leaveAll(ending)
    }
  }
}
