// rfcomm://?channel=3&name=gps: phones and PCs connect over Bluetooth to a serial port that they find by its service
// record. The host manages adapter, socket and record, on another lane; clients are accepted here.

import ByteStreams
import StreamBroker
import StreamBrokerBluetooth
import Synchronization

private let lastOffer = Atomic<UInt64>(0)

final class RFCOMMListener: Listener {
  private let listen: Config.Listen
  private let context: ListenerContext
  private let host: LaneRef<BluetoothHost>
  private let number = lastOffer.add(1, ordering: .relaxed).newValue
  private var loop: AcceptLoop?
  /// Its URL with the channel, while clients can connect.
  private var bound: String?
  private var isStopped = false
  private var retry: BindRetry

  init(_ listen: Config.Listen, _ context: ListenerContext) {
    guard let host = context.bluetooth else { preconditionFailure("a gateway that listens over Bluetooth has a host") }
    self.listen = listen
    self.context = context
    self.host = host
    retry = BindRetry(context.poller.timers)
  }

  func start() {
    retry.cancel()
    let (number, offer) = (number, RFCOMMOffer(listen.url, name: context.route))
    let me = LaneRef(self, on: context.lane)
    host.post { _, host in
      host.open(number, offer) { news in me.post { _, listener in listener.handle(news) } }
    }
  }

  private func handle(_ news: RFCOMMNews) {
    guard !isStopped else { return }
    switch news {
    // The host sent this before it was asked to close the socket. A socket in this message is closed when the message
    // is freed.
    case .listens where retry.isWaiting: break
    case .listens(let socket, let channel):
      let name = listen.target(withChannel: channel)
      do throws(SystemError) {
        if let socket = socket?.take() { try accept(at: socket, name) }
        retry.succeeded()
        if bound != name {
          publishClosed()
          context.status.publish(.listening(route: context.route, listener: listen.target, bound: name))
        }
        bound = name
      } catch {
        giveUpSocket()
        let failure = OpenFailure(error.call, error)
        if retry.failed(failure, again: { [weak self] in self?.start() }) { publishWaiting(failure, BindRetry.pause) }
      }
    case .waits(let failure): publishWaiting(failure, BluetoothHost.retry)
    case .limited(let limits):
      context.status.publish(.listenerLimited(route: context.route, listener: bound ?? listen.target, limits))
    }
  }

  private func accept(at socket: consuming Descriptor, _ name: String) throws(SystemError) {
    let context = context
    loop?.stop()
    loop = nil
    loop = try AcceptLoop(
      socket, on: context.poller, refusalLine: context.sendsNotices ? "baudway: out of descriptors" : nil,
      outOfDescriptors: { context.status.publish(.outOfDescriptors(route: context.route, listener: name, $0)) },
      lost: { [unowned self] in lost($0) },  // the loop stops before the listener is freed
      accepted: { descriptor, _ in
        let device = RFCOMMClient.address(of: descriptor.raw)?.description ?? "a device that has disconnected"
        context.arrived(
          AcceptedConnection(
            rfcomm: descriptor, label: AcceptedConnection.Label(address: nil, device: device, listener: name)))
      })
  }

  private func lost(_ error: SystemError) {
    loop = nil
    giveUpSocket()
    let failure = OpenFailure.lost(error)
    publishWaiting(failure, retry.lost(failure) { [weak self] in self?.start() })
  }

  private func giveUpSocket() {
    let number = number
    host.post { _, host in host.close(number) }
  }

  private func publishWaiting(_ failure: OpenFailure, _ retry: Duration) {
    publishClosed()
    context.status.publish(
      .listenerWaits(route: context.route, listener: listen.target, failure, retry: retry))
  }

  private func publishClosed() {
    guard let bound else { return }
    context.status.publish(.listenerClosed(route: context.route, listener: listen.target, bound: bound))
    self.bound = nil
  }

  func stop(then done: @escaping () -> Void) {
    isStopped = true
    retry.cancel()
    let wasBound = bound
    loop?.stop()
    loop = nil
    bound = nil
    context.status.publish(.listenerClosed(route: context.route, listener: listen.target, bound: wasBound))
    // A socket may still be on its way to us: it arrives, and is closed, before this answer.
    let (number, back) = (number, context.callBack(done))
    host.post { _, host in
      host.close(number)
      back()
    }
  }
}

extension RFCOMMListener {
  static let grammar = SchemeGrammar(
    "rfcomm", example: "rfcomm://?channel=3&name=gps", authority: .none,
    parameters: [
      SchemeGrammar.Parameter("channel", .integer(1...30), "the server channel; default: a free one"),
      SchemeGrammar.Parameter("name", .text, "the name of the service record; default: the route's name"),
      SchemeGrammar.Parameter("uuid", .uuid, standard: "1101", "the class of the service record"),
      SchemeGrammar.Parameter(
        "adapter", .text, "the Bluetooth adapter, by name (hci0) or address; default: all that are on"),
      SchemeGrammar.Parameter(
        "security", .words(["low", "medium", "high"]), "none, encrypted, or authenticated pairing"),
      SchemeGrammar.Parameter("discoverable", .flag, standard: "no", "other devices can find the adapter in a scan"),
      ListenerSchemes.role,
    ],
    rules: [
      SchemeGrammar.Rule("name") {
        let count = $0.string("name")?.utf8.count ?? 1
        return count == 0 || count > longestName ? "the name of a service has 1 to \(longestName) bytes" : nil
      }
    ])
  // Bytes. Keeps the record small; phones show some thirty letters.
  private static let longestName = 200
}

extension Config.Listen {
  /// The configured channel; nil to use any free one.
  var channel: Int? { isRFCOMM ? url.integer("channel") : nil }

  /// Whether both need the same channel of the same adapter.
  func wantsChannel(of other: Config.Listen) -> Bool {
    guard let channel, channel == other.channel else { return false }
    guard let mine = url.string("adapter"), let its = other.url.string("adapter") else { return true }
    return mine.lowercased() == its.lowercased()
  }

  /// Its URL with the channel that it got.
  fileprivate func target(withChannel channel: Int) -> String {
    let others = url.query { $0 != "channel" && Self.rfcommNames.contains($0) }
    return "\(url.target)?channel=\(channel)" + (others.isEmpty ? "" : "&\(others.dropFirst())")
  }

  /// The parameters that tell listeners apart.
  static let rfcommNames: Set<String> = ["channel", "name", "uuid", "adapter"]
}
