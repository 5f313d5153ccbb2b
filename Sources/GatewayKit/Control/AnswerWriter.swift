// Writes the pieces of an answer to a stream, each made once the stream has taken the one before. So only one piece is
// in memory at a time, and a client that does not read it is given up.

import ByteStreams

/// The pieces of an answer, made one by one as the client reads them.
protocol ControlAnswer: AnyObject {
  /// Calls `done` once, now or later, with the next piece; nil after the last one.
  func next(_ done: @escaping ([UInt8]?) -> Void)
}

final class AnswerWriter {
  enum Outcome: Equatable {
    /// The stream has taken everything.
    case sent
    /// The stream broke, or took nothing for `stallLimit`.
    case failed
    /// A piece was not made within `pieceLimit`. `hasBegun`: parts of the answer were written.
    case late(hasBegun: Bool)
  }

  private let stream: any ByteStream
  private let poller: Poller
  /// Nil for answers whose client may read as slowly as it wants.
  private let stallLimit: Duration?
  /// Nil for answers that wait for events.
  private let pieceLimit: Duration?
  private let ended: (Outcome) -> Void
  private var answer: (any ControlAnswer)?
  /// Nil while the next one is made.
  private var piece: [UInt8]?
  private var written = 0
  private var hasBegun = false
  private var deadline: Timers.Token?
  private var isOver = false

  /// `ended` is called once for each answer that is sent.
  init(
    to stream: any ByteStream, on poller: Poller, stallLimit: Duration?, pieceLimit: Duration?,
    ended: @escaping (Outcome) -> Void
  ) {
    self.stream = stream
    self.poller = poller
    self.stallLimit = stallLimit
    self.pieceLimit = pieceLimit
    self.ended = ended
  }

  /// Sends `answer` instead of one before it.
  func send(_ answer: any ControlAnswer) {
    self.answer = answer
    fetch()
  }

  private func fetch() {
    limit(pieceLimit) { [weak self] in self?.isLate() }
    // Weak: an answer may keep this closure, and ends with the writer.
    answer?.next { [weak self, weak answer] piece in
      guard let self, let answer, !isOver, answer === self.answer else { return }
      guard let piece else { return end(.sent) }
      hasBegun = true
      self.piece = piece
      written = 0
      limit(stallLimit) { [weak self] in self?.end(.failed) }
      write()
    }
  }

  /// Call it when the stream has space.
  func write() {
    guard !isOver, let piece else { return }
    while written < piece.count {
      let transfer = try? piece.withUnsafeBytes {
        try stream.write(UnsafeRawBufferPointer(rebasing: $0[written...]))
          .checked(of: $0.count - written, at: "answer.write")
      }
      switch transfer {
      case .moved(let count)?:
        written += count
        limit(stallLimit) { [weak self] in self?.end(.failed) }
      case .blocked(let wish)?:
        stream.writerWaits = wish
        return
      case .ended?, nil: return end(.failed)
      }
    }
    stream.writerWaits = []
    self.piece = nil
    // In a later turn: a long answer must neither grow the stack nor block the lane.
    poller.timers.after(.zero) { [weak self] in
      if let self, !isOver { fetch() }
    }
  }

  private func isLate() {
    answer = nil
    ended(.late(hasBegun: hasBegun))
  }

  private func end(_ outcome: Outcome) {
    guard !isOver else { return }
    stop()
    ended(outcome)
  }

  /// Writes nothing more, and reports nothing.
  func stop() {
    isOver = true
    poller.timers.cancel(deadline)
    answer = nil
    piece = nil
  }

  private func limit(_ time: Duration?, then action: @escaping () -> Void) {
    poller.timers.cancel(deadline)
    if let time { deadline = poller.timers.after(time, action) }
  }
}
