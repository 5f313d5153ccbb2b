// Answers those who look up our services. Everybody in range may, so there are few at a time, none for long, and whoever comes when
// all places are taken has that of the one who was silent longest.

internal import CBluetooth
import ByteStreams
import Glibc

/// Lives on the lane.
final class SDPResponder: PollHandler {
  var list = ServiceList()

  private let poller: Poller
  private let socket: Descriptor
  private let hold: ServicePlace.Hold?  // goes behind the socket
  private var visits: [Visit] = []  // those silent longest come first
  private var pause: Timers.Token?

  private static let mostVisits = 8
  private static let patience = Duration.seconds(30)
  private static let pauseLength = Duration.milliseconds(100)

  /// Takes over a socket that listens, for connections on which each read is one message.
  init(
    _ socket: consuming Descriptor, on poller: Poller, keeping hold: ServicePlace.Hold? = nil
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
    visit.setDeadline(Self.patience)
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

  // MARK: - One who asks

  private final class Visit: PollHandler {
    private unowned let responder: SDPResponder  // which keeps it
    private let poller: Poller
    private var descriptor: Descriptor?
    private var deadline: Timers.Token?

    // L2CAP's default, which is what our socket takes.
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
      setDeadline(SDPResponder.patience)
      let mtu = Int(bluetooth_l2cap_send_mtu(raw))
      let request = Array(buffer[..<count])
      guard let answer = responder.list.answer(request, mtu: max(mtu, ServiceList.leastMTU)) else { return }
      // He who does not take an answer gets no more.
      if Glibc.send(raw, answer, answer.count, Int32(MSG_NOSIGNAL)) != answer.count { close() }
    }

    func setDeadline(_ patience: Duration) {
      poller.timers.cancel(deadline)
      deadline = poller.timers.after(patience) { [weak self] in self?.close() }
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
