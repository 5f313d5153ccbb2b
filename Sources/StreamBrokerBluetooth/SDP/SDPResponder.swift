// Answers devices that look up our services. Any device in range may ask, so there are few connections at a time, each
// with a time limit. When all slots are taken, a new connection replaces the one that was silent longest.

internal import CBluetooth
import ByteStreams
import Glibc

/// Lives on the lane.
final class SDPResponder: PollHandler {
  var list = ServiceList()

  private let poller: Poller
  private let socket: Descriptor
  private let hold: ServiceListOwner.Hold?  // released after the socket
  private var visits: [Visit] = []  // silent longest first
  private var pause: Timers.Token?

  private static let mostVisits = 8
  private static let timeout = Duration.seconds(30)
  private static let pauseLength = Duration.milliseconds(100)

  /// Takes over a listening socket for connections on which each read is one message.
  init(
    _ socket: consuming Descriptor, on poller: Poller, keeping hold: ServiceListOwner.Hold? = nil
  ) throws(SystemError) {
    let raw = socket.raw
    self.hold = hold
    self.socket = socket
    self.poller = poller
    try poller.add(raw, handler: self, for: .readable)
  }

  func ready(_ events: PollEvents) {
    let raw = bluetooth_accept(socket.raw)
    guard raw >= 0 else {
      if [EMFILE, ENFILE, ENOBUFS, ENOMEM].contains(errno) { rest() }
      return
    }
    if visits.count >= Self.mostVisits { visits[0].close() }
    let visit = Visit(Descriptor(owning: raw), of: self)
    guard (try? poller.add(raw, handler: visit, for: .readable)) != nil else { return }
    visits.append(visit)
    visit.setDeadline(Self.timeout)
  }

  private func rest() {
    poller.change(socket.raw, to: [])
    pause = poller.timers.after(Self.pauseLength) { [weak self] in
      if let self { poller.change(socket.raw, to: .readable) }
    }
  }

  func close() {
    poller.timers.cancel(pause)
    poller.remove(socket.raw)
    for visit in visits { visit.close() }
  }

  // MARK: - Connections

  private final class Visit: PollHandler {
    private unowned let responder: SDPResponder  // the responder keeps the visit
    private let poller: Poller
    private var descriptor: Descriptor?
    private var deadline: Timers.Token?

    // L2CAP's default MTU, which our socket accepts.
    private static let longestMessage = 672

    init(_ descriptor: consuming Descriptor, of responder: SDPResponder) {
      self.descriptor = consume descriptor
      self.responder = responder
      poller = responder.poller
    }

    func ready(_ events: PollEvents) {
      guard let raw = descriptor?.raw else { return }
      var buffer = [UInt8](repeating: 0, count: Self.longestMessage)
      let count = Glibc.read(raw, &buffer, buffer.count)
      if count < 0, errno == EINTR || (errno == EAGAIN && events.isDisjoint(with: .hangUp)) { return }
      guard count > 0 else { return close() }
      responder.moveToEnd(self)
      setDeadline(SDPResponder.timeout)
      let mtu = Int(bluetooth_l2cap_send_mtu(raw))
      let request = Array(buffer[..<count])
      guard let answer = responder.list.answer(request, mtu: max(mtu, ServiceList.leastMTU)) else { return }
      // A client that does not accept an answer is disconnected.
      if Glibc.send(raw, answer, answer.count, Int32(MSG_NOSIGNAL)) != answer.count { close() }
    }

    func setDeadline(_ timeout: Duration) {
      poller.timers.cancel(deadline)
      deadline = poller.timers.after(timeout) { [weak self] in self?.close() }
    }

    func close() {
      guard let raw = descriptor?.raw else { return }
      poller.timers.cancel(deadline)
      poller.remove(raw, isClosing: true)
      descriptor = nil
      responder.forget(self)
    }
  }

  private func moveToEnd(_ visit: Visit) {
    forget(visit)
    visits.append(visit)
  }

  private func forget(_ visit: Visit) { visits.removeAll { $0 === visit } }
}
