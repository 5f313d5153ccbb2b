// Connections whose session or handshake is over and that close in order. A route has one set, the handshakes another.
// Bounded in number and time.

package final class ClosingStreams {
  private let poller: Poller
  private var closes: [ObjectIdentifier: OrderlyClose] = [:]
  private var whenEmpty: (() -> Void)?

  /// With this many waiting, a further connection closes at once. A hostile client gains nothing by never finishing.
  private static let most = 64
  /// The most bytes read from a connection that never had a session, or that sent an HTTP request to a raw port. Other
  /// clients are trusted, and have no such limit.
  package static let mostBeforeSession = 256 << 10

  package init(on poller: Poller) { self.poller = poller }

  /// Takes over `stream` and closes it in order. `otherSideFinished`: its end has been read already. After `most` bytes
  /// the stream closes, even if more input arrives.
  package func close(_ stream: any ByteStream, otherSideFinished: Bool, readingAtMost most: Int? = nil) {
    stream.prepareToClose()
    let behavior = stream.closeBehavior
    let isOver = otherSideFinished || !(behavior.canHalfClose || behavior.hasClosingHandshake)
    // Not asked of a stream that loses nothing: it costs a system call.
    if !behavior.canHalfClose, closes.count < Self.most, case .lostAtClose = stream.undelivered {
      return wait(for: stream, CloseWait(for: .reads, stream.undelivered))
    }
    if isOver && behavior.sendsCloseNotice && !stream.hasPendingOutput { stream.finishWriting() }
    guard !isOver || stream.hasPendingOutput, closes.count < Self.most else { return stream.close() }
    let aim = isOver ? CloseWait.Aim.pendingOutput : .otherSidesEnd
    wait(for: stream, CloseWait(for: aim, stream.undelivered), readingAtMost: most)
  }

  /// The same for a client that gets no session; the bytes it has sent so far are read first. Returns their number, and
  /// the error if the stream broke. With `atOnce` it does not wait for the other side's end.
  package func refuse(_ stream: any ByteStream, atOnce: Bool) -> (dropped: UInt64, error: (any Error)?) {
    // With `most` streams waiting, the next one closes at once; unread bytes would then turn its FIN into a reset.
    let (dropped, error) = stream.discardAll(atMost: Self.mostBeforeSession)
    close(stream, otherSideFinished: error != nil || atOnce, readingAtMost: Self.mostBeforeSession - dropped)
    return (UInt64(dropped), error)
  }

  /// Takes over `stream` and aborts it, so that the other side sees that data is missing. First waits until it has
  /// acknowledged output on its way, since a reset would destroy that.
  package func breakOff(_ stream: any ByteStream) {
    stream.prepareToClose()
    let undelivered = stream.undelivered
    guard stream.hasPendingOutput || undelivered.onItsWay > 0, closes.count < Self.most else { return stream.abort() }
    wait(for: stream, CloseWait(for: .acknowledgement, undelivered))
  }

  private func wait(for stream: any ByteStream, _ wait: CloseWait, readingAtMost most: Int? = nil) {
    let key = ObjectIdentifier(stream)
    // The closure keeps this set alive until its last stream has closed.
    let close = OrderlyClose(stream, wait, readingAtMost: most, on: poller) { [self] in hasClosed(key) }
    closes[key] = close
    close.start()
  }

  private func hasClosed(_ key: ObjectIdentifier) {
    closes[key] = nil
    guard closes.isEmpty, let done = whenEmpty.take() else { return }
    done()
  }

  /// Calls `done` when no stream is left. After `limit` it closes the rest.
  package func empty(within limit: Duration, then done: @escaping () -> Void) {
    if !closes.isEmpty { poller.timers.after(limit) { [weak self] in self?.closeAll() } }
    empty(then: done)
  }

  /// Calls `done` when no stream is left.
  package func empty(then done: @escaping () -> Void) {
    if closes.isEmpty { done() } else { whenEmpty = done }
  }

  package func closeAll() {
    for close in Array(closes.values) { close.cutOff() }
  }
}
