// The signal strength of an open link. It is read on request, over a management socket that is open only for that; the
// kernel asks the controller, and keeps the answer for a second or two.

import ByteStreams
import StreamBrokerCore

/// Lives on the lane of its stream, whose metadata keep it.
final class RSSIQuery {
  private let device: PairedAddress
  private let adapter: UInt16
  private let poller: Poller
  private weak var metadata: StreamMetadata?
  private let make: ManagementSocket.Making
  private var waiting: [() -> Void] = []
  private var management: ManagementSocket?
  private var making: (any Opening)?
  private var deadline: Timers.Token?
  // The caller is a status snapshot of the whole gateway, which treats a lane without an answer for a second as hung.
  private let timeout: Duration

  init(
    of device: PairedAddress, on adapter: UInt16, for metadata: StreamMetadata?, on poller: Poller,
    timeout: Duration = .milliseconds(500),
    making make: @escaping ManagementSocket.Making = { ManagementSocket.make(on: $0, $1) }
  ) {
    (self.device, self.adapter, self.metadata, self.poller) = (device, adapter, metadata, poller)
    (self.timeout, self.make) = (timeout, make)
  }

  /// `done` is called once, when `metadata` has the value or no answer came in time.
  func ask(_ done: @escaping () -> Void) {
    waiting.append(done)
    guard waiting.count == 1 else { return }
    deadline = poller.timers.after(timeout) { [self] in finish() }
    making = make(poller) { [self] result in
      making = nil
      guard case .success(let socket) = result else { return finish() }
      let management = ManagementSocket(socket, on: poller) { [weak self] in self?.handle($0) }
      self.management = management
      management.start(.askSignal(device, adapter))
    }
  }

  private func handle(_ event: Result<ManagementEvent, SystemError>) {
    guard case .success(let event) = event else { return finish() }
    guard case .answer(ManagementCommand.Code.connectionInformation.rawValue, let status, let content) = event.content,
      event.adapter == adapter
    else { return }
    if let strength = Self.strength(of: device, status, content) { metadata?.note { $0.signalStrength = strength } }
    finish()
  }

  /// Nil if the controller did not report it.
  static func strength(of device: PairedAddress, _ status: UInt8, _ content: ArraySlice<UInt8>) -> Int? {
    guard status == ManagementStatus.success, PairedAddress(content) == device, content.count >= 8 else { return nil }
    let strength = Int8(bitPattern: content[content.startIndex + 7])
    return strength == 127 ? nil : Int(strength)
  }

  private func finish() {
    poller.timers.cancel(deadline)
    // Clear the properties first: a caller may ask again.
    let (management, making, waiting) = (management, making, waiting)
    (self.management, self.making, self.waiting) = (nil, nil, [])
    making?.cancel()
    management?.close()
    for done in waiting { done() }
  }
}
