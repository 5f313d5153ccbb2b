// How many handshakes may be unfinished at a time, in all: what strangers who never say a whole sentence can cost. A client that has
// only connected owns a descriptor and memory, before anybody knows whether it may be here.

import StreamBroker
import Synchronization

/// What the process may have.
public struct ProcessLimits: Hashable, Sendable {
  var descriptors: Int
  /// Bytes.
  var memory: Int
  /// Bytes of address space; nil for any number.
  var addressSpace: Int?

  init(descriptors: Int, memory: Int, addressSpace: Int? = nil) {
    self.descriptors = descriptors
    self.memory = memory
    self.addressSpace = addressSpace
  }

  /// Blocks, over files of the kernel's.
  public static func current() -> ProcessLimits {
    let free = ResourceLimit.current(.addressSpace).map { max(0, $0 - ResourceLimit.addressSpaceInUse) }
    return ProcessLimits(
      descriptors: ResourceLimit.current(.descriptors) ?? .max, memory: MemoryLimit.current(), addressSpace: free)
  }
}

struct HandshakeBound: Sendable {
  /// Unfinished at a time, clients that wait for their turn among them.
  let most: Int
  /// The most bytes that one costs, the kernel's among them.
  let bytesEach: Int
  /// What `auto` comes to by each limit; nil where a number is given.
  let parts: (byDescriptors: Int, byMemory: Int)?

  // Measured with 4,000 of each, as growth of the process for one: a handshake of TLS in which nothing but the first bytes came 63 KB
  // (OpenSSL's buffers for reading, and for a message of 16 KiB); a request of 12 KB without its end 18 KB, and its buffer
  // doubles. The kernel has some 4 KB for the socket.
  private static let ofTLS = 72 << 10
  private static let ofHTTP = 40 << 10
  private static let ofHeader = 8 << 10  // a PROXY header alone
  // However small the limits are, some clients have to get in.
  private static let fewest = 8

  init(_ config: Config, _ limits: ProcessLimits) {
    let listeners = config.routes.flatMap(\.listen)
    bytesEach =
      listeners.contains(where: \.usesTLS)
      ? Self.ofTLS : listeners.contains(where: \.usesWebSocket) ? Self.ofHTTP : Self.ofHeader
    if let most = config.limits.handshakes {
      self.most = most
      parts = nil
      return
    }
    // Half of what is left when all routes have their listeners, their device and a client.
    let needed = config.routes.reduce(DescriptorBudget.standing) { $0 + 1 + $1.endpoint.descriptorsNeeded }
    let free = limits.descriptors - StartNeeds.serving(config).descriptors - needed
    // A quarter of the memory: the rest is for what clients of routes may cost, and the gateway itself.
    let memory = min(limits.memory / 4, limits.addressSpace.map { $0 / 2 } ?? .max)
    let parts = (byDescriptors: max(free / 2, Self.fewest), byMemory: max(memory / bytesEach, Self.fewest))
    self.parts = parts
    most = min(parts.byDescriptors, parts.byMemory, Config.Limits.mostHandshakes)
  }

  var memory: Int { most * bytesEach }
}

/// How many there are, for `status`. Told by the reception, asked from anywhere.
final class HandshakeCounts: Sendable {
  private let unfinished = Atomic<Int>(0)
  private let most = Atomic<Int>(0)
  private let refused = Atomic<UInt64>(0)

  func note(unfinished count: Int) { unfinished.store(count, ordering: .relaxed) }
  func note(most count: Int) { most.store(count, ordering: .relaxed) }
  /// One was refused, or ended, because there were too many in all.
  func noteRefusal() { refused.add(1, ordering: .relaxed) }

  var picture: Snapshot.Handshakes {
    Snapshot.Handshakes(
      unfinished: unfinished.load(ordering: .relaxed), most: most.load(ordering: .relaxed),
      refused: refused.load(ordering: .relaxed))
  }
}
