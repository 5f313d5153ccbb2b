// Tells of adapters that come or are switched on, for those who wait for one: what inotify(7) does for the nodes of other devices.

import ByteStreams
import Glibc
import StreamBroker

/// Which events are news. A value; sees no socket.
struct AdapterNews: Sendable {
  // What is known to be on needs no look when another of its settings changes.
  private var on: Set<UInt16> = []

  // As the kernel says it of sockets without an adapter, of links whose adapter goes, and of one that may not be switched on.
  private static let isMissing: Set<Int32> = [EHOSTUNREACH, ENODEV, ENETDOWN, EADDRNOTAVAIL, ECONNABORTED]

  /// Asked first, for one that came before anybody watched: where none was there. What fails with one is no reason to look.
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

/// Lives on a lane, from its making to `cancel()`. Takes no capability. Where it can't listen, a retry timer has to do.
final class AdapterWatch: DeviceWatch {
  private let poller: Poller
  private let changed: () -> Void
  private let cause: SystemError?
  private var news = AdapterNews()
  private var making: (any Opening)?
  private var management: ManagementSocket?

  /// `changed` is called on the lane each time an adapter has come or was switched on; when it is the lack of one that it is waited
  /// `after`, also once where there is one at the first look.
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
