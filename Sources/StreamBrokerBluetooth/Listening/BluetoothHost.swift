// This machine as one that others connect to over Bluetooth: sees to it that an adapter can be reached, makes the sockets that
// listen, and keeps the list of services. One for a process; lives on a lane, where it owns nothing before the first offer.

import ByteStreams
import Glibc
import StreamBroker

/// What has become of an offer.
public enum RFCOMMNews: Sendable {
  /// Others can connect, on that channel. The socket, which listens, is whose it is told to; nil when it is the one he has.
  case listens(DescriptorParcel?, channel: Int)
  /// Nobody can connect for now. It is tried again by itself, and at once when an adapter comes.
  case waits(OpenFailure)
  /// What keeps some from finding or reaching it; empty when nothing does any more.
  case limited([OpenFailure])
}

/// What the kernel gives a host. Both may block.
struct HostSockets: Sendable {
  var management: @Sendable () -> Result<DescriptorParcel, OpenFailure> = { ManagementSocket.open() }
  /// For an offer, on the adapter of that address or on all: a socket that listens, and its channel.
  var channel: @Sendable (RFCOMMOffer, BluetoothAddress?) -> Result<(DescriptorParcel, Int), OpenFailure> = {
    $0.listen(on: $1)
  }
}

public final class BluetoothHost {
  static let noKernel = "this kernel has no Bluetooth, or keeps it from a container without the host's network"
  /// The pause between two tries.
  public static let retry = Duration.seconds(2)
  private static let moment = Duration.milliseconds(200)
  private static let mostAttempts = 1024

  private final class Post {
    let offer: RFCOMMOffer
    let tell: (RFCOMMNews) -> Void
    var flow: ReachFlow
    /// The adapter that it is reached by.
    var reached: ReachFlow.Reached?
    /// The socket that was told of: its channel, and the adapter that it is bound to, if to one.
    var socket: (channel: Int, adapter: BluetoothAddress?)?
    var making: (any Opening)?
    var waits: OpenFailure?
    var limits: [OpenFailure] = []
    var unlisted: OpenFailure?
    var isListed = false

    init(_ offer: RFCOMMOffer, _ tell: @escaping (RFCOMMNews) -> Void) {
      self.offer = offer
      self.tell = tell
      flow = ReachFlow(offer.adapter, isDiscoverable: offer.isDiscoverable)
    }
  }

  private let poller: Poller
  private let services: SDPServer
  private let sockets: HostSockets
  private var posts: [UInt64: Post] = [:]
  private var management: ManagementSocket?
  private var opening: (any Opening)?
  private var retryTimer: Timers.Token?
  private let queue = DeviceQueue.of("bluetooth")  // as for endpoints

  public convenience init(on poller: Poller) { self.init(on: poller, services: SDPServer(on: poller)) }

  init(on poller: Poller, services: SDPServer, sockets: HostSockets = HostSockets()) {
    self.poller = poller
    self.sockets = sockets
    self.services = services
  }

  // MARK: - Offers

  /// Begins to offer something under a number of the caller's, who is told on this lane what becomes of it until he closes it.
  public func open(_ number: UInt64, _ offer: RFCOMMOffer, _ tell: @escaping @Sendable (RFCOMMNews) -> Void) {
    let post = Post(offer, tell)
    posts[number] = post
    if let management { management.send(post.flow.begin()) } else { openManagement() }
  }

  public func close(_ number: UInt64) {
    guard let post = posts.removeValue(forKey: number) else { return }
    post.making?.cancel()
    services.remove(number)
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
        let management = ManagementSocket(socket, on: poller) { [weak self] in self?.hear($0) }
        self.management = management
        // Each flow asks by itself; the answers are for all.
        var commands = posts.values.map { $0.flow.begin() }
        guard !commands.isEmpty else { return }
        management.start(commands.removeFirst())
        for command in commands { management.send(command) }
      }
    }
  }

  private func hear(_ event: Result<ManagementEvent, SystemError>) {
    switch event {
    case .success(let event):
      for (number, post) in posts { handle(post.flow.handle(event), post, number) }
    case .failure(let error):
      management?.close()
      management = nil
      for post in posts.values { wait(post, OpenFailure("use Bluetooth's management channel", error)) }
    }
  }

  private func handle(_ step: ReachFlow.Step, _ post: Post, _ number: UInt64) {
    switch step {
    case .send(let command): management?.send(command)
    case .wait: break
    case .retryLater:
      poller.timers.after(Self.moment) { [weak self, weak post] in
        guard let self, let post, posts[number] === post else { return }
        handle(post.flow.handleRetry(), post, number)
      }
    case .waits(let fault): wait(post, OpenFailure("choose an adapter", nil, advice: fault.advice))
    case .reachable(let reached):
      post.reached = reached
      listen(post, number)
    }
  }

  /// Nobody can connect, and why; said once per reason.
  private func wait(_ post: Post, _ failure: OpenFailure) {
    post.reached = nil
    post.making?.cancel()
    post.making = nil
    if post.waits != failure { post.tell(.waits(failure)) }
    post.waits = failure
    setRetry()
  }

  private func setRetry() {
    guard retryTimer == nil else { return }
    retryTimer = poller.timers.after(Self.retry) { [weak self] in
      guard let self else { return }
      retryTimer = nil
      guard let management else { return openManagement() }
      for post in posts.values where post.waits != nil { management.send(post.flow.begin()) }
    }
  }

  // MARK: - Sockets

  private func listen(_ post: Post, _ number: UInt64) {
    guard let reached = post.reached else { return }
    let adapter = post.offer.adapter == nil ? nil : reached.address
    if let socket = post.socket, socket.adapter == adapter {
      if post.waits != nil { post.tell(.listens(nil, channel: socket.channel)) }
      post.waits = nil
      return tellLimits(post)
    }
    guard post.making == nil else { return }
    let (offer, channel) = (post.offer, sockets.channel)
    post.making = queue.open("channel", most: Self.mostAttempts, on: poller) {
      channel(offer, adapter)
    } undo: {
      _ = $0.0.take()
    } _: { [weak self, weak post] result in
      guard let self, let post, posts[number] === post else { return }
      post.making = nil
      switch result {
      case .failure(let failure): wait(post, failure)
      case .success(let (socket, channel)): opened(socket, channel, adapter, post, number)
      }
    }
  }

  private func opened(
    _ socket: DescriptorParcel, _ channel: Int, _ adapter: BluetoothAddress?, _ post: Post, _ number: UInt64
  ) {
    post.socket = (channel, adapter)
    post.waits = nil
    post.tell(.listens(socket, channel: channel))
    services.remove(number)
    services.add(number, post.offer, channel: UInt8(clamping: channel)) { [weak self, weak post] failure in
      guard let self, let post else { return }
      post.unlisted = failure
      post.isListed = true
      tellLimits(post)
    }
  }

  /// What keeps others away, once it is known.
  private func tellLimits(_ post: Post) {
    var limits: [OpenFailure] = []
    if let remark = post.reached?.remark { limits.append(OpenFailure("use the adapter", nil, advice: remark.advice)) }
    if let unlisted = post.unlisted { limits.append(unlisted) }
    guard limits != post.limits, post.isListed else { return }
    post.limits = limits
    post.tell(.limited(limits))
  }
}
