// One connection to the control socket: reads a request of at most 1 KiB within 2 s, writes an answer of any size in
// pieces, and closes. Only one piece is in memory at a time, and a client that does not read it is disconnected.

import ByteStreams
import Glibc

/// The pieces of an answer, made one by one as the client reads them.
protocol ControlAnswer: AnyObject {
  /// Calls `done` once, now or later, with the next piece; nil after the last one.
  func next(_ done: @escaping (String?) -> Void)
}

final class ControlConnection: ByteStreamDelegate {
  private let stream: DescriptorStream
  private let poller: Poller
  private let answer: (ControlRequest) -> any ControlAnswer
  private let ended: (ControlConnection) -> Void
  private var request: [UInt8] = []
  private var pieces: (any ControlAnswer)?
  private var piece: [UInt8] = []
  private var written = 0
  private var hasBegun = false
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
    answer: @escaping (ControlRequest) -> any ControlAnswer, ended: @escaping (ControlConnection) -> Void
  ) {
    self.answerLimit = answerLimit
    stream = DescriptorStream(client, kind: .socket, on: poller)
    self.poller = poller
    self.answer = answer
    self.ended = ended
    stream.delegate = self
    stream.readerWaits = .readable
    limit(Self.requestLimit)
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .hasBytesAvailable: if pieces == nil { readRequest() }
    case .hasSpaceAvailable: write()
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
    stream.readerWaits = []
    do throws(ControlFault) {
      pieces = answer(try ControlRequest.parse(line))
    } catch {
      pieces = OneLine(error.answer)
    }
    request = []
    fetch()
  }

  // MARK: - The answer

  private func fetch() {
    limit(answerLimit) { [weak self] in self?.answerLate() }
    pieces?.next { [weak self, pieces] piece in
      guard let self, !isOver, pieces === self.pieces else { return }
      guard let piece else { return close() }
      hasBegun = true
      self.piece = Array(piece.utf8)
      written = 0
      limit(Self.stallLimit)
      write()
    }
  }

  private func write() {
    while written < piece.count {
      let transfer = try? piece.withUnsafeBytes {
        try stream.write(UnsafeRawBufferPointer(rebasing: $0[written...]))
          .checked(of: $0.count - written, at: "control.write")
      }
      switch transfer {
      case .moved(let count)?:
        written += count
        limit(Self.stallLimit)
      case .blocked(let wish)?:
        stream.writerWaits = wish
        return
      case .ended?, nil: return close()
      }
    }
    stream.writerWaits = []
    piece = []
    // In a later turn: a long answer must neither grow the stack nor block the lane.
    poller.timers.after(.zero) { [weak self] in
      if let self, !isOver { fetch() }
    }
  }

  /// Answers that it is late. If the answer has begun, only closing is left.
  private func answerLate() {
    guard !hasBegun else { return close() }
    pieces = OneLine(ControlFault.late.answer)
    fetch()
  }

  private func limit(_ time: Duration) { limit(time) { [weak self] in self?.close() } }

  private func limit(_ time: Duration, then action: @escaping () -> Void) {
    poller.timers.cancel(deadline)
    deadline = poller.timers.after(time, action)
  }

  func close() {
    guard !isOver else { return }
    isOver = true
    poller.timers.cancel(deadline)
    pieces = nil
    stream.close()
    ended(self)
  }
}

/// An answer of one line, available at once or later.
final class OneLine: ControlAnswer {
  private var line: String?
  private var waiting: ((String?) -> Void)?

  init() {}
  convenience init(_ answer: JSONValue) {
    self.init()
    give(answer)
  }

  func give(_ answer: JSONValue) {
    let text = answer.description + "\n"
    guard let waiting else { return line = text }
    self.waiting = nil
    waiting(text)
  }

  func next(_ done: @escaping (String?) -> Void) {
    // The second call gets nil: there are no more pieces.
    if hasGiven { return done(nil) }
    hasGiven = true
    guard let line else { return waiting = done }
    done(line)
  }

  private var hasGiven = false
}
