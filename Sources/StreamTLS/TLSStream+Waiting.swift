// What a TLS stream waits for, and whom it tells: the socket's events are its user's, and its own where a unit is held.

import ByteStreams

extension TLSStream: ByteStreamDelegate {
  /// A descriptor's interest is the one's who uses this stream, and its own.
  func waitsChanged() {
    guard ssl != nil else { return }
    let waits = readerWaits.union(writerWaits)
    let reads = waits.contains(.readable) || awaitsSocketsEnd
    let writes = waits.contains(.writable) || wire.heldCount > 0
    socket.readerWaits = reads ? .readable : []
    socket.writerWaits = writes ? .writable : []
  }

  var awaitsSocketsEnd: Bool { endIsRead && !wire.sawEnd && wire.readFailure == nil }

  /// RFC 8446 section 6.1: what comes behind close_notify is ignored. The socket's end says that nobody is there any more.
  func readToSocketsEnd() {
    guard awaitsSocketsEnd else { return }
    wire.skip()
    waitsChanged()
  }

  public func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .hasBytesAvailable:
      guard awaitsSocketsEnd else { return tell(.readable) }
      readToSocketsEnd()
      tellReset()
    case .hasSpaceAvailable:
      guard flush() else { return }
      guard wire.writeFailure == nil else { return tellBroken() }
      if hasFinished { socket.finishWriting() }
      tell(.writable)
    case .lastByteIsIn where endIsRead: tellReset()
    case .openCompleted, .lastByteIsIn, .errorOccurred, .endEncountered: delegate?.stream(self, handle: event)
    }
  }

  /// Who has ended, and resets what we say still, listens no more. A socket that ended in order says so itself.
  private func tellReset() {
    guard failure != nil, !hasToldReset else { return }
    hasToldReset = true
    delegate?.stream(self, handle: .endEncountered)
  }

  /// What was held is lost. The reader first: what came is read to its end, and only there he learns of it.
  private func tellBroken() {
    let writer = writerWaits
    if !readerWaits.isEmpty { delegate?.stream(self, handle: .hasBytesAvailable) }
    if !writer.isEmpty { delegate?.stream(self, handle: .hasSpaceAvailable) }
  }

  /// The writer first: what it makes room for, the reader's turn can fill.
  private func tell(_ readiness: Readiness) {
    let (reader, writer) = (readerWaits, writerWaits)
    if !writer.isDisjoint(with: readiness) { delegate?.stream(self, handle: .hasSpaceAvailable) }
    if !reader.isDisjoint(with: readiness) { delegate?.stream(self, handle: .hasBytesAvailable) }
  }
}
