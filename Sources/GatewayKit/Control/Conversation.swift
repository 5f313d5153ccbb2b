// One who asks at the control socket: a request of at most 1 KiB within two seconds, an answer of any size in pieces, the
// end. Only one piece is in memory at a time, and who does not read it is cut off.

import ByteStreams
import Glibc

/// The pieces of an answer, made as the one who asked takes them.
protocol ControlAnswer: AnyObject {
  /// Calls back once, now or later, with the next piece, or with nil when there is no more.
  func next(_ done: @escaping (String?) -> Void)
}

final class Conversation: ByteStreamDelegate {
  private let stream: DescriptorStream
  private let poller: Poller
  private let answer: (ControlRequest) -> any ControlAnswer
  private let ended: (Conversation) -> Void
  private var request: [UInt8] = []
  private var pieces: (any ControlAnswer)?
  private var piece: [UInt8] = []
  private var written = 0
  private var hasBegun = false
  private var deadline: Timers.Token?
  private var isOver = false

  /// From accept to the request's line end.
  private static let requestLimit = Duration.seconds(2)
  /// Without taking a byte of what is ready for him.
  private static let stallLimit = Duration.seconds(5)
  /// For a piece to be made: a reload waits for clients that drain, and for a file that a network brings.
  static let answerLimit = Duration.seconds(60)
  private let answerLimit: Duration

  init(
    _ client: consuming Descriptor, on poller: Poller, answerLimit: Duration = Conversation.answerLimit,
    answer: @escaping (ControlRequest) -> any ControlAnswer, ended: @escaping (Conversation) -> Void
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
    case .openCompleted, .lastByteIsIn: break
    }
  }

  // MARK: - The request

  private func readRequest() {
    // One byte more than a request may have, so that too many are seen.
    var buffer = [UInt8](repeating: 0, count: ControlRequest.longest + 2 - request.count)
    let transfer = try? buffer.withUnsafeMutableBytes {
      try stream.read(into: $0).checked(of: $0.count, at: "conversation.read")
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
      take(request[...])  // to be told so
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
    limit(answerLimit) { [weak self] in self?.apologize() }
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
          .checked(of: $0.count - written, at: "conversation.write")
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
    // In a turn of its own: a long answer must neither grow the stack nor keep the lane.
    poller.timers.after(.zero) { [weak self] in
      if let self, !isOver { fetch() }
    }
  }

  /// An answer that has begun can only break off.
  private func apologize() {
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

/// An answer that is there at once, or later.
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
    // The second time it is asked there is no more.
    if hasGiven { return done(nil) }
    hasGiven = true
    guard let line else { return waiting = done }
    done(line)
  }

  private var hasGiven = false
}
