// Joins two streams, a terminal or pipe on our side and an endpoint on the other, until one of them ends. `baudway
// connect` uses it. Runs on the lane of its streams. Clients, policies and waiting for devices are not here.

import ByteStreams
import StreamBroker

package final class StreamBridge: ByteStreamDelegate {
  package enum End {
    /// The endpoint has ended, and all of its bytes are delivered.
    case endpointLeft
    /// Our side has ended, and all of its bytes are delivered, unless the endpoint took none for too long.
    case weLeft
    /// As `weLeft`, and the endpoint has sent nothing since our first byte, though an answer was awaited.
    case unanswered
    /// As `unanswered`, but it has returned what was sent to it: its echo, or an answer that is the same.
    case echoed
    case endpointFailed(any Error)
    case weFailed(any Error)
  }

  /// How the endpoint is closed when our side has ended and all is delivered.
  package enum Parting: Sendable {
    /// Close at once; if the endpoint takes no bytes, after a second.
    case atOnce
    /// Half-close, then close when the endpoint has ended. An endpoint that can't be half-closed is closed once it has
    /// sent nothing for the duration; with `always`, every endpoint is. `answerWithin`: if bytes were sent to it, it
    /// may take this long for its answer, if that is longer; and for that to each line of text.
    case whenSilent(Duration, always: Bool = false, answerWithin: Duration? = nil)
  }

  private let here: any ByteStream
  private let there: any ByteStream
  private var up: Pump!  // as its sink watches for this; set once
  private var down: Pump!
  private let poller: Poller
  private let parting: Parting
  private let done: (End) -> Void
  private var isOver = false
  private var isParting = false
  /// We have half-closed: the endpoint gets no more bytes from us.
  private var isTold = false
  /// We have started the closing handshake, and wait for the endpoint's half of it.
  private var isLeaving = false
  /// The endpoint's error; bytes that it sent before are still delivered.
  private var failure: (any Error)?
  private var answers = AnswerWatch()
  /// Servers learn of the end of our input. This one does not: it is a modem or another device.
  private var mayEcho = false
  private var timer: Timers.Token?
  private static let capacity = 64 << 10
  private static let stallLimit = Duration.seconds(1)
  // For the endpoint's half of a closing handshake.
  private static let mostForHandshake = Duration.seconds(3)

  /// Takes over both streams, and closes them at the end; `done` is called once, right after that.
  package init(
    _ here: any ByteStream, with there: any ByteStream, parting: Parting, on poller: Poller,
    _ done: @escaping (End) -> Void
  ) {
    self.here = here
    self.there = there
    self.poller = poller
    self.parting = parting
    self.done = done
    var (toHere, toThere) = (here, there)
    if case .whenSilent(_, _, .some) = parting {
      toThere = WatchedSink(there) { [unowned self] in answers.sent($0, at: poller.timers.now) }
      toHere = WatchedSink(here) { [unowned self] in answers.received($0, at: poller.timers.now) }
    }
    up = Pump(from: here, to: toThere, capacity: Self.capacity, on: poller)
    down = Pump(from: there, to: toHere, capacity: Self.capacity, on: poller)
    here.delegate = self
    there.delegate = self
  }

  package func start() {
    moveDown { () throws(Pump.Fault) in try down.turn() }
    moveUp { () throws(Pump.Fault) in try up.turn() }
  }

  // MARK: - Moving

  package func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
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
    case .openCompleted, .inputEnded, .endEncountered: break
    }
  }

  private func moveUp(_ turn: () throws(Pump.Fault) -> Pump.Outcome) {
    guard !isOver, failure == nil else { return }
    do { _ = try turn() } catch {
      return error.side == .sink ? endpointBroke(error.cause) : finish(.weFailed(error.cause))
    }
    evaluate()
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
    evaluate()
  }

  /// The endpoint takes no more bytes. What it sent before is still read and delivered.
  private func endpointBroke(_ error: any Error) {
    here.readerWaits = []
    there.writerWaits = []
    if failure == nil && !down.sourceEnded { failure = error }
    moveDown { () throws(Pump.Fault) in try down.turn() }
  }

  // MARK: - Closing

  private func evaluate() {
    guard !isOver else { return }
    let isHeard = down.count == 0 && !here.hasPendingOutput
    if let failure {
      // After an error, a source without further bytes has been read to its end.
      if isHeard && (down.sourceEnded || down.sourceIsDry) { finish(.endpointFailed(failure)) }
      return
    }
    if down.sourceEnded && isHeard { return finish(isLeaving ? .weLeft : .endpointLeft) }
    guard up.sourceEnded, !isLeaving else { return }
    let isDelivered = up.count == 0 && !there.hasPendingOutput
    // Don't replace what is already set: a TLS write can wait for readability.
    if !isDelivered && there.writerWaits.isEmpty { there.writerWaits = .writable }
    switch parting {
    case .atOnce where isDelivered: leave()
    case .atOnce: leave(after: Self.stallLimit)
    case .whenSilent(let silence, let always, let answer):
      guard isDelivered, !isParting else { return }
      isParting = true
      isTold = there.closeBehavior.canHalfClose
      mayEcho = !isTold && !there.closeBehavior.hasClosingHandshake
      if isTold { there.finishWriting() }
      if !isTold || always { leave(after: mostSilence(silence, answer)) }
    }
  }

  private func mostSilence(_ silence: Duration, _ answer: Duration?) -> Duration {
    guard let answer, up.moved > 0 else { return silence }
    guard mayEcho else { return answers.hasHeard ? silence : max(silence, answer) }
    return max(silence, !answers.isAnswered || answers.lacksLines ? answer : min(answer, answers.nextTakes))
  }

  /// What came instead of the answer that is awaited. Without a byte of ours there is nothing to answer.
  private var lack: End? {
    guard case .whenSilent(_, _, .some) = parting, up.moved > 0, !answers.isAnswered else { return nil }
    if !answers.hasHeard { return .unanswered }
    return mayEcho && answers.isEchoed ? .echoed : nil
  }

  private func leave(after timeout: Duration) {
    guard timer == nil else { return }
    timer = poller.timers.after(timeout) { [weak self] in self?.leave() }
  }

  /// Closes. If the endpoint has a closing handshake, that is carried out first: until its answer our last bytes may
  /// not have arrived.
  private func leave() {
    guard !isOver, !isLeaving else { return }
    guard there.closeBehavior.hasClosingHandshake, !isTold, !there.hasPendingOutput else { return finish(.weLeft) }
    isLeaving = true
    poller.timers.cancel(timer)
    timer = poller.timers.after(Self.mostForHandshake) { [weak self] in self?.finish(.weLeft) }
    there.finishWriting()
  }

  private func heardSomething() {
    guard timer != nil, !isLeaving, case .whenSilent(let silence, _, let answer) = parting else { return }
    poller.timers.cancel(timer)
    timer = nil
    leave(after: mostSilence(silence, answer))
  }

  private func finish(_ end: End) {
    guard !isOver else { return }
    isOver = true
    poller.timers.cancel(timer)
    here.close()
    there.close()
    if case .weLeft = end, let lack { return done(lack) }
    done(end)
  }
}
