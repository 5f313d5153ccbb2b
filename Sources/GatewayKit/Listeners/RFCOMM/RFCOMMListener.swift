// rfcomm://?channel=3&name=gps: phones and PCs that connect over Bluetooth, to a serial port that they find by its service record.
// Adapter, socket and record are the host's, on another lane; clients are accepted here.

import ByteStreams
import StreamBroker
import StreamBrokerBluetooth
import Synchronization

private let lastOffer = Atomic<UInt64>(0)

final class RFCOMMListener: Listener {
  private let listen: Config.Listen
  private let context: ListenerContext
  private let host: Resident<BluetoothHost>
  private let number = lastOffer.add(1, ordering: .relaxed).newValue
  private var loop: AcceptLoop?
  /// What it is called while others can connect.
  private var bound: String?
  private var isStopped = false
  private var rebindPause = RebindPause()

  init(_ listen: Config.Listen, _ context: ListenerContext) {
    guard let host = context.bluetooth else { preconditionFailure("a gateway that listens over Bluetooth has a host") }
    self.listen = listen
    self.context = context
    self.host = host
  }

  func start() {
    let (number, offer) = (number, RFCOMMOffer(listen.url, name: context.route))
    let me = Resident(self, on: context.lane)
    host.post { _, host in
      host.open(number, offer) { news in me.post { _, listener in listener.hear(news) } }
    }
  }

  private func hear(_ news: RFCOMMNews) {
    guard !isStopped else { return }
    switch news {
    case .listens(let socket, let channel):
      let name = listen.place(withChannel: channel)
      do throws(SystemError) {
        if let socket = socket?.take() { try accept(at: socket, name) }
        if bound != name {
          tellClosed()
          context.status.tell(.listening(route: context.route, listener: listen.place, bound: name))
        }
        bound = name
      } catch {
        startAgain(OpenFailure(error.call, error), after: BluetoothHost.retry)
      }
    case .waits(let failure): tellWaits(failure, BluetoothHost.retry)
    case .limited(let limits):
      context.status.tell(.listenerLimited(route: context.route, listener: bound ?? listen.place, limits))
    }
  }

  private func accept(at socket: consuming Descriptor, _ name: String) throws(SystemError) {
    let context = context
    loop?.stop()
    loop = nil
    loop = try AcceptLoop(
      socket, on: context.poller, farewell: context.sendsNotices ? "baudway: out of descriptors" : nil,
      outOfDescriptors: { context.status.tell(.outOfDescriptors(route: context.route, listener: name, $0)) },
      lost: { [unowned self] error in  // its loop stops before it goes
        loop = nil
        startAgain(.lost(error), after: rebindPause.next(at: context.poller.timers.now))
      },
      accepted: { descriptor, _ in
        let device = RFCOMMClient.address(of: descriptor.raw)?.description ?? "a device that has gone"
        context.arrived(Arrival(rfcomm: descriptor, label: Arrival.Label(address: nil, device: device, listener: name)))
      })
  }

  /// With another socket, after a while.
  private func startAgain(_ failure: OpenFailure, after pause: Duration) {
    tellWaits(failure, pause)
    let number = number
    host.post { _, host in host.close(number) }
    context.poller.timers.after(pause) { [weak self] in
      if let self, !isStopped { start() }
    }
  }

  private func tellWaits(_ failure: OpenFailure, _ retry: Duration) {
    tellClosed()
    context.status.tell(
      .listenerWaits(route: context.route, listener: listen.place, failure, retry: retry))
  }

  private func tellClosed() {
    guard let bound else { return }
    context.status.tell(.listenerClosed(route: context.route, listener: listen.place, bound: bound))
    self.bound = nil
  }

  func stop(then done: @escaping () -> Void) {
    isStopped = true
    let wasBound = bound
    loop?.stop()
    loop = nil
    bound = nil
    context.status.tell(.listenerClosed(route: context.route, listener: listen.place, bound: wasBound))
    // A socket may be on its way to us still: it has come, and has gone, before the answer.
    let (number, back) = (number, context.callBack(done))
    host.post { _, host in
      host.close(number)
      back()
    }
  }
}

extension Config.Listen {
  var isRFCOMM: Bool { scheme == "rfcomm" }

  /// Nil for one that is free.
  var channel: Int? { isRFCOMM ? url.integer("channel") : nil }

  /// Whether both want one channel of one adapter.
  func wantsChannel(of other: Config.Listen) -> Bool {
    guard let channel, channel == other.channel else { return false }
    guard let mine = url.string("adapter"), let its = other.url.string("adapter") else { return true }
    return mine.lowercased() == its.lowercased()
  }

  /// What it is called with the channel that it has got.
  fileprivate func place(withChannel channel: Int) -> String {
    let others = url.query { $0 != "channel" && Self.rfcommNames.contains($0) }
    return "\(url.place)?channel=\(channel)" + (others.isEmpty ? "" : "&\(others.dropFirst())")
  }

  /// Parameters by which one is told from others.
  static let rfcommNames: Set<String> = ["channel", "name", "uuid", "adapter"]
}
