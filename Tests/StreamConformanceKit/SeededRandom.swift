// Reproducible random numbers: the same in every run with the same BAUDWAY_SEED. A test that fails on them prints the
// seed.

import Glibc

/// SplitMix64 (Steele, Lea, Flood 2014).
public struct SeededRandom: RandomNumberGenerator, CustomStringConvertible {
  public let seed: UInt64
  private var state: UInt64

  /// BAUDWAY_SEED, or 1.
  public static let seedOfRun = getenv("BAUDWAY_SEED").flatMap { UInt64(String(cString: $0)) } ?? 1

  public init(seed: UInt64 = seedOfRun) {
    self.seed = seed
    state = seed
  }

  public mutating func next() -> UInt64 {
    state &+= 0x9E37_79B9_7F4A_7C15
    var mixed = state
    mixed = (mixed ^ (mixed >> 30)) &* 0xBF58_476D_1CE4_E5B9
    mixed = (mixed ^ (mixed >> 27)) &* 0x94D0_49BB_1331_11EB
    return mixed ^ (mixed >> 31)
  }

  public var description: String { "seed \(seed)" }

  public mutating func bytes(_ count: Int) -> [UInt8] {
    var bytes: [UInt8] = []
    bytes.reserveCapacity(count + 8)
    while bytes.count < count { withUnsafeBytes(of: next()) { bytes += $0 } }
    return Array(bytes.prefix(count))
  }
}
