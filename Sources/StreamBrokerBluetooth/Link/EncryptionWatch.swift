// Waits until a link is encrypted: connect(2) does not, and nothing tells of it.

internal import CBluetooth
import ByteStreams

/// Looks again and again, until it is cancelled: how long that may take is the business of whoever waits.
final class EncryptionWatch {
  private let poller: Poller
  private var timer: Timers.Token?
  private static let betweenLooks = Duration.milliseconds(50)

  /// `then` is called once, at once where it is encrypted already. The socket must be open until then, or until `cancel()`.
  init(
    of raw: Int32, _ security: BluetoothTarget.Security, on poller: Poller, then: @escaping () -> Void
  ) {
    self.poller = poller
    look(raw, security, then)
  }

  private func look(_ raw: Int32, _ security: BluetoothTarget.Security, _ then: @escaping () -> Void) {
    // A link that is gone says what was asked for; that it is gone the poller tells.
    if bluetooth_security(raw) >= Int32(security.rawValue) { return then() }
    timer = poller.timers.after(Self.betweenLooks) { [weak self] in self?.look(raw, security, then) }
  }

  func cancel() { poller.timers.cancel(timer) }
}
