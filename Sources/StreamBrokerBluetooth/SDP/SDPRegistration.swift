// A record of ours in bluetoothd's list: it stands there as long as the connection does.

import ByteStreams
import Glibc
import StreamBroker

/// Lives on the lane; kept by the poller until it is closed.
final class SDPRegistration: PollHandler {
  enum News {
    case registered
    /// It is closed then.
    case failed(OpenFailure)
    /// It stood there, and does no more; it is closed then.
    case lost
  }

  private let poller: Poller
  private let record: ServiceRecord
  private var descriptor: Descriptor?
  private var isInPoller = false
  private var isRegistered = false
  private var deadline: Timers.Token?
  private var answer: [UInt8] = []
  private var tell: ((News) -> Void)?

  private static let patience = Duration.seconds(5)
  private static let longestAnswer = 64

  /// Takes the connection out of its parcel.
  init(_ socket: DescriptorParcel, _ record: ServiceRecord, on poller: Poller, _ tell: @escaping (News) -> Void) {
    descriptor = socket.take()
    self.record = record
    self.poller = poller
    self.tell = tell
  }

  func start() {
    guard let raw = descriptor?.raw else { return fail(SystemError("write", EBADF)) }
    do throws(SystemError) {
      try poller.add(raw, handler: self, for: .readable)
      isInPoller = true
    } catch {
      return fail(error)
    }
    let request = ServiceRegistration.request(record, transaction: 1)
    // Some hundred bytes: they fit into the buffer of a new connection.
    guard send(raw, request, request.count, Int32(MSG_NOSIGNAL)) == request.count else {
      return fail(SystemError("write"))
    }
    deadline = poller.timers.after(Self.patience) { [self] in fail(SystemError("read", ETIMEDOUT)) }
  }

  func ready(_ events: PollEvents) {
    var buffer = [UInt8](repeating: 0, count: Self.longestAnswer)
    while let raw = descriptor?.raw {
      let count = Glibc.read(raw, &buffer, buffer.count)
      if count > 0 {
        if !isRegistered { take(buffer[..<count]) }
      } else if count < 0, errno == EINTR {
        continue
      } else if count < 0, errno == EAGAIN {
        return
      } else {
        let error = count < 0 ? SystemError("read") : SystemError("read", ECONNRESET)
        return end(isRegistered ? .lost : .failed(failure(error)))
      }
    }
  }

  private func take(_ bytes: ArraySlice<UInt8>) {
    answer += bytes
    guard answer.count >= 5, answer.count >= 5 + (Int(answer[3]) << 8 | Int(answer[4])) else {
      return answer.count > Self.longestAnswer ? end(.failed(failure(nil, "its answer makes no sense"))) : ()
    }
    switch ServiceRegistration.answer(answer) {
    case .registered:
      isRegistered = true
      poller.timers.cancel(deadline)
      deadline = nil
      tell?(.registered)
    case .refused(let code): end(.failed(failure(nil, "it refused (SDP error \(code))")))
    case .malformed: end(.failed(failure(nil, "its answer makes no sense")))
    }
  }

  private func fail(_ error: SystemError) { end(.failed(failure(error))) }

  private func failure(_ error: SystemError?, _ advice: String? = nil) -> OpenFailure {
    OpenFailure("register the service with bluetoothd", error, advice: advice)
  }

  private func end(_ news: News) {
    let tell = tell
    close()
    tell?(news)
  }

  /// Takes the record out of the list.
  func close() {
    tell = nil
    poller.timers.cancel(deadline)
    deadline = nil
    if isInPoller, let raw = descriptor?.raw { poller.remove(raw, isClosing: true) }
    isInPoller = false
    descriptor = nil
  }
}
