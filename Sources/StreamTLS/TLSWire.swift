// What lies under OpenSSL: a BIO of our own over the descriptor, which never says "blocked" to a write. What the socket does
// not take stays here, beside OpenSSL, as the stream's one held unit: OpenSSL 3.0 loses its place when a key update meets a
// record that is blocked inside it. The records of one write, or of one flight of a handshake, leave by one send(2).

import ByteStreams
import COpenSSL
import Glibc
import Synchronization

/// Belongs to the BIO, which belongs to the SSL.
final class TLSWire {
  /// Since the last `restart()` a read got less than it asked for: what there was is read, and asking again would cost a call.
  private(set) var isDry = false
  /// A read filled all that was asked for: more is waiting.
  private(set) var wasFilled = false
  private(set) var sawEnd = false
  // What broke the socket, each way by itself: what the other side said before it broke is still read, whatever a write found
  // out. Kept here, since OpenSSL would make it an error of its own.
  private(set) var readFailure: SystemError?
  private(set) var writeFailure: SystemError?
  /// Bytes that were taken are lost, and no write has told.
  private(set) var hasLostHeld = false
  /// The first bytes that came, for telling what they are.
  private(set) var first: [UInt8] = []
  /// Bytes not yet taken by the socket, from `heldStart` on.
  private var held: [UInt8] = []
  private var heldStart = 0
  /// Records are put into it, to be sent together.
  var collector: RingBuffer?
  /// Whatever is written stays until `flush()`.
  var isCorked = false

  // What handshakes leave here for those who look after them.
  var server: TLSServerContext?
  var choose: TLSServerContext.Choice?
  var client: TLSClientContext?
  var serverName: String?
  var nameIsRefused = false
  var certificateFault: TLSCertificateFault?
  /// A callback of ours could not do what it had to.
  var lacksMemory = false
  /// Steps of OpenSSL's state machine after the handshake with no payload between them: some two for a message such as a key update.
  private(set) var messages = 0
  /// The same since the last `restart()`, payload or not.
  private(set) var messagesInTurn = 0
  private var isEstablished = false

  /// Bytes that the socket has not taken.
  var heldCount: Int { held.count - heldStart }

  private let raw: Int32
  private var socket: DescriptorStream?
  private static let firstLength = 16

  init(over raw: Int32) { self.raw = raw }

  /// From now on it reads and writes through `socket`, of the same descriptor.
  func ride(on socket: DescriptorStream) { self.socket = socket }

  // MARK: - Messages

  /// The handshake is through, and what it needed is let go of.
  func settle() {
    isEstablished = true
    server = nil
    choose = nil
    client = nil
    first = []
  }

  func sawMessage() {
    guard isEstablished else { return }
    messages += 1
    messagesInTurn += 1
  }
  func sawPayload() { messages = 0 }

  /// More messages than anybody has a reason for, or answers to them behind a unit that does not leave: OpenSSL gets no more
  /// to read, or it would go on inside one call.
  private var isFlooded: Bool { sendsTooMany || answersPileUp }
  var sendsTooMany: Bool { messages > Self.mostMessages }
  var answersPileUp: Bool { heldCount > Self.mostHeld }

  // No sender has a reason for more key updates without a byte between.
  static let mostMessages = 32
  /// A unit, and some answers.
  static let mostHeld = TLSStream.collected + 4096

  /// Asks the socket again.
  func restart() {
    isDry = false
    wasFilled = false
    messagesInTurn = 0
  }

  /// What went wrong is told, as far as the socket takes it.
  func answer(_ bytes: [UInt8]) { bytes.withUnsafeBytes { _ = sendSome($0) } }

  // MARK: - Reading

  /// Nil when nothing is there now, or never will be: `sawEnd` and `readFailure` tell.
  fileprivate func read(_ run: UnsafeMutableRawBufferPointer) -> Int? {
    guard !isDry, !isFlooded else { return nil }
    return take(run)
  }

  private func take(_ run: UnsafeMutableRawBufferPointer) -> Int? {
    guard !sawEnd, readFailure == nil else { return nil }
    do throws(SystemError) {
      switch try receive(run) {
      case .moved(let count):
        isDry = count < run.count
        wasFilled = !isDry
        if !isEstablished && first.count < Self.firstLength {
          first += run.prefix(min(count, Self.firstLength - first.count))
        }
        return count
      case .blocked: isDry = true
      case .ended: sawEnd = true
      }
    } catch {
      readFailure = error
    }
    return nil
  }

  /// Reads and forgets, at most so much as is at hand.
  func skip() {
    restart()
    // Also of one who had sent too much to be read: or his end would never be seen.
    withUnsafeTemporaryAllocation(byteCount: 16_384, alignment: 1) { _ = take($0) }
  }

  private func receive(_ run: UnsafeMutableRawBufferPointer) throws(SystemError) -> Transfer {
    if let socket { return try call("read") { try socket.read(into: run) } }
    while true {
      let count = Glibc.read(raw, run.baseAddress!, run.count)
      if count > 0 { return .moved(count) }
      if count == 0 { return .ended }
      switch errno {
      case EINTR: continue
      case EAGAIN: return .blocked(until: .readable)
      default: throw SystemError("read")
      }
    }
  }

