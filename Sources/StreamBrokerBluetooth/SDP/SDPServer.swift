// Where others look up the services of this machine: our own list on PSM 1, or bluetoothd's if it has that PSM. Lives
// on a lane; one per process.

internal import CBluetooth
import ByteStreams
import Glibc
import StreamBrokerCore

final class SDPServer {
  /// The program that keeps the list.
  enum Owner: Sendable {
    /// This one: a listening socket, and what is released after it.
    case own(DescriptorParcel, ServiceListOwner.Hold?)
    /// bluetoothd: a connection to it, for one record.
    case daemon(DescriptorParcel)
    /// Another gateway, such as the one that we replace and that is about to close.
    case gateway
  }

  private final class Entry {
    let uuid: BluetoothUUID
    let channel: UInt8
    let name: String
    private let changed: (OpenFailure?) -> Void
    var handle: UInt32?
    var registration: SDPRegistration?
    /// The last report; nil before the first.
    var reported: OpenFailure??
    /// How often registering it with bluetoothd failed.
    var failures = 0

    init(_ uuid: BluetoothUUID, _ channel: UInt8, _ name: String, _ changed: @escaping (OpenFailure?) -> Void) {
      (self.uuid, self.channel, self.name, self.changed) = (uuid, channel, name, changed)
    }

    var isListed: Bool { handle != nil || registration != nil }

    func report(_ failure: OpenFailure?) {
      if reported == .some(failure) { return }
      reported = .some(failure)
      changed(failure)
    }
  }

  private let poller: Poller
  private let find: @Sendable (_ mayOpenOwn: Bool) -> Result<Owner, OpenFailure>
  private var entries: [UInt64: Entry] = [:]
  private var responder: SDPResponder?
  private var finding: (any Opening)?
  private var retryTimer: Timers.Token?
  private let queue = DeviceQueue.of("bluetooth.services")
  private static let mostAttempts = 16
  private static let retry = Duration.seconds(2)
  // A gateway that is restarted overlaps with its predecessor only while that one drains.
  private static let soon = Duration.milliseconds(250)
  private static let overlap = Duration.seconds(10)

  /// How long the PSM stays free for a bluetoothd that restarts: our list would keep it from binding the PSM.
  private let daemonGrace: Duration
  private var notBefore: UInt64 = 0
  /// Another program had the PSM when we tried last.
  private var wasTaken = false
  /// Since when another gateway has the PSM.
  private var overlapBegan: UInt64?

  /// `find` may block. Its parameter is whether it may bind the PSM for ourselves.
  init(
    on poller: Poller, daemonGrace: Duration = .seconds(10),
    find: @escaping @Sendable (_ mayOpenOwn: Bool) -> Result<Owner, OpenFailure> = {
      ServiceListOwner.find(mayOpenOwn: $0)
    }
  ) {
    self.poller = poller
    self.daemonGrace = daemonGrace
    self.find = find
  }

  /// Lists a service. `report` is called with the reason if that fails for now, and with nil once it is listed.
  func add(_ number: UInt64, _ offer: RFCOMMOffer, channel: UInt8, _ report: @escaping (OpenFailure?) -> Void) {
    entries[number] = Entry(offer.uuid, channel, offer.name, report)
    look()
  }

  func remove(_ number: UInt64) {
    guard let entry = entries.removeValue(forKey: number) else { return }
    entry.registration?.close()
    if let handle = entry.handle { responder?.list.remove(handle) }
    guard entries.isEmpty else { return }
    responder?.close()
    responder = nil
    finding?.cancel()
    finding = nil
    poller.timers.cancel(retryTimer)
    retryTimer = nil
  }

  // MARK: - The owner of the list

  private func look() {
    if let responder {
      for entry in entries.values where !entry.isListed {
        entry.handle = responder.list.add(entry.uuid, channel: entry.channel, name: entry.name)
        entry.report(nil)
      }
      return
    }
    guard finding == nil, entries.values.contains(where: { !$0.isListed }) else { return }
    let find = find
    // If bluetoothd has some of the records, it gets all of them.
    let mayOpenOwn = poller.timers.now >= notBefore && !entries.values.contains { $0.isListed }
    finding = queue.open("service list", most: Self.mostAttempts, on: poller) {
      find(mayOpenOwn)
    } undo: { owner in
      switch owner {
      case .own(let socket, _), .daemon(let socket): _ = socket.take()
      case .gateway: break
      }
    } _: { [weak self] result in
      guard let self else { return }
      finding = nil
      found(result)
    }
  }

  private func found(_ result: Result<Owner, OpenFailure>) {
    let overlapBegan = overlapBegan
    self.overlapBegan = nil
    switch result {
    case .success(.gateway): waitForGateway(since: overlapBegan ?? poller.timers.now)
    case .failure(let failure):
      if failure.cause?.errno == EADDRINUSE { wasTaken = true }
      wait(failure)
    case .success(.own(let socket, let hold)):
      guard let descriptor = socket.take() else { return }
      if wasTaken {
        wasTaken = false
        notBefore = poller.timers.now &+ daemonGrace.nanoseconds
        return setRetry()
      }
      do throws(SystemError) {
        responder = try SDPResponder(descriptor, on: poller, keeping: hold)
        look()
      } catch {
        wait(OpenFailure("keep the service list", error))
      }
    case .success(.daemon(let socket)):
      wasTaken = false
      // Entries that were refused come after the others.
      let unlisted = entries.filter { !$0.value.isListed }
      guard let (number, entry) = unlisted.min(by: { ($0.value.failures, $0.key) < ($1.value.failures, $1.key) })
      else {
        return
      }
      let record = ServiceRecord(entry.uuid, channel: entry.channel, name: entry.name)
      let registration = SDPRegistration(socket, record, on: poller) { [weak self, weak entry] news in
        guard let self, let entry, entries[number] === entry else { return }
        handle(news, entry)
      }
      entry.registration = registration
      registration.start()
    }
  }

  private func handle(_ news: SDPRegistration.News, _ entry: Entry) {
    switch news {
    case .registered:
      entry.report(nil)
      look()
    case .failed(let failure):
      entry.registration = nil
      entry.failures += 1
      for entry in entries.values where !entry.isListed { entry.report(failure) }
      setRetry()
    case .lost:
      entry.registration = nil
      notBefore = poller.timers.now &+ daemonGrace.nanoseconds
      entry.report(OpenFailure("register the service", nil, advice: "bluetoothd has ended; waiting for it"))
      setRetry()
    }
  }

  private func wait(_ failure: OpenFailure) {
    // While we wait for bluetoothd, its absence is no news.
    if poller.timers.now >= notBefore { for entry in entries.values where !entry.isListed { entry.report(failure) } }
    setRetry()
  }

  /// The other gateway does not need the PSM back, so we bind it as soon as it is free.
  private func waitForGateway(since began: UInt64) {
    wasTaken = false
    overlapBegan = began
    let waited = poller.timers.now &- began
    // The overlap at a restart is not reported.
    if waited >= Self.retry.nanoseconds {
      let failure = OpenFailure("list the service", SystemError("bind", EADDRINUSE), advice: ServiceListOwner.another)
      for entry in entries.values where !entry.isListed { entry.report(failure) }
    }
    setRetry(after: waited < Self.overlap.nanoseconds ? Self.soon : Self.retry)
  }

  private func setRetry(after pause: Duration = retry) {
    guard retryTimer == nil else { return }
    retryTimer = poller.timers.after(pause) { [weak self] in
      self?.retryTimer = nil
      self?.look()
    }
  }
}
