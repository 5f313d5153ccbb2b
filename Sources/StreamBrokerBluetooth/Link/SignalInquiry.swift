// How strong the signal of an open link is. Asked when somebody wants to know, on a management socket that lives no longer than that;
// the kernel asks the controller, and remembers the answer for a second or two.

import ByteStreams
import StreamBroker

/// Lives on the lane of its stream, whose metadata keep it.
final class SignalInquiry {
  private let device: PairedAddress
  private let adapter: UInt16
  private let poller: Poller
  private weak var metadata: StreamMetadata?
  private let make: ManagementSocket.Making
  private var waiting: [() -> Void] = []
  private var management: ManagementSocket?
  private var making: (any Opening)?
  private var deadline: Timers.Token?
  // Whoever waits is a picture of the whole gateway, and takes a lane that says nothing for a second for one that hangs.
  private let patience: Duration

  init(
    of device: PairedAddress, on adapter: UInt16, for metadata: StreamMetadata?, on poller: Poller,
    patience: Duration = .milliseconds(500),
    making make: @escaping ManagementSocket.Making = { ManagementSocket.make(on: $0, $1) }
  ) {
    (self.device, self.adapter, self.metadata, self.poller) = (device, adapter, metadata, poller)
    (self.patience, self.make) = (patience, make)
  }

  /// `done` is called once, when `metadata` know it or no answer came in time.
  func ask(_ done: @escaping () -> Void) {
    waiting.append(done)
    guard waiting.count == 1 else { return }
    deadline = poller.timers.after(patience) { [self] in finish() }
    making = make(poller) { [self] result in
      making = nil
      guard case .success(let socket) = result else { return finish() }
      let management = ManagementSocket(socket, on: poller) { [weak self] in self?.hear($0) }
      self.management = management
      management.start(.askSignal(device, adapter))
    }
  }

  private func hear(_ event: Result<ManagementEvent, SystemError>) {
    guard case .success(let event) = event else { return finish() }
    guard case .answer(ManagementCommand.Code.connectionInformation.rawValue, let status, let content) = event.content,
      event.adapter == adapter
    else { return }
    if let strength = Self.strength(of: device, status, content) { metadata?.note { $0.signalStrength = strength } }
    finish()
  }

  /// Nil where the controller did not say.
  static func strength(of device: PairedAddress, _ status: UInt8, _ content: ArraySlice<UInt8>) -> Int? {
    guard status == ManagementStatus.success, PairedAddress(content) == device, content.count >= 8 else { return nil }
    let strength = Int8(bitPattern: content[content.startIndex + 7])
    return strength == 127 ? nil : Int(strength)
  }

  private func finish() {
    poller.timers.cancel(deadline)
    // Let go of first: whoever waited may ask again.
    let (management, making, waiting) = (management, making, waiting)
    (self.management, self.making, self.waiting) = (nil, nil, [])
    making?.cancel()
    management?.close()
    for done in waiting { done() }
  }
}
