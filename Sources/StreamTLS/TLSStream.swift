// A ByteStream of TLS over a socket's stream. Writes are taken whole and leave by one call; reads decrypt straight into the run.
// What the socket does not take is the one unit that is held: at most `mostPerWrite` and its records' frames.

import ByteStreams
import COpenSSL
import Glibc

public final class TLSStream: ByteStream {
  public var delegate: (any ByteStreamDelegate)? {
    didSet { if ssl == nil && delegate != nil { delegate = nil } }
  }
  public var readerWaits: Readiness = [] { didSet { if readerWaits != oldValue { waitsChanged() } } }
  public var writerWaits: Readiness = [] { didSet { if writerWaits != oldValue { waitsChanged() } } }

  /// What is thrown for a failure of the protocol, for who can say more of it.
  public var explain: (TLSFailure) -> any Error = { $0 }

  /// What the handshake found out.
  public let facts: TLSFacts

  private(set) var ssl: OpaquePointer?  // nil once closed
  let wire: TLSWire
  let socket: DescriptorStream
  private let poller: Poller
  private var hidesBytes = false
  // What the next read answers, found out by one that had bytes to hand out first.
  private var nextAnswer: Result<Transfer, any Error>?
  // close_notify was read. What comes behind it is dropped up to the socket's own end, which is waited for.
  var endIsRead = false
  var hasToldReset = false
  var hasFinished = false
  // OpenSSL writes no alert any more.
  private var isBroken = false
  private var readsLarge = false
  private var growsWhenEmpty = false

  /// The payload of a record (RFC 8446 section 5.1).
  static let record = 16_384
  /// Of a longer write so much is taken at a time: few calls, and yet a bound for what is held.
  static let mostPerWrite = 4 * record
  // Of one read.
  private static let mostRecords = 1024
  /// With what belongs to each record: 22 bytes in TLS 1.3. Who asks for fragments of 512 bytes (RFC 6066 section 4) and takes
  /// a cipher of the old kind has 128 of them, each with header, IV, MAC and padding: 85 bytes at most.
  static let collected = mostPerWrite + 128 * 96
  // OpenSSL's own buffer is one record. For one who sends as fast as he can: fewer calls, a tenth to a fifth of the CPU. Just
  // below what malloc(3) would map anew each time.
  private static let largeRead = 15 * (record + 256)

  /// Takes over a finished handshake and the descriptor it went over. To be made on the lane where the stream stays; take a
  /// turn at once, since what came early is inside. `kind` as for the descriptor's own stream.
  public init(
    _ session: consuming TLSSession, over descriptor: consuming Descriptor, kind: DescriptorStream.Kind,
    on poller: Poller
  ) {
    facts = session.facts
    let ssl = session.take()
    self.ssl = ssl
    wire = TLSWire.under(ssl)
    self.poller = poller
    socket = DescriptorStream(descriptor, kind: kind, on: poller)
    wire.ride(on: socket)
    socket.delegate = self
    hidesBytes = SSL_has_pending(ssl) == 1
  }

  deinit { SSL_free(ssl) }

  // MARK: - Reading

  public func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    guard let ssl else { return .ended }
    hidesBytes = false
    if let next = nextAnswer.take() { return try answer(next) }
    if endIsRead { return .ended }
    if wire.answersPileUp, !flush() { return .blocked(until: .writable) }
    wire.restart()
    ERR_clear_error()
    var total = 0
    var records = 0
    var isEmptied = false
    // Bounded by work, too: records may have one byte each, and key updates between them.
    while total < run.count, records < Self.mostRecords, wire.messagesInTurn <= TLSWire.mostMessages {
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
    hidesBytes = !isEmptied && SSL_has_pending(ssl) == 1
    chooseReadSize(ssl, total)
    if wire.heldCount > 0 { waitsChanged() }  // it may have answered a key update
    if total > 0 { return .moved(total) }
    return .blocked(until: wire.answersPileUp ? .writable : .readable)
  }

  public var holdsBytes: Bool { hidesBytes || nextAnswer != nil }

