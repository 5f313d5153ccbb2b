// The limit of unfinished handshakes of all addresses. It bounds what unauthenticated clients can cost: a client that
// has only connected already uses a descriptor and memory.

import StreamBroker
import Synchronization

/// The resources that the process may use.
package struct ProcessLimits: Hashable, Sendable {
  var descriptors: Int
  /// Bytes.
  var memory: Int
  /// Bytes of address space; nil for no limit.
  var addressSpace: Int?

  init(descriptors: Int, memory: Int, addressSpace: Int? = nil) {
    self.descriptors = descriptors
    self.memory = memory
    self.addressSpace = addressSpace
  }

  /// Blocks: it reads files under /proc and /sys.
  package static func current() -> ProcessLimits {
    let free = ResourceLimit.current(.addressSpace).map { max(0, $0 - ResourceLimit.addressSpaceInUse) }
    return ProcessLimits(
      descriptors: ResourceLimit.current(.descriptors) ?? .max, memory: MemoryLimit.current(), addressSpace: free)
  }
}

struct HandshakeLimit: Sendable {
  /// Unfinished handshakes at a time, including clients that wait for their turn.
  let most: Int
  /// The most bytes that one handshake costs, including the kernel's.
  let bytesEach: Int
  /// The limits by descriptors and by memory, of which `auto` takes the smaller. Nil if the configuration gives a
  /// number.
  let parts: (byDescriptors: Int, byMemory: Int)?

  // Measured as growth of the process per client, with 4,000 clients of each kind: 63 KB for a TLS handshake of which
  // only the first bytes came (OpenSSL's read buffer, and one for a message of 16 KiB). 18 KB for an unfinished request
  // of 12 KB, whose buffer doubles. The kernel adds some 4 KB for the socket.
  private static let ofTLS = 72 << 10
  private static let ofHTTP = 40 << 10
  private static let ofHeader = 8 << 10  // a PROXY header alone
  // Some clients must be able to connect, however small the resources are.
  private static let fewest = 8

  init(_ config: Config, _ limits: ProcessLimits) {
    let listeners = config.routes.flatMap(\.listen) + config.admin.listen
    bytesEach =
      listeners.contains(where: \.usesTLS)
      ? Self.ofTLS : listeners.contains(where: \.usesHTTP) ? Self.ofHTTP : Self.ofHeader
    if let most = config.limits.handshakes {
      self.most = most
      parts = nil
      return
    }
    // Half of the descriptors that are left when all routes have their listeners, their device and one client.
    let needed = config.routes.reduce(DescriptorBudget.standing) { sum, route in
      sum + 1 + route.endpoint.descriptorsNeeded + (route.capture == nil ? 0 : CaptureFile.descriptorsNeeded)
    }
    let free = limits.descriptors - StartupLimits.serving(config).descriptors - needed
    // A quarter of the memory: the rest is for routes' clients and the gateway itself.
    let memory = min(limits.memory / 4, limits.addressSpace.map { $0 / 2 } ?? .max)
    let parts = (byDescriptors: max(free / 2, Self.fewest), byMemory: max(memory / bytesEach, Self.fewest))
    self.parts = parts
    most = min(parts.byDescriptors, parts.byMemory, Config.Limits.mostHandshakes)
  }

  var memory: Int { most * bytesEach }
}

/// Counts of unfinished and refused handshakes, for `status`. The handshake server updates them; any thread reads them.
final class HandshakeCounts: Sendable {
  private let unfinished = Atomic<Int>(0)
  private let most = Atomic<Int>(0)
  private let refused = Atomic<UInt64>(0)
  private let failures = Mutex<[Ending.Word: UInt64]>([:])

  func note(unfinished count: Int) { unfinished.store(count, ordering: .relaxed) }
  func note(most count: Int) { most.store(count, ordering: .relaxed) }
  /// A client ended before its handshake was finished.
  func noteFailure(_ word: Ending.Word) { failures.withLock { $0[word, default: 0] += 1 } }
  /// By ending, since the start.
  var failed: [Ending.Word: UInt64] { failures.withLock { $0 } }
  /// A handshake was refused or ended, because there were too many in all or too few descriptors.
  func noteRefusal() { refused.add(1, ordering: .relaxed) }

  var picture: Snapshot.Handshakes {
    Snapshot.Handshakes(
      unfinished: unfinished.load(ordering: .relaxed), most: most.load(ordering: .relaxed),
      refused: refused.load(ordering: .relaxed))
  }
}
