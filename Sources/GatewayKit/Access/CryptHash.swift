// Hashes of crypt(3): makes, validates and verifies them. Hashing takes tens of milliseconds or more: never call it on
// a lane.

import ByteStreams
import CCrypt
import CLinux
import Glibc
import StreamBroker

package enum CryptHash {
  /// Methods that are secure enough today: prefix, number of fields, length of the last field (crypt(5)).
  private static let methods: [(prefix: String, fields: Int, last: Int)] = [
    ("$y$", 3, 43), ("$gy$", 3, 43), ("$7$", 2, 43), ("$2b$", 2, 53), ("$2y$", 2, 53), ("$2a$", 2, 53), ("$6$", 2, 86),
    ("$5$", 2, 43),
  ]
  /// Bytes. crypt(3) refuses longer ones (CRYPT_MAX_PASSPHRASE_SIZE).
  package static let longestPassword = Int(CRYPT_MAX_PASSPHRASE_SIZE) - 1

  /// Why `text` can't be used as a password hash; nil if it can. The message does not contain the text.
  static func fault(of text: String) -> String? {
    guard let method = methods.first(where: { text.hasPrefix($0.prefix) }) else {
      return text.hasPrefix("$")
        ? "a hash of an unknown or outdated method" : "expected a crypt(3) hash, not a password"
    }
    let fields = text.dropFirst(method.prefix.count).split(separator: "$", omittingEmptySubsequences: false)
    let hasAll =
      fields.count == method.fields
      // In SHA-crypt the number of rounds may come first.
      || fields.count == method.fields + 1 && ["$5$", "$6$"].contains(method.prefix) && fields[0].hasPrefix("rounds=")
    let isWhole =
      hasAll && fields.last?.utf8.count == method.last
      && text.utf8.allSatisfy { (0x21...0x7E).contains($0) && !":;*!\\".utf8.contains($0) }
      // crypt_checksalt(3) reports SHA-256 as outdated; our table decides that.
      && [CRYPT_SALT_OK, CRYPT_SALT_METHOD_LEGACY].contains(crypt_checksalt(text))
    return isWhole ? nil : "the hash is incomplete"
  }

  /// Method and cost of a valid hash: "$y$j9T", "$6$rounds=5000". Checks against hashes of one kind take the same time.
  static func kind(of hash: String) -> String? {
    guard let method = methods.first(where: { hash.hasPrefix($0.prefix) }) else { return nil }
    let fields = hash.dropFirst(method.prefix.count).split(separator: "$", omittingEmptySubsequences: false)
    switch method.prefix {
    // 5000 is the default number of rounds: crypt(5).
    case "$5$", "$6$": return method.prefix + (fields[0].hasPrefix("rounds=") ? String(fields[0]) : "rounds=5000")
    // One field holds N, r and p before the salt.
    case "$7$": return method.prefix + fields[0].prefix(11)
    default: return method.prefix + fields[0]
    }
  }

  /// How long a check against `hash` takes on this machine: the shorter of two, because other work may slow one down.
  /// Blocks.
  static func duration(of hash: Secret) -> Duration {
    let times = (0..<2).map { _ in
      let began = monotonicNanoseconds()
      _ = verify(Secret("not the password"), against: hash)
      return monotonicNanoseconds() &- began
    }
    return .nanoseconds(Int64(times.min() ?? 0))
  }

  /// Whether `password` matches `hash`. Blocks.
  static func verify(_ password: Secret, against hash: Secret) -> Bool {
    let text = password.reveal()
    // crypt(3) would read only up to the NUL.
    guard !text.utf8.contains(0), text.utf8.count <= longestPassword else { return false }
    return withData { data in
      guard let made = crypt_rn(text, hash.reveal(), data, Int32(MemoryLayout<crypt_data>.size)) else { return false }
      return Secret(String(cString: made)).isSame(as: hash)
    }
  }

  /// A hash of `password` by the method of `prefix`, with a new salt; nil if libcrypt lacks the method, or for a
  /// password that is too long or has a NUL. `cost` 0 is the method's default. Blocks.
  package static func make(_ password: String, prefix: String = "$y$", cost: UInt = 0) -> String? {
    guard !password.utf8.contains(0), password.utf8.count <= longestPassword,
      let setting = crypt_gensalt_ra(prefix, cost, nil, 0)
    else { return nil }
    defer { free(setting) }
    return withData { data in
      crypt_rn(password, setting, data, Int32(MemoryLayout<crypt_data>.size)).map { String(cString: $0) }
    }
  }

  /// Lends 32 KiB of memory and wipes it afterwards, because it held the password.
  private static func withData<Result>(_ body: (UnsafeMutableRawPointer) -> Result) -> Result {
    let size = MemoryLayout<crypt_data>.size
    let room = UnsafeMutableRawPointer.allocate(byteCount: size, alignment: MemoryLayout<crypt_data>.alignment)
    memset(room, 0, size)
    defer {
      explicit_bzero(room, size)
      room.deallocate()
    }
    return body(room)
  }
}
