// tcp://127.0.0.1:4001 · tcp://[::1]:4001 · tcp://:4001 (all addresses, IPv4 and IPv6) · tcp://*:0 (any free port)

import ByteStreams
import StreamBroker

final class TCPListener: Listener {
  private let url: String
  private let listen: Config.Listen
  private let context: ListenerContext
  private var loops: [AcceptLoop] = []  // one, but for inherited sockets
  private var bound: String?
  private var retryTimer: Timers.Token?
  private var lastError: SystemError?
  private var rebindPause = RebindPause()

  private static let retry = Duration.seconds(1)

  init(_ listen: Config.Listen, _ context: ListenerContext) {
    url = listen.place
    self.listen = listen
    self.context = context
  }

  private var binding: TCPBinding {
    TCPBinding(
      listen: listen, inherited: context.inherited, keepsAlive: context.keepsAlive, limitsUnsent: context.isShared)
  }

  func start() {
    do throws(SystemError) {
      try binding.open { socket throws(SystemError) in try accept(from: socket) }
      lastError = nil
      context.status.tell(.listening(route: context.route, listener: url, bound: bound ?? url))
    } catch {
      closeLoops()
      // An address that is not there yet, or a port somebody still holds: wait for it, and say so once.
      if error != lastError {
        context.status.tell(
          .listenerWaits(route: context.route, listener: url, binding.failure(error), retry: Self.retry))
      }
      lastError = error
      retryTimer = context.poller.timers.after(Self.retry) { [weak self] in self?.start() }
    }
  }

  private func accept(from socket: consuming Descriptor) throws(SystemError) {
    let name = "tcp://\(try binding.name(of: socket.raw))"
    let context = context
    loops.append(
      try AcceptLoop(
        socket, on: context.poller, farewell: context.sendsNotices ? "baudway: out of descriptors" : nil,
        outOfDescriptors: { context.status.tell(.outOfDescriptors(route: context.route, listener: name, $0)) },
        lost: { [unowned self] in lost($0) },  // its loops stop before it goes
        accepted: { descriptor, address in
          let label = Arrival.Label(address: address, listener: name)
          guard context.rates.admits(address) else {
            let ending = Ending.tooFast(label)
            if context.sendsNotices, let reason = ending.cause {
              AcceptLoop.say("baudway: \(reason)", to: descriptor.raw)
            }
            return context.ended(label, ending, nanoseconds: 0)
          }
          context.arrived(Arrival(descriptor, kind: .tcp(wasDialled: false), label: label))
        }))
    bound = name
  }

  private func lost(_ error: SystemError) {
    let bound = bound
    closeLoops()
    let pause = rebindPause.next(at: context.poller.timers.now)
    context.status.tell(.listenerClosed(route: context.route, listener: url, bound: bound))
    context.status.tell(.listenerWaits(route: context.route, listener: url, .lost(error), retry: pause))
    retryTimer = context.poller.timers.after(pause) { [weak self] in self?.start() }
  }

  private func closeLoops() {
    if loops.isEmpty { return }
    let isInherited = binding.isInherited
    for loop in loops { loop.stop(isSocketShared: isInherited) }
    loops = []
    bound = nil
  }

  func contextChanged() {
    // Inherited by those who come from now on.
    for loop in loops { loop.withSocket { try? binding.setKeepalive(of: $0) } }
  }

  func stop(then done: @escaping () -> Void) {
    context.poller.timers.cancel(retryTimer)
    let bound = bound
    closeLoops()
    context.status.tell(.listenerClosed(route: context.route, listener: url, bound: bound))
    done()
  }
}
