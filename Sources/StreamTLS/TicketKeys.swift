// The keys of session tickets (RFC 5077, and RFC 8446 section 4.6.1): made here, used for an hour, accepted for two
// more. A new context takes over those of the context it replaces, so a reload costs no client its session.

import ByteStreams
import COpenSSL
import Synchronization

package final class TLSTicketKeys: Sendable {
  struct Key {
    let name: [UInt8]  // 16 bytes
    let cipher: [UInt8]  // of AES-128
    let mac: [UInt8]  // of HMAC-SHA-256
    let madeAt: UInt64
  }

  /// How long tickets are valid, in seconds.
  static let lifetime: UInt64 = 7200
  /// After this many seconds the next ticket gets a new key.
  static let rotation: UInt64 = 3600

  // The newest last; those that are too old are removed.
  private let keys = Mutex<[Key]>([])
  private let now: @Sendable () -> UInt64

  /// `now` returns nanoseconds.
  package init(now: @escaping @Sendable () -> UInt64 = monotonicNanoseconds) { self.now = now }

  /// The key for a new ticket. Nil if there are no random bytes.
  func current() -> Key? {
    let now = now()
    return keys.withLock { keys in
      if let key = keys.last, now &- key.madeAt < Self.rotation * 1_000_000_000 { return key }
      guard let key = Key(madeAt: now) else { return nil }
      keys.removeAll { Self.isTooOld($0, now) }
      keys.append(key)
      return key
    }
  }

  /// The key of that name, and whether a new ticket is due. Nil for a key that is too old, or was never ours.
  func key(named name: UnsafeRawBufferPointer) -> (key: Key, isOld: Bool)? {
    let now = now()
    return keys.withLock { keys in
      guard let key = keys.last(where: { $0.name.elementsEqual(name) }), !Self.isTooOld(key, now) else { return nil }
      return (key, now &- key.madeAt >= Self.rotation * 1_000_000_000)
    }
  }

  private static func isTooOld(_ key: Key, _ now: UInt64) -> Bool {
    now &- key.madeAt >= (rotation + lifetime) * 1_000_000_000
  }
}

extension TLSTicketKeys.Key {
  init?(madeAt: UInt64) {
    var bytes = [UInt8](repeating: 0, count: 64)
    guard RAND_bytes(&bytes, 64) == 1 else { return nil }
    self.init(
      name: Array(bytes[..<16]), cipher: Array(bytes[16..<32]), mac: Array(bytes[32..<64]), madeAt: madeAt)
  }
}

// MARK: - OpenSSL's side

extension TLSTicketKeys {
  private static let ivLength: Int32 = 16

  // Fetched once: a look-up by name costs more than the ticket. Nil if there was no memory for it: then there are no
  // tickets.
  private nonisolated(unsafe) static let cipher = EVP_CIPHER_fetch(nil, "AES-128-CBC", nil)

  /// Sets up cipher and MAC for a ticket, as SSL_CTX_set_tlsext_ticket_key_evp_cb(3) requires.
  static func install(on context: OpaquePointer) {
    SSL_CTX_set_tlsext_ticket_key_evp_cb(context) { ssl, name, iv, cipher, mac, isNew in
      guard let ssl, let name, let iv, let keys = BufferedBIO.under(ssl).server?.ticketKeys else { return -1 }
      guard TLSTicketKeys.cipher != nil else { return 0 }
      if isNew == 1 {
        guard let key = keys.current(), RAND_bytes(iv, TLSTicketKeys.ivLength) == 1 else { return 0 }
        UnsafeMutableRawPointer(name).copyMemory(from: key.name, byteCount: key.name.count)
        guard EVP_EncryptInit_ex2(cipher, TLSTicketKeys.cipher, key.cipher, iv, nil) == 1 else { return -1 }
        return TLSTicketKeys.begin(mac, key.mac) ? 1 : -1
      }
      guard let (key, isOld) = keys.key(named: UnsafeRawBufferPointer(start: name, count: 16)) else { return 0 }
      guard TLSTicketKeys.begin(mac, key.mac),
        EVP_DecryptInit_ex2(cipher, TLSTicketKeys.cipher, key.cipher, iv, nil) == 1
      else { return -1 }
      // 2 asks for a new ticket at the end. In TLS 1.3 each ticket is for one use (RFC 8446 appendix C.4).
      return isOld || SSL_version(ssl) == TLS1_3_VERSION ? 2 : 1
    }
  }

  private static func begin(_ context: OpaquePointer?, _ key: [UInt8]) -> Bool {
    openssl_MAC_init_sha256(context, key, key.count) == 1
  }
}
