// A record of ours in bluetoothd's list. It stays there until the connection is closed.

import ByteStreams
import Glibc
import StreamBrokerCore

/// Lives on the lane; the poller keeps it until it is closed.
final class SDPRegistration: PollHandler {
  enum News {
    case registered
    /// The registration is closed then.
    case failed(OpenFailure)
    /// The record was in the list and no longer is; the registration is then closed.
    case lost
  }

  private let poller: Poller
  private let record: ServiceRecord
  private var descriptor: Descriptor?
  private var isInPoller = false
  private var isRegistered = false
  private var deadline: Timers.Token?
  private var answer: [UInt8] = []
  private var report: ((News) -> Void)?

  private static let timeout = Duration.seconds(5)
  private static let longestAnswer = 64

  /// Takes the connection out of its parcel.
  init(_ socket: DescriptorParcel, _ record: ServiceRecord, on poller: Poller, _ report: @escaping (News) -> Void) {
    descriptor = socket.take()
    self.record = record
    self.poller = poller
    self.report = report
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
    // The request has some hundred bytes: it fits into the buffer of a new connection.
    guard send(raw, request, request.count, Int32(MSG_NOSIGNAL)) == request.count else {
      return fail(SystemError("write"))
    }
    deadline = poller.timers.after(Self.timeout) { [self] in fail(SystemError("read", ETIMEDOUT)) }
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
      report?(.registered)
    case .refused(let code): end(.failed(failure(nil, "it refused (SDP error \(code))")))
    case .malformed: end(.failed(failure(nil, "its answer makes no sense")))
    }
  }

  private func fail(_ error: SystemError) { end(.failed(failure(error))) }

  private func failure(_ error: SystemError?, _ advice: String? = nil) -> OpenFailure {
    OpenFailure("register the service with bluetoothd", error, advice: advice)
  }

  private func end(_ news: News) {
    let report = report
    close()
    report?(news)
  }

  /// Removes the record from the list.
  func close() {
    report = nil
    poller.timers.cancel(deadline)
    deadline = nil
    if isInPoller, let raw = descriptor?.raw { poller.remove(raw, isClosing: true) }
    isInPoller = false
    descriptor = nil
  }
}