  /// Why nothing more could be read; nil when nothing is there now.
  private func whyNoMore(_ ssl: OpaquePointer) -> Result<Transfer, any Error>? {
    switch SSL_get_error(ssl, 0) {
    case SSL_ERROR_WANT_READ:
      if let failure = wire.readFailure { return .failure(failure) }
      // A write that was told of the reset leaves a mere end to be read.
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
      nextAnswer = answer  // as often as it is asked for
      throw error
    }
  }

  var failure: SystemError? { wire.writeFailure ?? wire.readFailure }
  private var other: TLSSide { facts.side == .server ? .client : .server }

  /// Who sends more than a read takes is read in larger pieces, until he pauses. OpenSSL changes its buffer when it is empty.
  private func chooseReadSize(_ ssl: OpaquePointer, _ count: Int) {
    if readsLarge {
      guard count < Self.record else { return }
      SSL_set_default_read_buffer_len(ssl, 0)
      readsLarge = false
    } else if growsWhenEmpty || wire.wasFilled {
      growsWhenEmpty = SSL_has_pending(ssl) == 1
      // Meanwhile it reads no further than its record, so that it runs empty.
      SSL_set_read_ahead(ssl, growsWhenEmpty ? 0 : 1)
      guard !growsWhenEmpty else { return }
      SSL_set_default_read_buffer_len(ssl, Self.largeRead)
      readsLarge = true
    }
  }

  // MARK: - Writing

  public func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    guard let ssl, !hasFinished else { return .ended }
    guard wire.heldCount == 0 || flush() else { return .blocked(until: .writable) }
    if let failure { throw failure }
    let count = min(run.count, Self.mostPerWrite)
    var taken = 0
    // In the middle of a message that comes in pieces (a ticket), OpenSSL reads the rest of it first.
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
      // Nothing of his is read any more, so nobody would ever go on.
      if wire.sendsTooMany { throw floods() }
      return .blocked(until: .readable)
    }
    if wire.heldCount > 0 { waitsChanged() }
    if readsFirst {
      // It may have read payload as well, of which the socket tells no more.
      hidesBytes = SSL_has_pending(ssl) == 1
      if hidesBytes && !readerWaits.isEmpty { poller.again(self) }
    }
    return .moved(taken)
  }

  /// Joins them, so that a frame and its header are one record: one copy, where each record alone would cost 22 bytes and a call.
  public func write(together runs: UnsafeMutableBufferPointer<iovec>) throws -> Transfer {
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

  public func makeRoomForEnd() { socket.makeRoomForEnd() }
  public var holdsUnit: Bool { wire.heldCount > 0 }
  public var unacknowledged: Int { wire.heldCount + socket.unacknowledged }
  public var canHalfClose: Bool { true }
  public var saysFarewell: Bool { true }

  /// Says close_notify, and then the socket's own end, for those who look at that only.
  public func finishWriting() {
    guard let ssl, !hasFinished else { return }
    hasFinished = true
    sayFarewell(ssl)
    if flush() { socket.finishWriting() } else { waitsChanged() }
  }

  private func sayFarewell(_ ssl: OpaquePointer) {
    guard !isBroken, failure == nil else { return }
    ERR_clear_error()
    SSL_shutdown(ssl)
    ERR_clear_error()
  }

  /// Whether nothing is held any more.
  func flush() -> Bool {
    guard wire.flush() else { return false }
    waitsChanged()
    return true
  }

  // MARK: - The end

  public func close() {
    guard let ssl = ssl.take() else { return }
    // Nobody waits for it: what the socket takes now is all.
    if !hasFinished && wire.heldCount == 0 { sayFarewell(ssl) }
    // A server's tickets, which nobody may have read, would make a reset of the close, and that destroys the tail of our bytes.
    if facts.side == .client && !endIsRead { wire.skip() }
    end(ssl)
    socket.close()
  }

  public func abort() {
    guard let ssl = ssl.take() else { return }
    end(ssl)
    socket.abort()
  }

  private func end(_ ssl: OpaquePointer) {
    SSL_free(ssl)
    dismissDelegate()
  }
}
