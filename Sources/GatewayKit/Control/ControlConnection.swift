// One connection to the control socket: reads a request of at most 1 KiB within 2 s, lets an AnswerWriter write the
// answer, and closes.

import ByteStreams
import CLinux
import Glibc

final class ControlConnection: ByteStreamDelegate {
  private let stream: DescriptorStream
  private let poller: Poller
  private let peer: ControlPeer
  private let answer: (ControlRequest, ControlPeer) -> any ControlAnswer
  private let ended: (ControlConnection) -> Void
  private var request: [UInt8] = []
  /// Writes the answer, once the request is read.
  private var writer: AnswerWriter?
  private var deadline: Timers.Token?
  private var isOver = false

  /// Time from accept to the request's line end.
  private static let requestLimit = Duration.seconds(2)
  /// Time in which the client must read at least a byte of the piece.
  private static let stallLimit = Duration.seconds(5)
  /// Time to make a piece: a reload waits for clients that drain, and for files on a network.
  static let answerLimit = Duration.seconds(60)
  private let answerLimit: Duration

  init(
    _ client: consuming Descriptor, on poller: Poller, answerLimit: Duration = ControlConnection.answerLimit,
    answer: @escaping (ControlRequest, ControlPeer) -> any ControlAnswer, ended: @escaping (ControlConnection) -> Void
  ) {
    self.answerLimit = answerLimit
    peer = ControlPeer(client.raw)
    stream = DescriptorStream(client, kind: .socket, on: poller)
    self.poller = poller
    self.answer = answer
    self.ended = ended
    stream.delegate = self
    stream.readerWaits = .readable
    deadline = poller.timers.after(Self.requestLimit) { [weak self] in self?.close() }
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .hasBytesAvailable: if writer == nil { readRequest() } else { readRest() }
    case .hasSpaceAvailable: writer?.write()
    case .errorOccurred, .endEncountered: close()
    case .openCompleted, .inputEnded: break
    }
  }

  // MARK: - The request

  private func readRequest() {
    // One byte more than the longest request and its line end, to detect a longer one.
    var buffer = [UInt8](repeating: 0, count: ControlRequest.longest + 2 - request.count)
    let transfer = try? buffer.withUnsafeMutableBytes {
      try stream.read(into: $0).checked(of: $0.count, at: "control.read")
    }
    switch transfer {
    case .moved(let count)?: request += buffer.prefix(count)
    case .blocked?: return
    case .ended? where !request.isEmpty: return take(request[...])
    case .ended?, nil: return close()
    }
    if let end = request.firstIndex(of: UInt8(ascii: "\n")) {
      take(request[..<end])
    } else if request.count > ControlRequest.longest {
      take(request[...])  // parsing it answers with the error
    }
  }

  private func take(_ line: ArraySlice<UInt8>) {
    poller.timers.cancel(deadline)
    let request: Result<ControlRequest, ControlFault>
    do throws(ControlFault) { request = .success(try ControlRequest.parse(line)) } catch { request = .failure(error) }
    let isLive = (try? request.get())?.isLive ?? false
    // Nothing may be written for long, and then only this shows that the client has gone.
    stream.readerWaits = isLive ? .readable : []
    let writer = AnswerWriter(
      to: stream, on: poller, stallLimit: isLive ? nil : Self.stallLimit, pieceLimit: isLive ? nil : answerLimit
    ) { [weak self] outcome in self?.answered(outcome) }
    self.writer = writer
    switch request {
    case .success(let request): writer.send(answer(request, peer))
    case .failure(let fault): writer.send(OneLine(fault.answer))
    }
    self.request = []
  }

  private func readRest() {
    let isOpen = withUnsafeTemporaryAllocation(byteCount: 256, alignment: 1) { scratch in
      switch try? stream.read(into: scratch).checked(of: scratch.count, at: "control.rest") {
      case .blocked(let wish)?:
        stream.readerWaits = wish
        return true
      case .moved?, .ended?, nil: return false  // a request has one line
      }
    }
    if !isOpen { close() }
  }

  /// Answers that it is late. If the answer has begun, only closing is left.
  private func answered(_ outcome: AnswerWriter.Outcome) {
    guard outcome == .late(hasBegun: false) else { return close() }
    writer?.send(OneLine(ControlFault.late.answer))
  }

  func close() {
    guard !isOver else { return }
    isOver = true
    poller.timers.cancel(deadline)
    writer?.stop()
    stream.close()
    ended(self)
  }
}

/// The process that asks, as the kernel knows it: for the log.
struct ControlPeer: Sendable, CustomStringConvertible {
  let description: String

  init(_ socket: Int32) {
    var (process, user) = (pid_t(), uid_t())
    // A process of another PID namespace has no number here.
    let isKnown = linux_peer_process(socket, &process, &user) == 0
    description = "control socket" + (isKnown ? ", user \(user)" + (process > 0 ? ", pid \(process)" : "") : "")
  }
}

/// An answer of one line, available at once or later.
final class OneLine: ControlAnswer {
  private var line: [UInt8]?
  private var waiting: (([UInt8]?) -> Void)?

  init() {}
  convenience init(_ answer: JSONValue) {
    self.init()
    give(answer)
  }

  func give(_ answer: JSONValue) {
    let bytes = Array((answer.description + "\n").utf8)
    guard let waiting else { return line = bytes }
    self.waiting = nil
    waiting(bytes)
  }

  func next(_ done: @escaping ([UInt8]?) -> Void) {
    // The second call gets nil: there are no more pieces.
    if hasGiven { return done(nil) }
    hasGiven = true
    guard let line else { return waiting = done }
    done(line)
  }

  private var hasGiven = false
}
