// Joins two streams, a person or a pipe on our side and an endpoint on the other, until one of them ends: `baudway connect`.
// Lives on a lane, as its streams do. What a gateway adds (clients, policies, waiting for devices) is not here.

import ByteStreams
import StreamBroker

public final class EndpointTalk: ByteStreamDelegate {
  public enum End {
    /// The endpoint has ended, and all that it said is delivered.
    case endpointLeft
    /// Our side has ended, and all that it said is delivered.
    case weLeft
    case endpointFailed(any Error)
    case weFailed(any Error)
  }

  /// What becomes of an endpoint when our side has ended and all is delivered.
  public enum Parting: Sendable {
    /// It is left at once; one that takes nothing, after a second.
    case atOnce
    /// It is told, and left when it has ended; one that can't be told, or can't answer once it is, when it has been silent so
    /// long. With `always` one that was told is left after that silence, too.
    case whenSilent(Duration, always: Bool = false)
  }

  private let here: any ByteStream
  private let there: any ByteStream
  private let up: Pump
  private let down: Pump
  private let poller: Poller
  private let parting: Parting
  private let done: (End) -> Void
  private var isOver = false
  private var isParting = false
  /// The endpoint knows that nothing more comes from us.
  private var isTold = false
  /// We have said that we leave, and wait for the same word.
  private var isLeaving = false
  /// The endpoint broke; what it said before is still delivered.
  private var failure: (any Error)?
  private var timer: Timers.Token?
  private static let capacity = 64 << 10
  private static let deafness = Duration.seconds(1)
  // For the other side of a closing handshake.
  private static let mostForHandshake = Duration.seconds(3)

  /// Takes both streams over, and closes them; `done` is called once, right after that.
  public init(
    _ here: any ByteStream, with there: any ByteStream, parting: Parting, on poller: Poller,
    _ done: @escaping (End) -> Void
  ) {
    self.here = here
    self.there = there
    self.poller = poller
    self.parting = parting
    self.done = done
    up = Pump(from: here, to: there, capacity: Self.capacity, on: poller)
    down = Pump(from: there, to: here, capacity: Self.capacity, on: poller)
    here.delegate = self
    there.delegate = self
  }

  public func start() {
    moveDown { () throws(Pump.Fault) in try down.turn() }
    moveUp { () throws(Pump.Fault) in try up.turn() }
  }

  // MARK: - Moving

  public func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    guard !isOver else { return }
    let isHere = stream === here
    switch event {
    case .hasBytesAvailable where isHere: moveUp { () throws(Pump.Fault) in try up.turn() }
    case .hasBytesAvailable,
      .endEncountered where !isHere:
      moveDown { () throws(Pump.Fault) in try down.turn() }
    case .hasSpaceAvailable where isHere: moveDown { () throws(Pump.Fault) in try down.drain() }
    case .hasSpaceAvailable:
      stream.writerWaits = []
      moveUp { () throws(Pump.Fault) in try up.drain() }
    case .errorOccurred(let error) where isHere: finish(.weFailed(error))
    case .errorOccurred(let error): endpointBroke(error)
    case .openCompleted, .lastByteIsIn, .endEncountered: break
    }
  }

  private func moveUp(_ turn: () throws(Pump.Fault) -> Pump.Outcome) {
    guard !isOver, failure == nil else { return }
    do { _ = try turn() } catch {
      return error.side == .sink ? endpointBroke(error.cause) : finish(.weFailed(error.cause))
    }
    settle()
  }

  private func moveDown(_ turn: () throws(Pump.Fault) -> Pump.Outcome) {
    guard !isOver else { return }
    let before = down.moved
    do { _ = try turn() } catch {
      guard error.side == .source else { return finish(.weFailed(error.cause)) }
      failure = failure ?? error.cause
      here.readerWaits = []
      down.endSource()
    }
    if down.moved != before { heardSomething() }
    settle()
  }

  /// It takes nothing any more. What it said before is read and delivered.
  private func endpointBroke(_ error: any Error) {
    here.readerWaits = []
    there.writerWaits = []
    if failure == nil && !down.sourceEnded { failure = error }
    moveDown { () throws(Pump.Fault) in try down.turn() }
  }

  // MARK: - Parting

  private func settle() {
    guard !isOver else { return }
    let isHeard = down.count == 0 && !here.holdsUnit
    if let failure {
      // Read dry is read to the end.
      if isHeard && (down.sourceEnded || down.sourceIsDry) { finish(.endpointFailed(failure)) }
      return
    }
    if down.sourceEnded && isHeard { return finish(isLeaving ? .weLeft : .endpointLeft) }
    guard up.sourceEnded, !isLeaving else { return }
    let isDelivered = up.count == 0 && !there.holdsUnit
    // A write of TLS may wait for something to read.
    if !isDelivered && there.writerWaits.isEmpty { there.writerWaits = .writable }
    switch parting {
    case .atOnce where isDelivered: leave()
    case .atOnce: leave(after: Self.deafness)
    case .whenSilent(let patience, let always):
      guard isDelivered, !isParting else { return }
      isParting = true
      isTold = there.canHalfClose
      if isTold { there.finishWriting() }
      if !isTold || always { leave(after: patience) }
    }
  }

  private func leave(after patience: Duration) {
    guard timer == nil else { return }
    timer = poller.timers.after(patience) { [weak self] in self?.leave() }
  }

  /// Goes, or says so first, where the other side answers that: until then it may not have heard all.
  private func leave() {
    guard !isOver, !isLeaving else { return }
    guard there.hasClosingHandshake, !isTold, !there.holdsUnit else { return finish(.weLeft) }
    isLeaving = true
    poller.timers.cancel(timer)
    timer = poller.timers.after(Self.mostForHandshake) { [weak self] in self?.finish(.weLeft) }
    there.finishWriting()
  }

  private func heardSomething() {
    guard timer != nil, !isLeaving, case .whenSilent(let patience, _) = parting else { return }
    poller.timers.cancel(timer)
    timer = nil
    leave(after: patience)
  }

  private func finish(_ end: End) {
    guard !isOver else { return }
    isOver = true
    poller.timers.cancel(timer)
    here.close()
    there.close()
    done(end)
  }
}
