// What a TLS stream waits for at its socket, and which events it reports. It waits for its user and, while it holds a
// unit, for itself.

import ByteStreams

extension TLSStream {
  /// The socket waits for what this stream's user waits for, and for what the stream itself needs.
  func waitsChanged() {
    guard ssl != nil else { return }
    let waits = readerWaits.union(writerWaits)
    let reads = waits.contains(.readable) || awaitsSocketsEnd
    let writes = waits.contains(.writable) || wire.heldCount > 0
    socket.readerWaits = reads ? .readable : []
    socket.writerWaits = writes ? .writable : []
  }

  var awaitsSocketsEnd: Bool { endIsRead && !wire.sawEnd && wire.readFailure == nil }

  /// RFC 8446 section 6.1: bytes after close_notify are ignored. The socket's end shows that the other side is gone.
  func readToSocketsEnd() {
    guard awaitsSocketsEnd else { return }
    wire.skip()
    waitsChanged()
  }

  package func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .hasBytesAvailable:
      guard awaitsSocketsEnd else { return report(.readable) }
      readToSocketsEnd()
      reportReset()
    case .hasSpaceAvailable:
      guard flush() else { return }
      guard wire.writeFailure == nil else { return reportBroken() }
      if hasFinished { socket.finishWriting() }
      report(.writable)
    case .inputEnded where endIsRead: reportReset()
    case .openCompleted, .inputEnded, .errorOccurred, .endEncountered: delegate?.stream(self, handle: event)
    }
  }

  /// A peer that has sent close_notify and then resets the connection does not read our bytes any more. If the socket
  /// ended in order, it reports the end itself.
  private func reportReset() {
    guard failure != nil, !hasToldReset else { return }
    hasToldReset = true
    delegate?.stream(self, handle: .endEncountered)
  }

  /// The held bytes are lost. The reader first: it reads all received bytes and gets the error only after them.
  private func reportBroken() {
    let writer = writerWaits
    if !readerWaits.isEmpty { delegate?.stream(self, handle: .hasBytesAvailable) }
    if !writer.isEmpty { delegate?.stream(self, handle: .hasSpaceAvailable) }
  }

  /// The writer first: it makes room, which the reader's turn can fill.
  private func report(_ readiness: Readiness) {
    let (reader, writer) = (readerWaits, writerWaits)
    if !writer.isDisjoint(with: readiness) { delegate?.stream(self, handle: .hasSpaceAvailable) }
    if !reader.isDisjoint(with: readiness) { delegate?.stream(self, handle: .hasBytesAvailable) }
  }
}
