// The smallest thing that drives pumps as a session does: two streams, a pump each way, endings passed on. Tests of the
// engine and of streams use it; the gateway's session is its grown-up sister.

import ByteStreams

public final class Relay: ByteStreamDelegate {
  public let up: Pump  // left → right
  public let down: Pump  // right → left
  /// What broke it; nil when both sides ended in order.
  public private(set) var fault: (any Error)?
  public let isOver = Gate()
  private var upFinished = false
  private var downFinished = false

  public init(_ left: any ByteStream, _ right: any ByteStream, capacity: Int, on poller: Poller) {
    up = Pump(from: left, to: right, capacity: capacity, on: poller)
    down = Pump(from: right, to: left, capacity: capacity, on: poller)
  }

  /// Takes its first turn at once. Owns both streams from now on and closes them when both directions are over.
  public func start() {
    up.source.delegate = self
    down.source.delegate = self
    step(up) { try up.turn() }
    step(down) { try down.turn() }
  }

  public func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .openCompleted, .lastByteIsIn: break
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
      // It takes no more; what it said before may still be kept for the other.
      if stream === up.sink { upFinished = true } else { downFinished = true }
      endIfDone()
    }
  }

  private func step(_ pump: Pump, _ body: () throws -> Pump.Outcome) {
    do {
      guard try body() == .finished, let sink = pump.sink else { return }
      // An empty ring is not an empty stream: the unit on its way leaves before the end is said.
      guard !sink.holdsUnit else { return sink.writerWaits = .writable }
      guard pump === up ? !upFinished : !downFinished else { return }
      if pump === up { upFinished = true } else { downFinished = true }
      // Who can't be told that no more comes, and still answer, is told by the end.
      guard sink.canHalfClose else { return end(nil) }
      sink.finishWriting()
      endIfDone()
    } catch {
      end(error)
    }
  }

  /// The last words of either side may be held still.
  private func endIfDone() {
    guard upFinished && downFinished else { return }
    for stream in [up.source, down.source] where stream.holdsUnit { return stream.writerWaits = .writable }
    end(nil)
  }

  private func end(_ error: (any Error)?) {
    fault = fault ?? error
    up.source.close()
    down.source.close()
    isOver.open()
  }
}
