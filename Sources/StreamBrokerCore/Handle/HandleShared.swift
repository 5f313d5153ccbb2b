// What the lane and the tasks of a handle share, each part behind a lock of its own.

import ByteStreams
import Glibc
import Synchronization

final class HandleShared: Sendable {
  let url: String
  /// The endpoint's name, if only one program can have it open.
  private let device: String?
  let input = HandleInput()
  let observer: StreamObserver?

  private struct State {
    var facts = DeviceFacts()
    var status = LinkStatus.opening
    /// Why nothing more can be sent.
    var outputError: (any Error)?
    var isClosing = false
    var canHalfClose = false
  }
  private let state = Mutex(State())

  init(_ url: EndpointURL, _ observer: StreamObserver?) {
    self.url = url.description
    device = url.device
    self.observer = observer
  }

  var facts: DeviceFacts { state.withLock { $0.facts } }
  var status: LinkStatus { state.withLock { $0.status } }
  var outputError: (any Error)? { state.withLock { $0.outputError } }

  func note(_ facts: DeviceFacts) {
    let isNew = state.withLock { state in
      defer { state.facts = facts }
      return state.facts != facts
    }
    if isNew { observer?.report(.facts(facts)) }
  }

  var canHalfClose: Bool {
    get { state.withLock { $0.canHalfClose } }
    set { state.withLock { $0.canHalfClose = newValue } }
  }

  func note(_ status: LinkStatus) { state.withLock { $0.status = status } }

  func endOutput(_ error: (any Error)?) {
    state.withLock { state in
      if state.outputError == nil { state.outputError = error ?? SystemError("write", EPIPE) }
    }
  }

  // MARK: - Closing

  /// The program closes the handle: from now on an opening of its device waits. Safe to call twice.
  func beginClosing() {
    let isFirst = state.withLock { state in
      defer { state.isClosing = true }
      return !state.isClosing
    }
    if isFirst, let device { ClosingDevices.begin(device) }
  }

  /// The endpoint is free again. Called once.
  func release() { if let device, state.withLock({ $0.isClosing }) { ClosingDevices.end(device) } }
}
