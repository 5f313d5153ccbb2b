// The smallest code that drives pumps as a session does: two streams, a pump each way, endings passed on. For tests of
// the engine and of streams; the gateway itself uses Session.

import ByteStreams

public final class Relay: ByteStreamDelegate {
  public let up: Pump  // left → right
  public let down: Pump  // right → left
  /// The error that ended it; nil if both sides ended in order.
  public private(set) var fault: (any Error)?
  public let isOver = Gate()
  private var upFinished = false
  private var downFinished = false

  public init(_ left: any ByteStream, _ right: any ByteStream, capacity: Int, on poller: Poller) {
    up = Pump(from: left, to: right, capacity: capacity, on: poller)
    down = Pump(from: right, to: left, capacity: capacity, on: poller)
  }

  /// Runs the first turn at once. Owns both streams from now on and closes them when both directions are over.
  public func start() {
    up.source.delegate = self
    down.source.delegate = self
    step(up) { try up.turn() }
    step(down) { try down.turn() }
  }

  public func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .openCompleted, .inputEnded: break
    case .hasBytesAvailable:
      let pump = stream === up.source ? up : down
      step(pump) { try pump.turn() }
    case .hasSpaceAvailable:
      stream.writerWaits = []
      if upFinished && downFinished { return endIfDone() }
      let pump = stream === up.source ? down : up
      step(pump) { try pump.drain() }
    case .errorOccurred(let error): end(error)
    case .endEncountered:
      // The stream accepts no more bytes; bytes it sent before may still be held for the other.
      if stream === up.sink { upFinished = true } else { downFinished = true }
      endIfDone()
    }
  }

  private func step(_ pump: Pump, _ body: () throws -> Pump.Outcome) {
    do {
      guard try body() == .finished, let sink = pump.sink else { return }
      // The ring is empty, but the sink may hold a unit: it must be written before the end.
      guard !sink.hasPendingOutput else { return sink.writerWaits = .writable }
      guard pump === up ? !upFinished : !downFinished else { return }
      if pump === up { upFinished = true } else { downFinished = true }
      // If the sink cannot half-close, the only way to pass the end on is to close.
      guard sink.closeBehavior.canHalfClose else { return end(nil) }
      sink.finishWriting()
      endIfDone()
    } catch {
      end(error)
    }
  }

  /// Waits while either side still holds output.
  private func endIfDone() {
    guard upFinished && downFinished else { return }
    for stream in [up.source, down.source] where stream.hasPendingOutput { return stream.writerWaits = .writable }
    end(nil)
  }

  private func end(_ error: (any Error)?) {
    fault = fault ?? error
    up.source.close()
    down.source.close()
    isOver.open()
  }
}
