// Tells of adapters that come or are switched on, for those who wait for one: what inotify(7) does for the nodes of other devices.

import ByteStreams
import StreamBroker

/// Which events are news. A value; sees no socket.
struct AdapterNews: Sendable {
  // What is known to be on needs no look when another of its settings changes.
  private var on: Set<UInt16> = []

  mutating func isNews(_ event: ManagementEvent) -> Bool {
    switch event.content {
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
public final class AdapterWatch: DeviceWatch {
  private let poller: Poller
  private let changed: () -> Void
  private var news = AdapterNews()
  private var making: (any Opening)?
  private var management: ManagementSocket?

  /// `changed` is called on the lane each time an adapter has come or was switched on, from a moment on.
  public init(on poller: Poller, changed: @escaping () -> Void) {
    self.poller = poller
    self.changed = changed
    making = ManagementSocket.make(on: poller) { [weak self] in self?.made($0) }
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
    management.start()
  }

  public func cancel() {
    making?.cancel()
    making = nil
    management?.close()
    management = nil
  }
}
