// OpenSSL's allocator, which a test can make fail. OpenSSL can be given an allocator only before its first allocation,
// so use this in exit tests, whose process has not used OpenSSL yet.

import COpenSSL
import Glibc
import Synchronization

public enum OpenSSLMemory {
  private static let left = Atomic<Int>(.max)
  private static let failures = Atomic<Int>(0)
  private static let asked = Atomic<Int>(0)

  /// Allocations requested in `run(short:)`.
  public static var count: Int { asked.load(ordering: .relaxed) }

  /// Enables `run(short:)`. False if OpenSSL is in use already.
  public static func takeOver() -> Bool {
    CRYPTO_set_mem_functions(
      { size, _, _ in OpenSSLMemory.grants() ? malloc(size) : nil },
      { old, size, _, _ in OpenSSLMemory.grants() ? realloc(old, size) : nil }, { old, _, _ in free(old) }) == 1
  }

  private static func grants() -> Bool {
    guard left.load(ordering: .relaxed) != .max else { return true }
    asked.add(1, ordering: .relaxed)
    if left.subtract(1, ordering: .relaxed).oldValue > 0 { return true }
    failures.add(1, ordering: .relaxed)
    return false
  }

  /// Runs `body` with memory for `count` allocations of all threads together; later ones fail. Returns whether one
  /// failed.
  public static func run(short count: Int, _ body: () throws -> Void) rethrows -> Bool {
    failures.store(0, ordering: .relaxed)
    left.store(count, ordering: .relaxed)
    defer { left.store(.max, ordering: .relaxed) }
    try body()
    return failures.load(ordering: .relaxed) > 0
  }
}
