// Reports adapters that appear or are switched on, to routes that wait for one. It does what inotify(7) does for the
// nodes of other devices.

import ByteStreams
import Glibc
import StreamBrokerCore

/// Which events are news. A value; uses no socket.
struct AdapterNews: Sendable {
  // Adapters known to be on: a change of their other settings is no news.
  private var on: Set<UInt16> = []

  // The kernel's errors for sockets without an adapter, and for links whose adapter goes.
  private static let isMissing: Set<Int32> = [EHOSTUNREACH, ENODEV, ENETDOWN, EADDRNOTAVAIL, ECONNABORTED]

  /// The first command, if the failure was that no adapter is there, or that it may not be switched on: one may have
  /// appeared before the watch began. Nil after other failures, which happen with an adapter.
  static func firstCommand(after cause: SystemError?) -> ManagementCommand? {
    guard let cause else { return nil }
    return isMissing.contains(cause.errno) || cause == AdapterFlow.mayNotSwitchOn ? .list : nil
  }

  mutating func isNews(_ event: ManagementEvent) -> Bool {
    switch event.content {
    case .answer(ManagementCommand.Code.indexList.rawValue, ManagementStatus.success, let content):
      return AdapterFlow.indexes(content)?.isEmpty == false
    case .adapterAdded: return true
    case .adapterRemoved:
      on.remove(event.adapter)
      return false
    case .settings(let settings):
      guard settings.contains(.powered) else {
        on.remove(event.adapter)
        return false
      }
      return on.insert(event.adapter).inserted
    default: return false
    }
  }
}

/// Lives on a lane, from `init` to `cancel()`. Needs no capability. If it can't listen, only a retry timer is left.
final class AdapterWatch: DeviceWatch {
  private let poller: Poller
  private let changed: () -> Void
  private let cause: SystemError?
  private var news = AdapterNews()
  private var making: (any Opening)?
  private var management: ManagementSocket?

  /// `changed` is called on the lane each time an adapter appears or is switched on. If `cause` is the lack of an
  /// adapter, it is also called once if the first look finds one.
  convenience init(on poller: Poller, after cause: SystemError?, changed: @escaping () -> Void) {
    self.init(on: poller, after: cause, making: { ManagementSocket.make(on: $0, $1) }, changed: changed)
  }

  init(
    on poller: Poller, after cause: SystemError?, making make: ManagementSocket.Making, changed: @escaping () -> Void
  ) {
    self.poller = poller
    self.cause = cause
    self.changed = changed
    making = make(poller) { [weak self] in self?.made($0) }
  }

  private func made(_ result: Result<DescriptorParcel, OpenFailure>) {
    making = nil
    guard case .success(let socket) = result else { return }
    let management = ManagementSocket(socket, on: poller) { [weak self] event in
      guard let self else { return }
      switch event {
      case .success(let event): if news.isNews(event) { changed() }
      case .failure: cancel()
      }
    }
    self.management = management
    management.start(AdapterNews.firstCommand(after: cause))
  }

  func cancel() {
    making?.cancel()
    making = nil
    management?.close()
    management = nil
  }
}
