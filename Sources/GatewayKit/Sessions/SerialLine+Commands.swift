// Carries out clients' commands on a line. Bytes sent before a change of settings go out at the old settings.

import ByteStreams
import StreamBroker

extension SerialLine {
  /// `done` gets the settings in force if the command changed them. A change waits until the bytes before it are sent,
  /// on `poller`'s lane. It is dropped if `isAttached` is false by then: a detached line returns to the configuration's
  /// settings.
  func carryOut(
    _ request: ControlChannelRequest, on poller: Poller, while isAttached: @escaping () -> Bool,
    _ done: @escaping (Result<LineSettings?, ControlChannelReply.LineFault>) -> Void
  ) {
    let answer: (Result<Void, SystemError>) -> Void = { result in
      done(result.map { nil }.mapError { .init(message: $0.text, isUnsupported: $0.isUnsupported) })
    }
    switch request {
    case .line(let change) where change.applied(to: settings) == settings: done(.success(settings))
    case .line(let change):
      whenSent(on: poller) {
        guard isAttached() else { return done(.failure(.init(message: "the link has closed"))) }
        self.apply(change, done)
      }
    case .output(let output, let isOn): set(output, isOn, answer)
    case .break(let isOn): setBreak(isOn, answer)
    case .breakFor(let time):
      setBreak(true) { result in
        guard case .success = result else { return answer(result) }
        poller.timers.after(time) { self.setBreak(false, answer) }
      }
    default: answer(.success(()))
    }
  }

  /// Makes all of the change or none of it: a half-changed line is not what the client requested.
  private func apply(
    _ change: ControlChannelRequest.LineChange,
    _ done: @escaping (Result<LineSettings?, ControlChannelReply.LineFault>) -> Void
  ) {
    let before = settings
    let wanted = change.applied(to: before)
    // Nothing changes, so the port is not touched: some adapters drop bytes at any change.
    guard wanted != before else { return done(.success(before)) }
    apply(wanted) { result in
      switch result {
      case .success(let inForce):
        guard let refusal = inForce.refusal(of: wanted) else { return done(.success(inForce)) }
        self.apply(before) { _ in
          done(.failure(.init(message: "the port does not support \(refusal)", inForce: self.settings)))
        }
      case .failure(let error): done(.failure(.init(message: error.text, inForce: self.settings)))
      }
    }
  }
}