  // MARK: - Writing

  /// Takes all of it, whatever the socket says.
  fileprivate func write(_ run: UnsafeRawBufferPointer) {
    guard writeFailure == nil else { return }
    if let collector {
      if collector.room < run.count { send(collected: collector) }
      _ = try? collector.fill { room in
        room.copyMemory(from: run)
        return .moved(run.count)
      }
      return
    }
    if isCorked || heldCount > 0 {
      held += run
    } else {
      send(run)
    }
  }

  /// Ends the collecting: what it came to leaves together, or is held.
  func sendCollected(_ ring: RingBuffer) {
    collector = nil
    send(collected: ring)
  }

  private func send(collected ring: RingBuffer) {
    guard !ring.isEmpty else { return }
    ring.lookAtAll { run in
      if heldCount > 0 { held += run } else { send(run) }
    }
    ring.clear()
  }

  /// Sends what it can and holds the rest.
  private func send(_ run: UnsafeRawBufferPointer) {
    let sent = sendSome(run)
    if writeFailure == nil && sent < run.count { held += run.dropFirst(sent) }
  }

  /// Offers the socket what is held. Whether nothing is any more; if it broke, that is so, too.
  func flush() -> Bool {
    isCorked = false
    if heldCount > 0 && writeFailure == nil {
      heldStart += held.withUnsafeBytes { sendSome(UnsafeRawBufferPointer(rebasing: $0[heldStart...])) }
    }
    if heldCount > 0 {
      guard writeFailure != nil else { return false }
      hasLostHeld = true
    }
    held = []
    heldStart = 0
    return true
  }

  /// One call: a short one has filled the socket.
  private func sendSome(_ run: UnsafeRawBufferPointer) -> Int {
    do throws(SystemError) {
      switch try sendOnce(run) {
      case .moved(let count): return count
      case .blocked: return 0
      case .ended: throw SystemError("write", EPIPE)
      }
    } catch {
      writeFailure = error
      return 0
    }
  }

  private func sendOnce(_ run: UnsafeRawBufferPointer) throws(SystemError) -> Transfer {
    if let socket { return try call("write") { try socket.write(run) } }
    while true {
      let count = Glibc.send(raw, run.baseAddress!, run.count, Int32(MSG_NOSIGNAL))
      if count >= 0 { return .moved(count) }
      switch errno {
      case EINTR: continue
      case EAGAIN: return .blocked(until: .writable)
      default: throw SystemError("write")
      }
    }
  }

  /// A descriptor's stream throws nothing but this.
  private func call(_ name: String, _ body: () throws -> Transfer) throws(SystemError) -> Transfer {
    do { return try body() } catch { throw error as? SystemError ?? SystemError(name, EIO) }
  }
}

// MARK: - The BIO

extension TLSWire {
  /// Puts a wire under `ssl`, which owns it from now on. False when there is no memory for that.
  func attach(to ssl: OpaquePointer) -> Bool {
    guard let method = Self.method(), let bio = BIO_new(method) else { return false }
    BIO_set_data(bio, Unmanaged.passRetained(self).toOpaque())
    BIO_set_init(bio, 1)
    SSL_set_bio(ssl, bio, bio)
    return true
  }

  /// The wire under `ssl`.
  static func under(_ ssl: OpaquePointer) -> TLSWire { of(SSL_get_rbio(ssl)) }

  fileprivate static func of(_ bio: OpaquePointer?) -> TLSWire {
    Unmanaged<TLSWire>.fromOpaque(BIO_get_data(bio)).takeUnretainedValue()
  }

  /// Made by the first handshake that gets the memory for it.
  private struct Method: @unchecked Sendable {
    // A pointer to what never changes once it is made.
    let raw: OpaquePointer
  }
  private static let made = Mutex<Method?>(nil)

  private static func method() -> OpaquePointer? {
    made.withLock { made in
      if made == nil { made = makeMethod() }
      return made?.raw
    }
  }

  private static func makeMethod() -> Method? {
    guard let method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "baudway") else { return nil }
    BIO_meth_set_read_ex(method) { bio, data, count, got in
      openssl_BIO_clear_retry_flags(bio)
      let run = UnsafeMutableRawBufferPointer(start: data, count: count)
      guard let count = TLSWire.of(bio).read(run) else {
        // To OpenSSL an end is a wait, too: it would answer it with an alert. The stream knows better.
        openssl_BIO_set_retry_read(bio)
        return 0
      }
      got?.pointee = count
      return 1
    }
    BIO_meth_set_write_ex(method) { bio, data, count, taken in
      openssl_BIO_clear_retry_flags(bio)
      TLSWire.of(bio).write(UnsafeRawBufferPointer(start: data, count: count))
      taken?.pointee = count
      return 1
    }
    BIO_meth_set_ctrl(method) { _, command, _, _ in command == BIO_CTRL_FLUSH ? 1 : 0 }
    BIO_meth_set_destroy(method) { bio in
      guard let data = BIO_get_data(bio) else { return 1 }
      BIO_set_data(bio, nil)
      Unmanaged<TLSWire>.fromOpaque(data).release()
      return 1
    }
    return Method(raw: method)
  }
}
