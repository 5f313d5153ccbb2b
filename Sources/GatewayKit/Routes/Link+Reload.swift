// What a reload changes on a running link: new line settings are applied to the open port, another endpoint is opened
// while clients are held, and policies apply from the next decision on.

import ByteStreams
import StreamBroker

extension Link {
  /// Uses `new` from now on. The kind of link, shared or per client, must be the same.
  func update(_ new: RouteSettings) {
    let old = settings
    settings = new
    machine.policy = new.devicePolicy
    hub.update(new.hubPolicy)
    if new.device.absent != .discard { hub.upstream.setDropsInput(false) }
    if new.url != old.url { follow(old) }
    if new.staysOpen { follow(machine.handle(.wanted)) }
    if machine.state == .released { treatClients(leavingWith: Ending(.deviceLost, PortReleased())) }
    closeIfUnneeded()
  }

  private func follow(_ old: RouteSettings) {
    if settings.url.differsInLineOnly(from: old.url), let stream = hub.endpoint, let line = stream.serialLine {
      change(line, of: stream, from: old)
    } else {
      reopen(leavingWith: old.device.onClose)
    }
  }

  /// Closes in order and opens the endpoint of the new settings. Since the reload causes this, clients stay as long as
  /// opening may take, whatever `device.absent` is.
  private func reopen(leavingWith words: [UInt8]) {
    heldUntil = poller.timers.now &+ (settings.longestOpening ?? settings.connectTimeout).nanoseconds
    hub.upstream.setDropsInput(false)
    stopWatching()
    oldOnClose = words
    follow(machine.handle(.changed))
    oldOnClose = nil
  }

  // MARK: - The line of an open port

  /// Changes the line after the clients' earlier input and before their later input.
  private func change(_ line: any SerialLine, of stream: any ByteStream, from old: RouteSettings) {
    hub.upstream.hold()
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
        hub.upstream.resume()
      }
    }
    if left == 0 { return hub.upstream.resume() }
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

  /// The port refuses the new settings. It is opened again, and accepts them or reports the refusal again.
  private func refused(_ failure: OpenFailure) {
    setStatus(.waiting(.openFailed(failure)))
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
      inForce.refusal(of: asked).map { OpenFailure("set \(name)", nil, advice: "the port does not support \($0)") }
    }
  }
}
