// A ByteStream of TLS over a socket's stream. Writes are taken whole and sent by one call; reads decrypt straight into
// the run. Bytes that the socket does not take are the one held unit: at most `mostPerWrite` and its records' overhead.

import ByteStreams
import COpenSSL
import Glibc

package final class TLSStream: LayeredStream {
  package var delegate: (any ByteStreamDelegate)? {
    didSet { if ssl == nil && delegate != nil { delegate = nil } }
  }
  package var readerWaits: Readiness = [] { didSet { if readerWaits != oldValue { waitsChanged() } } }
  package var writerWaits: Readiness = [] { didSet { if writerWaits != oldValue { waitsChanged() } } }

  /// Returns the error to throw for a failure of the protocol, for code that can explain it better.
  package var explain: (TLSFailure) -> any Error = { $0 }

  /// What the handshake found out about the connection.
  package let facts: TLSFacts

  private(set) var ssl: OpaquePointer?  // nil once closed
  let wire: BufferedBIO
  package var below: any ByteStream { socket }
  let socket: DescriptorStream
  private let poller: Poller
  private var hasUnreportedBytes = false
  // The result of the next read, found out by a read that had bytes to return first.
  private var nextAnswer: Result<Transfer, any Error>?
  // close_notify was read. Bytes after it are dropped until the socket's own end.
  var endIsRead = false
  var hasToldReset = false
  var hasFinished = false
  // The protocol failed: OpenSSL sends no alert any more.
  private var isBroken = false
  private var readsLarge = false
  private var growsWhenEmpty = false

  /// The largest payload of a record, in bytes (RFC 8446 section 5.1).
  static let record = 16_384
  /// A longer write is taken in pieces of this size: few calls, and yet a bound for the held bytes.
  static let mostPerWrite = 4 * record
  // The limit of records per read.
  private static let mostRecords = 1024
  /// The same with the overhead of each record: 22 bytes in TLS 1.3. A client that asks for fragments of 512 bytes (RFC
  /// 6066 section 4) and uses a cipher of the old kind gets 128 records. Each has header, IV, MAC and padding: 85 bytes
  /// at most.
  static let collected = mostPerWrite + 128 * 96
  // OpenSSL's own buffer is one record. A larger one, for a peer that sends as fast as it can, needs fewer calls and
  // saves a tenth to a fifth of the CPU. Just below the size that malloc(3) would map anew each time.
  private static let largeRead = 15 * (record + 256)

  /// Takes ownership of a finished handshake and its descriptor. Make the stream on the lane where it stays, and take a
  /// turn at once, since bytes that came early are inside. `kind` as for the descriptor's own stream.
  package init(
    _ session: consuming TLSSession, over descriptor: consuming Descriptor, kind: DescriptorStream.Kind,
    on poller: Poller
  ) {
    facts = session.facts
    let ssl = session.take()
    self.ssl = ssl
    wire = BufferedBIO.under(ssl)
    self.poller = poller
    socket = DescriptorStream(descriptor, kind: kind, on: poller)
    wire.ride(on: socket)
    socket.delegate = self
    hasUnreportedBytes = SSL_has_pending(ssl) == 1
  }

  deinit { SSL_free(ssl) }

  // MARK: - Reading

  package func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    guard let ssl else { return .ended }
    hasUnreportedBytes = false
    if let next = nextAnswer.take() { return try answer(next) }
    if endIsRead { return .ended }
    if wire.answersPileUp, !flush() { return .blocked(until: .writable) }
    wire.restart()
    ERR_clear_error()
    var total = 0
    var records = 0
    var isEmptied = false
    // The work is bounded too: records may have one byte each, with key updates between them.
    while total < run.count, records < Self.mostRecords, wire.messagesInTurn <= BufferedBIO.mostMessages {
      var count = 0
      if SSL_read_ex(ssl, run.baseAddress! + total, run.count - total, &count) == 1 {
        total += count
        records += 1
        if wire.sendsTooMany {
          nextAnswer = .failure(floods())
          break
        }
        wire.sawPayload()
        continue
      }
      isEmptied = true
      guard let end = whyNoMore(ssl) else { break }
      if total == 0 { return try answer(end) }
      nextAnswer = end
      break
    }
    hasUnreportedBytes = !isEmptied && SSL_has_pending(ssl) == 1
    chooseReadSize(ssl, total)
    if wire.heldCount > 0 { waitsChanged() }  // the read may have answered a key update
    if total > 0 { return .moved(total) }
    return .blocked(until: wire.answersPileUp ? .writable : .readable)
  }

  package var hasBufferedInput: Bool { hasUnreportedBytes || nextAnswer != nil }

  /// Why nothing more could be read; nil if nothing is there now.
  private func whyNoMore(_ ssl: OpaquePointer) -> Result<Transfer, any Error>? {
    switch SSL_get_error(ssl, 0) {
    case SSL_ERROR_WANT_READ:
      if let failure = wire.readFailure { return .failure(failure) }
      // After a write has got the reset's error, a read sees only an end.
      if wire.sawEnd { return .failure(wire.writeFailure ?? TLSFailure.truncated(other)) }
      if wire.hasLostHeld, let failure = wire.writeFailure { return .failure(failure) }
      return wire.sendsTooMany ? .failure(floods()) : nil
    case SSL_ERROR_ZERO_RETURN: return .success(.ended)
    default: return .failure(explain(broke()))
    }
  }

  private func floods() -> TLSFailure {
    isBroken = true
    return .tooManyKeyUpdates(other)
  }

  private func broke() -> TLSFailure {
    isBroken = true
    let error = OpenSSLErrors.take()
    return TLSHandshake.known(error, other) ?? .broken(other, error?.text ?? "no reason given")
  }

  private func answer(_ answer: Result<Transfer, any Error>) throws -> Transfer {
    switch answer {
    case .success(let transfer):
      endIsRead = transfer == .ended
      // After a short read there is nothing more yet.
      if wire.isDry { waitsChanged() } else { readToSocketsEnd() }
      return transfer
    case .failure(let error):
      nextAnswer = answer  // for every later read
      throw error
    }
  }

  var failure: SystemError? { wire.writeFailure ?? wire.readFailure }
  private var other: TLSSide { facts.side == .server ? .client : .server }

  /// If a peer sends more than one read returns, it is read in larger pieces until it pauses. OpenSSL changes its
  /// buffer only when the buffer is empty.
  private func chooseReadSize(_ ssl: OpaquePointer, _ count: Int) {
    if readsLarge {
      guard count < Self.record else { return }
      SSL_set_default_read_buffer_len(ssl, 0)
      readsLarge = false
    } else if growsWhenEmpty || wire.wasFilled {
      growsWhenEmpty = SSL_has_pending(ssl) == 1
      // Until then it reads no further than its record, so that the buffer runs empty.
      SSL_set_read_ahead(ssl, growsWhenEmpty ? 0 : 1)
      guard !growsWhenEmpty else { return }
      SSL_set_default_read_buffer_len(ssl, Self.largeRead)
      readsLarge = true
    }
  }

  // MARK: - Writing

  package func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    guard let ssl, !hasFinished else { return .ended }
    guard wire.heldCount == 0 || flush() else { return .blocked(until: .writable) }
    if let failure { throw failure }
    let count = min(run.count, Self.mostPerWrite)
    var taken = 0
    // In the middle of a message that arrives in pieces (a ticket), OpenSSL first reads the rest of it.
    let readsFirst = SSL_in_init(ssl) == 1
    if readsFirst { wire.restart() }
    ERR_clear_error()
    let result: Int32
    if count > Self.record {
      let ring = try poller.rings.borrow(capacity: Self.collected)
      wire.collector = ring
      result = SSL_write_ex(ssl, run.baseAddress!, count, &taken)
      wire.sendCollected(ring)
      poller.rings.giveBack(ring)
    } else {
      result = SSL_write_ex(ssl, run.baseAddress!, count, &taken)
    }
    if let failure { throw failure }
    guard result == 1 else {
      guard SSL_get_error(ssl, result) == SSL_ERROR_WANT_READ else { throw explain(broke()) }
      if wire.sawEnd { throw TLSFailure.truncated(other) }
      // Nothing more is read from this peer, so the wait would never end.
      if wire.sendsTooMany { throw floods() }
      return .blocked(until: .readable)
    }
    if wire.heldCount > 0 { waitsChanged() }
    if readsFirst {
      // It may have read payload as well, which the socket does not report any more.
      hasUnreportedBytes = SSL_has_pending(ssl) == 1
      if hasUnreportedBytes && !readerWaits.isEmpty { poller.again(self) }
    }
    return .moved(taken)
  }

  /// Joins the runs, so that a frame and its header are one record. This costs one copy; separate records would cost 22
  /// bytes and a call each.
  package func write(together runs: UnsafeMutableBufferPointer<iovec>) throws -> Transfer {
    guard wire.heldCount == 0 || flush() else { return .blocked(until: .writable) }
    let ring = try poller.rings.borrow(capacity: Self.collected)
    defer {
      ring.clear()
      poller.rings.giveBack(ring)
    }
    for run in runs where ring.count < Self.mostPerWrite {
      _ = try ring.fill { room in
        let part = UnsafeRawBufferPointer(start: run.iov_base, count: min(run.iov_len, Self.mostPerWrite - ring.count))
        room.copyMemory(from: part)
        return .moved(part.count)
      }
    }
    return try ring.lookAtAll { try write($0) }
  }

  package var largestUnit: Int { 1 }
  package var hasPendingOutput: Bool { wire.heldCount > 0 }
  package var undelivered: UndeliveredOutput { socket.undelivered.adding(wire.heldCount) }
  package var closeBehavior: CloseBehavior { CloseBehavior(canHalfClose: true, sendsCloseNotice: true) }

  /// Sends close_notify, and then ends the socket's output, for peers that check only that.
  package func finishWriting() {
    guard let ssl, !hasFinished else { return }
    hasFinished = true
    sendCloseNotify(ssl)
    if flush() { socket.finishWriting() } else { waitsChanged() }
  }

  private func sendCloseNotify(_ ssl: OpaquePointer) {
    guard !isBroken, failure == nil else { return }
    ERR_clear_error()
    SSL_shutdown(ssl)
    ERR_clear_error()
  }

  /// Returns whether nothing is held any more.
  func flush() -> Bool {
    guard wire.flush() else { return false }
    waitsChanged()
    return true
  }

  // MARK: - The end

  package func close() {
    guard let ssl = ssl.take() else { return }
    // Nothing waits for the close_notify: what the socket does not take now is not sent.
    if !hasFinished && wire.heldCount == 0 { sendCloseNotify(ssl) }
    // A server's tickets may be unread. They would turn the close into a reset, which destroys the tail of our bytes.
    if facts.side == .client && !endIsRead { wire.skip() }
    end(ssl)
    socket.close()
  }

  package func abort() {
    guard let ssl = ssl.take() else { return }
    end(ssl)
    socket.abort()
  }

  private func end(_ ssl: OpaquePointer) {
    SSL_free(ssl)
    dismissDelegate()
  }
}
