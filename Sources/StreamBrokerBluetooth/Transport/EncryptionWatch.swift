// Waits until a link is encrypted: connect(2) does not, and no event reports it.

internal import CBluetooth
import ByteStreams

/// Looks again and again, until it is cancelled: the caller has the time limit.
final class EncryptionWatch {
  private let poller: Poller
  private var timer: Timers.Token?
  private static let betweenLooks = Duration.milliseconds(50)

  /// `then` is called once, at once if the link is encrypted already. The socket must be open until then, or until
  /// `cancel()`.
  init(
    of raw: Int32, _ security: BluetoothTarget.Security, on poller: Poller, then: @escaping () -> Void
  ) {
    self.poller = poller
    look(raw, security, then)
  }

  private func look(_ raw: Int32, _ security: BluetoothTarget.Security, _ then: @escaping () -> Void) {
    // A link that is gone reports the level that was asked for; the poller reports that it is gone.
    if bluetooth_security(raw) >= Int32(security.rawValue) { return then() }
    timer = poller.timers.after(Self.betweenLooks) { [weak self] in self?.look(raw, security, then) }
  }

  func cancel() { poller.timers.cancel(timer) }
}
