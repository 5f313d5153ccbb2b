// What a reload changes about a link at work: other line settings go to the open port, another endpoint is opened while its
// clients are held, policies hold from the next decision on.

import ByteStreams
import StreamBroker

extension Link {
  /// Follows `new` from now on. The kind of link, shared or per client, is the same.
  func update(_ new: RouteSettings) {
    let old = settings
    settings = new
    device.policy = new.devicePolicy
    hub.update(new.hub)
    if new.device.absent != .discard { hub.setDropsInput(false) }
    if new.url != old.url { follow(old) }
    if new.staysOpen { follow(device.handle(.wanted)) }
    closeIfUnneeded()
  }

  private func follow(_ old: RouteSettings) {
    if settings.url.differsInLineOnly(from: old.url), let stream = hub.endpoint, let line = stream.serialLine {
      change(line, of: stream, from: old)
    } else {
      reopen(leavingWith: old.device.onClose)
    }
  }

  /// Closes in order and opens what the settings name now. It is our doing, so whatever `device.absent` says, clients stay
  /// for as long as an opening may take.
  private func reopen(leavingWith words: [UInt8]) {
    let otherSteps = (settings.connector as? any SteppedConnector)?.otherSteps ?? .zero
    heldUntil = poller.timers.now &+ (settings.connectTimeout + otherSteps).nanoseconds
    hub.setDropsInput(false)
    stopWatching()
    oldLastWords = words
    follow(device.handle(.changed))
    oldLastWords = nil
  }

  // MARK: - The line of an open port

  /// Between what clients have sent so far and what they send from now on.
  private func change(_ line: any SerialLine, of stream: any ByteStream, from old: RouteSettings) {
    hub.holdInput()
    line.whenSent(on: poller) { [weak self, weak stream] in
      guard let self, let stream, stream === hub.endpoint else { return }
      apply(line, of: stream, from: old.url)
    }
  }

  private func apply(_ line: any SerialLine, of stream: any ByteStream, from old: EndpointURL) {
    let wanted = LineSettings(settings.url)
    let outputs = settings.url.outputs(changedFrom: old)
    var left = outputs.count + (wanted == LineSettings(old) ? 0 : 1)
    let answered: (OpenFailure?) -> Void = { [weak self, weak stream] failure in
      guard let self, let stream, stream === hub.endpoint else { return }
      left -= 1
      if let failure {
        left = -1
        refused(failure)
      } else if left == 0 {
        hub.resumeInput()
      }
    }
    if left == 0 { return hub.resumeInput() }
    let name = settings.endpoint
    if wanted != LineSettings(old) {
      line.apply(wanted) { [weak self, weak stream] result in
        if let self, let stream, stream === hub.endpoint, case .success(let inForce) = result {
          hub.lineIsSet(to: inForce)
        }
        answered(result.failure(of: wanted, on: name))
      }
    }
    for (output, isOn) in outputs {
      line.set(output, isOn) { answered($0.failure.map { OpenFailure("\($0.call) \(name)", $0) }) }
    }
  }

  /// The port does not take what the configuration says; opened anew it will say so again, or take it.
  private func refused(_ failure: OpenFailure) {
    say(.waiting(.openFailed(failure)))
    reopen(leavingWith: settings.device.onClose)
  }
}

extension Result where Failure == SystemError {
  fileprivate var failure: SystemError? {
    if case .failure(let error) = self { error } else { nil }
  }
}

extension Result where Success == LineSettings, Failure == SystemError {
  fileprivate func failure(of asked: LineSettings, on name: String) -> OpenFailure? {
    switch self {
    case .failure(let error): OpenFailure("\(error.call) \(name)", error)
    case .success(let inForce):
      inForce.refusal(of: asked).map { OpenFailure("set \(name)", nil, advice: "the port does not do \($0)") }
    }
  }
}
