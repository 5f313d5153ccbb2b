// The BIO between OpenSSL and the descriptor. It never reports "blocked" to a write: bytes that the socket does not
// take stay here, outside OpenSSL, as the stream's one held unit. The reason: OpenSSL 3.0 loses its place when a key
// update meets a record that is blocked inside it. The records of one write, or of one flight of a handshake, are sent
// by one send(2).

import ByteStreams
import COpenSSL
import Glibc
import Synchronization

/// Belongs to the BIO, which belongs to the SSL.
final class BufferedBIO {
  /// Since the last `restart()` a read got less than it asked for: the socket is empty, and another read would cost a
  /// call.
  private(set) var isDry = false
  /// The last read got all it asked for: more may be waiting.
  private(set) var wasFilled = false
  private(set) var sawEnd = false
  // What broke the socket, each direction separately: bytes sent before the break are still read, even if a write has
  // failed. Kept here, since OpenSSL would make it an error of its own.
  private(set) var readFailure: SystemError?
  private(set) var writeFailure: SystemError?
  /// Bytes that were taken are lost, and no write has reported it.
  private(set) var hasLostHeld = false
  /// The first bytes received, from which `NonTLSBytes` finds out what they are.
  private(set) var first: [UInt8] = []
  /// Bytes not yet taken by the socket, from `heldStart` on.
  private var held: [UInt8] = []
  private var heldStart = 0
  /// Collects records, to be sent together.
  var collector: RingBuffer?
  /// Written bytes stay here until `flush()`.
  var isCorked = false

  // Set by a handshake, for its callbacks and for the code that reports its result.
  var server: TLSServerContext?
  var choose: TLSServerContext.Choice?
  var client: TLSClientContext?
  var serverName: String?
  var nameIsRefused = false
  var certificateFault: TLSCertificateFault?
  /// A callback of ours failed for lack of memory.
  var lacksMemory = false
  /// Steps of OpenSSL's state machine after the handshake with no payload between them: about two for each message,
  /// such as a key update.
  private(set) var messages = 0
  /// The same since the last `restart()`, with or without payload.
  private(set) var messagesInTurn = 0
  private var isEstablished = false

  /// Bytes that the socket has not taken.
  var heldCount: Int { held.count - heldStart }

  private let raw: Int32
  private var socket: DescriptorStream?
  private static let firstLength = 16

  init(over raw: Int32) { self.raw = raw }

  /// Reads and writes through `socket`, of the same descriptor, from now on.
  func ride(on socket: DescriptorStream) { self.socket = socket }

  // MARK: - Messages

  /// The handshake is finished: releases what only it needed.
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

  /// The peer sends too many messages, or too many answers to them wait after a unit that the socket does not take.
  /// OpenSSL then gets nothing more to read; otherwise it would go on inside one call.
  private var isFlooded: Bool { sendsTooMany || answersPileUp }
  var sendsTooMany: Bool { messages > Self.mostMessages }
  var answersPileUp: Bool { heldCount > Self.mostHeld }

  // No sender has a reason for more key updates without payload between them.
  static let mostMessages = 32
  /// One unit and some answers, in bytes.
  static let mostHeld = TLSStream.collected + 4096

  /// Allows the next read to call the socket again.
  func restart() {
    isDry = false
    wasFilled = false
    messagesInTurn = 0
  }

  /// Sends `bytes` in clear, as an error message, as far as the socket takes them.
  func answer(_ bytes: [UInt8]) { bytes.withUnsafeBytes { _ = sendSome($0) } }

  // MARK: - Reading

  /// Nil when nothing is there now, or nothing will come: see `sawEnd` and `readFailure`.
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

  /// Reads once and discards the bytes, 16 KiB at most.
  func skip() {
    restart()
    // Not by `read`, which refuses a peer that has sent too much: its end would never be seen.
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

  /// Takes all of `run`, even if the socket has no room.
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

  /// Ends the collecting: the collected records are sent together, or held.
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

  /// Sends what the socket takes, and holds the rest.
  private func send(_ run: UnsafeRawBufferPointer) {
    let sent = sendSome(run)
    if writeFailure == nil && sent < run.count { held += run.dropFirst(sent) }
  }

  /// Offers the held bytes to the socket. Returns whether none is held any more, which is also true when the socket
  /// broke.
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

  /// One call is enough: a short one has filled the socket.
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

  /// A descriptor's stream throws nothing but SystemError.
  private func call(_ name: String, _ body: () throws -> Transfer) throws(SystemError) -> Transfer {
    do { return try body() } catch { throw error as? SystemError ?? SystemError(name, EIO) }
  }
}

// MARK: - The BIO

extension BufferedBIO {
  /// Puts this BIO under `ssl`, which owns it from now on. False if there is no memory for it.
  func attach(to ssl: OpaquePointer) -> Bool {
    guard let method = Self.method(), let bio = BIO_new(method) else { return false }
    BIO_set_data(bio, Unmanaged.passRetained(self).toOpaque())
    BIO_set_init(bio, 1)
    SSL_set_bio(ssl, bio, bio)
    return true
  }

  /// The BufferedBIO under `ssl`.
  static func under(_ ssl: OpaquePointer) -> BufferedBIO { of(SSL_get_rbio(ssl)) }

  fileprivate static func of(_ bio: OpaquePointer?) -> BufferedBIO {
    Unmanaged<BufferedBIO>.fromOpaque(BIO_get_data(bio)).takeUnretainedValue()
  }

  /// Made by the first handshake that gets the memory for it.
  private struct Method: @unchecked Sendable {
    // Unchecked: it points to something that never changes once it is made.
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
      guard let count = BufferedBIO.of(bio).read(run) else {
        // An end is a retry to OpenSSL, too: otherwise it would answer with an alert. The stream handles the end.
        openssl_BIO_set_retry_read(bio)
        return 0
      }
      got?.pointee = count
      return 1
    }
    BIO_meth_set_write_ex(method) { bio, data, count, taken in
      openssl_BIO_clear_retry_flags(bio)
      BufferedBIO.of(bio).write(UnsafeRawBufferPointer(start: data, count: count))
      taken?.pointee = count
      return 1
    }
    BIO_meth_set_ctrl(method) { _, command, _, _ in command == BIO_CTRL_FLUSH ? 1 : 0 }
    BIO_meth_set_destroy(method) { bio in
      guard let data = BIO_get_data(bio) else { return 1 }
      BIO_set_data(bio, nil)
      Unmanaged<BufferedBIO>.fromOpaque(data).release()
      return 1
    }
    return Method(raw: method)
  }
}
