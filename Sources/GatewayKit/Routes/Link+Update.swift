// What a reload changes about a link at work: another endpoint is opened while its clients are held, policies hold from
// the next decision on.

import ByteStreams
import StreamBroker

extension Link {
  /// Follows `new` from now on. The kind of link, shared or per client, is the same.
  func update(_ new: RouteSettings) {
    let old = settings
    settings = new
    device.policy = new.devicePolicy
    hub.update(new.hub)
    if new.url != old.url { reopen(leavingWith: old.device.onClose) }
    if new.staysOpen { follow(device.handle(.wanted)) }
    closeIfUnneeded()
  }

  /// Closes in order and opens what the settings name now. It is our doing, so whatever `device.absent` says, clients stay
  /// for as long as an opening may take.
  private func reopen(leavingWith words: [UInt8]) {
    heldUntil = poller.timers.now &+ settings.connectTimeout.nanoseconds
    stopWatching()
    oldLastWords = words
    follow(device.handle(.changed))
    oldLastWords = nil
  }
}
