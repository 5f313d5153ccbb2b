// Where others look up what this machine offers: our own list behind PSM 1, or bluetoothd's, where that has the place. Lives on a
// lane; one for a process.

internal import CBluetooth
import ByteStreams
import Glibc
import StreamBroker

final class SDPServer {
  /// Whose the list is.
  enum Place: Sendable {
    /// Ours: a socket that listens, and what goes behind it.
    case own(DescriptorParcel, ServicePlace.Hold?)
    /// bluetoothd's: a connection to it, for one record.
    case daemon(DescriptorParcel)
    /// Another gateway's, such as the one whose place we take, which is about to close.
    case gateway
  }

  private final class Entry {
    let uuid: BluetoothUUID
    let channel: UInt8
    let name: String
    let tell: (OpenFailure?) -> Void
    var handle: UInt32?
    var registration: SDPRegistration?
    /// What was told last; nil when nothing was yet.
    var told: OpenFailure??
    /// How often bluetoothd did not take it.
    var failures = 0

    init(_ uuid: BluetoothUUID, _ channel: UInt8, _ name: String, _ tell: @escaping (OpenFailure?) -> Void) {
      (self.uuid, self.channel, self.name, self.tell) = (uuid, channel, name, tell)
    }

    var isListed: Bool { handle != nil || registration != nil }

    func say(_ failure: OpenFailure?) {
      if told == .some(failure) { return }
      told = .some(failure)
      tell(failure)
    }
  }

  private let poller: Poller
  private let find: @Sendable (_ mayOpenOwn: Bool) -> Result<Place, OpenFailure>
  private var entries: [UInt64: Entry] = [:]
  private var responder: SDPResponder?
  private var finding: (any Opening)?
  private var retryTimer: Timers.Token?
  private let queue = DeviceQueue.of("bluetooth.services")
  private static let mostAttempts = 16
  private static let retry = Duration.seconds(2)
  // One that is restarted overlaps with itself by no more than it takes to drain.
  private static let soon = Duration.milliseconds(250)
  private static let overlap = Duration.seconds(10)

  /// bluetoothd that is started again wants its place back: ours would keep it from that.
  private let deference: Duration
  private var notBefore: UInt64 = 0
  /// Somebody else had the place when we tried last.
  private var wasTaken = false
  /// Since when another gateway has it.
  private var overlapBegan: UInt64?

  /// `find` may block. It is told whether it may take the place for ourselves.
  init(
    on poller: Poller, deference: Duration = .seconds(10),
    find: @escaping @Sendable (_ mayOpenOwn: Bool) -> Result<Place, OpenFailure> = { ServicePlace.find(mayOpenOwn: $0) }
  ) {
    self.poller = poller
    self.deference = deference
    self.find = find
  }

  /// Lists a service; `tell` hears why it can't be for now, and nil once it is.
  func add(_ number: UInt64, _ offer: RFCOMMOffer, channel: UInt8, _ tell: @escaping (OpenFailure?) -> Void) {
    entries[number] = Entry(offer.uuid, channel, offer.name, tell)
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

  // MARK: - The place

  private func look() {
    if let responder {
      for entry in entries.values where !entry.isListed {
        entry.handle = responder.list.add(entry.uuid, channel: entry.channel, name: entry.name)
        entry.say(nil)
      }
      return
    }
    guard finding == nil, entries.values.contains(where: { !$0.isListed }) else { return }
    let find = find
    // Where bluetoothd has some of them it has them all.
    let mayOpenOwn = poller.timers.now >= notBefore && !entries.values.contains { $0.isListed }
    finding = queue.open("service list", most: Self.mostAttempts, on: poller) {
      find(mayOpenOwn)
    } undo: { place in
      switch place {
      case .own(let socket, _), .daemon(let socket): _ = socket.take()
      case .gateway: break
      }
    } _: { [weak self] result in
      guard let self else { return }
      finding = nil
      found(result)
    }
  }

  private func found(_ result: Result<Place, OpenFailure>) {
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
        notBefore = poller.timers.now &+ deference.nanoseconds
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
      // Who was refused goes behind the others.
      let unlisted = entries.filter { !$0.value.isListed }
      guard let (number, entry) = unlisted.min(by: { ($0.value.failures, $0.key) < ($1.value.failures, $1.key) }) else {
        return
      }
      let record = ServiceRecord(entry.uuid, channel: entry.channel, name: entry.name)
      let registration = SDPRegistration(socket, record, on: poller) { [weak self, weak entry] news in
        guard let self, let entry, entries[number] === entry else { return }
        hear(news, entry)
      }
      entry.registration = registration
      registration.start()
    }
  }

  private func hear(_ news: SDPRegistration.News, _ entry: Entry) {
    switch news {
    case .registered:
      entry.say(nil)
      look()
    case .failed(let failure):
      entry.registration = nil
      entry.failures += 1
      for entry in entries.values where !entry.isListed { entry.say(failure) }
      setRetry()
    case .lost:
      entry.registration = nil
      notBefore = poller.timers.now &+ deference.nanoseconds
      entry.say(OpenFailure("register the service", nil, advice: "bluetoothd has ended; it is waited for"))
      setRetry()
    }
  }

  private func wait(_ failure: OpenFailure) {
    // While bluetoothd is waited for, that it is not there is no news.
    if poller.timers.now >= notBefore { for entry in entries.values where !entry.isListed { entry.say(failure) } }
    setRetry()
  }

  /// Nobody who wants his place back, so it is taken as soon as it is free.
  private func waitForGateway(since began: UInt64) {
    wasTaken = false
    overlapBegan = began
    let waited = poller.timers.now &- began
    // What passes with a restart is no news.
    if waited >= Self.retry.nanoseconds {
      let failure = OpenFailure("list the service", SystemError("bind", EADDRINUSE), advice: ServicePlace.another)
      for entry in entries.values where !entry.isListed { entry.say(failure) }
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
