// Hashes of crypt(3): made, checked, and told from what is none. Hashing takes tens of milliseconds and more: never on a lane.

import ByteStreams
import CCrypt
import CLinux
import Glibc
import StreamBroker

public enum CryptHash {
  /// The methods that are good enough today, by prefix, with the length of the last field (crypt(5)).
  private static let methods: [(prefix: String, fields: Int, last: Int)] = [
    ("$y$", 3, 43), ("$gy$", 3, 43), ("$7$", 2, 43), ("$2b$", 2, 53), ("$2y$", 2, 53), ("$2a$", 2, 53), ("$6$", 2, 86),
    ("$5$", 2, 43),
  ]
  /// CRYPT_MAX_PASSPHRASE_SIZE: longer ones are refused by crypt(3).
  public static let longestPassword = Int(CRYPT_MAX_PASSPHRASE_SIZE) - 1

  /// Why `text` is no hash to check passwords against; nil when it is one. The text itself is not in it.
  static func fault(of text: String) -> String? {
    guard let method = methods.first(where: { text.hasPrefix($0.prefix) }) else {
      return text.hasPrefix("$")
        ? "a hash of an unknown or outdated method" : "expected a hash of crypt(3), not a password"
    }
    let fields = text.dropFirst(method.prefix.count).split(separator: "$", omittingEmptySubsequences: false)
    let hasAll =
      fields.count == method.fields
      // SHA-crypt may say its rounds first.
      || fields.count == method.fields + 1 && ["$5$", "$6$"].contains(method.prefix) && fields[0].hasPrefix("rounds=")
    let isWhole =
      hasAll && fields.last?.utf8.count == method.last
      && text.utf8.allSatisfy { (0x21...0x7E).contains($0) && !":;*!\\".utf8.contains($0) }
      // It calls SHA-256 outdated; that is for our table to say.
      && [CRYPT_SALT_OK, CRYPT_SALT_METHOD_LEGACY].contains(crypt_checksalt(text))
    return isWhole ? nil : "the hash is not whole"
  }

  /// Method and cost of a hash that is whole: "$y$j9T", "$6$rounds=5000". Checks against hashes of one kind take the same time.
  static func kind(of hash: String) -> String? {
    guard let method = methods.first(where: { hash.hasPrefix($0.prefix) }) else { return nil }
    let fields = hash.dropFirst(method.prefix.count).split(separator: "$", omittingEmptySubsequences: false)
    switch method.prefix {
    // How many rounds there are unless the hash says so: crypt(5).
    case "$5$", "$6$": return method.prefix + (fields[0].hasPrefix("rounds=") ? String(fields[0]) : "rounds=5000")
    // N, r and p stand before the salt in one field.
    case "$7$": return method.prefix + fields[0].prefix(11)
    default: return method.prefix + fields[0]
    }
  }

  /// How long a check against `hash` takes on this machine; of two, as something else may have had the processor. Blocks.
  static func duration(of hash: Secret) -> Duration {
    let times = (0..<2).map { _ in
      let began = monotonicNanoseconds()
      _ = verify(Secret("not the password"), against: hash)
      return monotonicNanoseconds() &- began
    }
    return .nanoseconds(Int64(times.min() ?? 0))
  }

  /// Whether `password` is the one behind `hash`. Blocks.
  static func verify(_ password: Secret, against hash: Secret) -> Bool {
    let text = password.reveal()
    // crypt(3) would stop at the NUL.
    guard !text.utf8.contains(0), text.utf8.count <= longestPassword else { return false }
    return withData { data in
      guard let made = crypt_rn(text, hash.reveal(), data, Int32(MemoryLayout<crypt_data>.size)) else { return false }
      return Secret(String(cString: made)).isSame(as: hash)
    }
  }

  /// A hash of `password` by the method of `prefix`, with a new salt; nil when libcrypt has no such method. Blocks. `cost` 0 is
  /// the method's own choice.
  public static func make(_ password: String, prefix: String = "$y$", cost: UInt = 0) -> String? {
    guard !password.utf8.contains(0), password.utf8.count <= longestPassword,
      let setting = crypt_gensalt_ra(prefix, cost, nil, 0)
    else { return nil }
    defer { free(setting) }
    return withData { data in
      crypt_rn(password, setting, data, Int32(MemoryLayout<crypt_data>.size)).map { String(cString: $0) }
    }
  }

  /// Lends 32 KiB of room, and wipes it: the password stood there.
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
