// Makes this machine one that others can connect to over Bluetooth: prepares an adapter, makes the listening sockets
// and keeps the service list. One per process. Lives on a lane, and uses nothing before the first offer.

import ByteStreams
import Glibc
import StreamBrokerCore

package final class BluetoothHost {
  /// The pause between two tries.
  package static let retry = Duration.seconds(2)
  private static let moment = Duration.milliseconds(200)
  private static let mostAttempts = 1024
  // Bluetooth Core, RFCOMM, section 5.4: channels are 1 to 30.
  private static let lastChannel: UInt8 = 30

  /// An offer and its state.
  private final class Post {
    let offer: RFCOMMOffer
    let report: (RFCOMMNews) -> Void
    var flow: ReachabilityFlow
    /// The adapter that clients reach it by.
    var reached: ReachabilityFlow.Reached?
    /// An adapter that devices may connect to and pair with from now on.
    var open: BluetoothAddress?
    var preparing: (any Opening)?
    /// The socket that was reported: its channel, and the adapter that it is bound to, if any.
    var socket: (channel: Int, adapter: BluetoothAddress?)?
    var making: (any Opening)?
    /// If the URL names no channel: the one that is tried now.
    var tried: UInt8?
    /// Runs while the kernel's answer is outstanding.
    var silence: Timers.Token?
    var waits: OpenFailure?
    var limits: [OpenFailure] = []
    var listingFailure: OpenFailure?
    var isListed = false

    init(_ offer: RFCOMMOffer, _ report: @escaping (RFCOMMNews) -> Void) {
      self.offer = offer
      self.report = report
      flow = ReachabilityFlow(offer.adapter, isDiscoverable: offer.isDiscoverable)
    }
  }

  private let poller: Poller
  private let services: SDPServer
  private let keeper: BondKeeper?
  private let sockets: HostSockets
  private var posts: [UInt64: Post] = [:]
  private var management: ManagementSocket?
  private var opening: (any Opening)?
  private var retryTimer: Timers.Token?
  private let queue = DeviceQueue.of("bluetooth")  // the queue of the endpoints
  /// The time limit for the answers of one look at the adapters.
  private let timeout: Duration

  /// With a keeper, devices that connect to us are paired and recognised later, unless bluetoothd does that.
  package convenience init(on poller: Poller, bonds keeper: BondKeeper? = nil) {
    self.init(on: poller, services: SDPServer(on: poller), bonds: keeper)
  }

  init(
    on poller: Poller, services: SDPServer, sockets: HostSockets = HostSockets(), bonds keeper: BondKeeper? = nil,
    timeout: Duration = AdapterFlow.timeout
  ) {
    (self.poller, self.services, self.sockets) = (poller, services, sockets)
    (self.keeper, self.timeout) = (keeper, timeout)
  }

  // MARK: - Offers

  /// Starts an offer under a number that the caller chooses. `report` is called on this lane with its news, until
  /// `close`.
  package func open(_ number: UInt64, _ offer: RFCOMMOffer, _ report: @escaping @Sendable (RFCOMMNews) -> Void) {
    let post = Post(offer, report)
    posts[number] = post
    if management != nil { ask(post.flow.begin(), post) } else { openManagement() }
  }

  /// Withdraws the offer of that number, if there is one. A socket that was handed over stays with its owner.
  package func close(_ number: UInt64) {
    guard let post = posts.removeValue(forKey: number) else { return }
    post.making?.cancel()
    post.preparing?.cancel()
    poller.timers.cancel(post.silence)
    services.remove(number)
    tellKeeper()
    guard posts.isEmpty else { return }
    poller.timers.cancel(retryTimer)
    retryTimer = nil
    opening?.cancel()
    opening = nil
    management?.close()
    management = nil
  }

  // MARK: - Adapters

  private func openManagement() {
    guard opening == nil else { return }
    opening = queue.open("management channel", most: Self.mostAttempts, on: poller, sockets.management) {
      _ = $0.take()
    } _: { [weak self] result in
      guard let self else { return }
      opening = nil
      switch result {
      case .failure(let failure): for post in posts.values { wait(post, failure) }
      case .success(let socket):
        let management = ManagementSocket(socket, on: poller) { [weak self] in self?.handle($0) }
        self.management = management
        management.start()
        // Each flow sends its own command, and all flows get all answers.
        for post in posts.values { ask(post.flow.begin(hasMissed: true), post) }
      }
    }
  }

  private func handle(_ event: Result<ManagementEvent, SystemError>) {
    switch event {
    case .success(let event):
      for (number, post) in posts { handle(post.flow.handle(event), post, number) }
    case .failure(let error):
      management?.close()
      management = nil
      for post in posts.values { wait(post, OpenFailure("use Bluetooth's management channel", error)) }
    }
  }

  private func ask(_ command: ManagementCommand, _ post: Post) {
    guard let management else { return }
    if post.preparing != nil { endPreparing(post) }  // the adapter is checked again
    if post.silence == nil {
      post.silence = poller.timers.after(timeout) { [weak self, weak post] in
        guard let self, let post else { return }
        post.silence = nil
        wait(post, OpenFailure("choose an adapter", nil, advice: ReachabilityFlow.Fault.silent.advice))
      }
    }
    management.send(command)
  }

  private func endSilence(_ post: Post) {
    poller.timers.cancel(post.silence)
    post.silence = nil
  }

  private func handle(_ step: ReachabilityFlow.Step, _ post: Post, _ number: UInt64) {
    switch step {
    case .send(let command): ask(command, post)
    case .wait: break
    case .retryLater:
      poller.timers.after(Self.moment) { [weak self, weak post] in
        guard let self, let post, posts[number] === post else { return }
        handle(post.flow.handleRetry(), post, number)
      }
    case .waits(let fault): wait(post, OpenFailure("choose an adapter", nil, advice: fault.adviceWhileWaiting))
    case .prepare(let adapter): prepare(adapter, post, number)
    case .reachable(let reached):
      endSilence(post)
      post.reached = reached
      listen(post, number)
    }
  }

  /// Loads the bonds once, before others can connect to the adapter: without them a paired device would count as a
  /// stranger.
  private func prepare(_ adapter: ManagedAdapter, _ post: Post, _ number: UInt64) {
    endPreparing(post)
    post.open = adapter.address
    tellKeeper()
    let done = { [weak self, weak post] (side: BondKeeper.Standing.Side) in
      guard let self, let post, posts[number] === post else { return }
      endPreparing(post)
      handle(post.flow.handlePrepared(side), post, number)
    }
    let isDone = post.flow.prepared.contains(adapter.index)
    guard let keeper, !isDone else { return done(isDone ? .ours : .nobody) }
    // A disk may hang. Then no device can pair, but those that need not pair can connect.
    post.silence = poller.timers.after(AdapterStep.timeout) { done(.nobody) }
    post.preparing = keeper.prepare(adapter, on: poller) { done($0.side) }
  }

  private func endPreparing(_ post: Post) {
    endSilence(post)
    post.preparing?.cancel()
    post.preparing = nil
  }

  private func tellKeeper() { keeper?.receive(at: Set(posts.values.compactMap(\.open))) }

  /// Reports that nobody can connect, and why; once per reason.
  private func wait(_ post: Post, _ failure: OpenFailure) {
    endPreparing(post)
    post.open = nil
    tellKeeper()
    post.reached = nil
    post.making?.cancel()
    post.making = nil
    post.tried = nil
    if post.waits != failure { post.report(.waits(failure)) }
    post.limits = []  // reported again when it listens again
    post.waits = failure
    setRetry()
  }

  private func setRetry() {
    guard retryTimer == nil else { return }
    retryTimer = poller.timers.after(Self.retry) { [weak self] in
      guard let self else { return }
      retryTimer = nil
      guard management != nil else { return openManagement() }
      for post in posts.values where post.waits != nil { ask(post.flow.begin(), post) }
    }
  }

  // MARK: - Sockets

  private func listen(_ post: Post, _ number: UInt64) {
    guard let reached = post.reached else { return }
    let adapter = post.offer.adapter == nil ? nil : reached.address
    if let socket = post.socket, socket.adapter == adapter {
      if post.waits != nil { post.report(.listens(nil, channel: socket.channel)) }
      post.waits = nil
      return tellLimits(post)
    }
    guard post.making == nil else { return }
    var offer = post.offer
    if let channel = offer.channel {
      // Checked here: if one socket is on all adapters, the kernel allows both on one channel.
      for (number, other) in posts where other.offer.channel == nil && other.socket?.channel == Int(channel) {
        other.socket = nil
        listen(other, number)
        return wait(
          post, OpenFailure("listen on channel \(channel)", nil, advice: "another listener is about to release it"))
      }
    } else {
      offer.channel = free(for: number, below: post.tried ?? Self.lastChannel + 1)
      post.tried = offer.channel
      if offer.channel == nil {
        return wait(post, OpenFailure("listen on a channel", nil, advice: "no channel is free"))
      }
    }
    makeSocket(for: offer, on: adapter, post, number)
  }

  private func makeSocket(
    for offer: RFCOMMOffer, on adapter: BluetoothAddress?, _ post: Post, _ number: UInt64
  ) {
    let channel = sockets.channel
    post.making = queue.open("channel", most: Self.mostAttempts, on: poller) { [offer] in
      channel(offer, adapter)
    } undo: {
      _ = $0.0.take()
    } _: { [weak self, weak post] result in
      guard let self, let post, posts[number] === post else { return }
      post.making = nil
      switch result {
      // Another program uses that channel.
      case .failure(let failure) where post.tried != nil && failure.cause?.errno == EADDRINUSE: listen(post, number)
      case .failure(let failure): wait(post, failure)
      case .success(let (socket, channel)): opened(socket, channel, adapter, post, number)
      }
    }
  }

  /// The highest channel that no other offer has or names. The kernel must not choose it: it compares channels together
  /// with addresses. So it could give a channel that is in use on all adapters to one adapter again.
  private func free(for number: UInt64, below limit: UInt8) -> UInt8? {
    var taken: Set<UInt8> = []
    for (other, post) in posts where other != number {
      for channel in [post.offer.channel, post.tried] { if let channel { taken.insert(channel) } }
      if let socket = post.socket { taken.insert(UInt8(clamping: socket.channel)) }
    }
    return (1..<max(1, limit)).last { !taken.contains($0) }
  }

  private func opened(
    _ socket: DescriptorParcel, _ channel: Int, _ adapter: BluetoothAddress?, _ post: Post, _ number: UInt64
  ) {
    post.socket = (channel, adapter)
    post.tried = nil
    post.waits = nil
    post.limits = []  // reported again: with another channel it has another name
    post.report(.listens(socket, channel: channel))
    services.remove(number)
    services.add(number, post.offer, channel: UInt8(clamping: channel)) { [weak self, weak post] failure in
      guard let self, let post else { return }
      post.listingFailure = failure
      post.isListed = true
      tellLimits(post)
    }
    // Another adapter may have been chosen meanwhile.
    listen(post, number)
  }

  /// Reports what keeps some devices from connecting, once it is known.
  private func tellLimits(_ post: Post) {
    var limits: [OpenFailure] = []
    if let remark = post.reached?.remark { limits.append(OpenFailure("use the adapter", nil, advice: remark.advice)) }
    if let advice = post.reached?.pairingLimit(of: post.offer) {
      limits.append(OpenFailure("pair with clients", nil, advice: advice))
    }
    if let listingFailure = post.listingFailure { limits.append(listingFailure) }
    guard post.waits == nil, limits != post.limits, post.isListed else { return }  // reported after the wait
    post.limits = limits
    post.report(.limited(limits))
  }
}
