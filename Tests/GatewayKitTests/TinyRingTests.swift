// A MiB through rings of a few bytes, in random chunks: every kind of step happens at every position of every ring. In
// one thread, so that a seed reproduces a failure.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A hub with a tiny ring", .timeLimit(.minutes(5)))
struct TinyRingTests {
  @Test("loses, repeats and reorders no bytes in either direction", arguments: [1, 2, 3, 7], [1, 3])
  func bytes(buffer: Int, clients count: Int) async throws {
    try await onOwnThread { try Self.run(buffer, count) }  // it would keep a thread of the pool for seconds
  }

  private static func run(_ buffer: Int, _ count: Int) throws {
    var random = SeededRandom()
    let rig = try HubRig(buffer: buffer, slow: .block)
    // Each client receives it, so that all cases take the same time.
    let total = (isFullRun ? 1 << 20 : 1 << 18) / (count * count)
    let share = total / 4
    let clients = (0..<count).map { number in
      ChunkedStream(
        UInt8(number), says: share, hears: total, random: &random)
    }
    let sessions = clients.map { rig.join($0) }
    // The endpoint receives the clients' bytes mixed. Each byte names its client, so that each client's order can be
    // checked.
    let endpoint = ChunkedStream(
      nil, says: total, hears: share * count, random: &random)
    rig.hub.attach(endpoint)
    var streams = clients
    streams.append(endpoint)
    var rounds = 0
    while !streams.allSatisfy(\.isDone), rounds < 20_000_000 {
      rounds += 1
      for stream in streams {
        rig.wakeWriter(stream)
        rig.wakeReader(stream)
      }
    }
    for (client, session) in zip(clients, sessions) {
      #expect(client.isDone && client.isRight, "\(random)")
      #expect(session.up.bytes == UInt64(share) && session.down.bytes == UInt64(total) && session.dropped == 0)
    }
    #expect(endpoint.isDone && endpoint.isRight, "\(random)")
  }
}

/// Sends a pattern in random pieces and checks what it receives. Lean, for millions of steps.
private final class ChunkedStream: TransportStream {
  var delegate: (any ByteStreamDelegate)?
  var readerWaits: Readiness = []
  var writerWaits: Readiness = []
  private let number: UInt8?  // nil for the endpoint
  private let says: Int
  private let hears: Int
  private var said = 0
  private var received = 0
  private var heardFrom: (Int, Int, Int) = (0, 0, 0)  // by client
  private(set) var isRight = true
  private let dice: [UInt8]
  private var thrown = 0

  init(_ number: UInt8?, says: Int, hears: Int, random: inout SeededRandom) {
    self.number = number
    self.says = says
    self.hears = hears
    dice = random.bytes(4096)
  }

  var isDone: Bool { said == says && received == hears }

  private func throwDice() -> Int {
    thrown = (thrown &+ 1) & 4095
    return Int(dice[thrown])
  }

  // A client's byte: its number in two bits, its place in six. The endpoint's byte: its place only.
  private func byte(at place: Int) -> UInt8 {
    if let number { number << 6 | UInt8(truncatingIfNeeded: place & 63) } else { UInt8(truncatingIfNeeded: place) }
  }

  private func expected(_ byte: UInt8) -> UInt8 {
    guard number == nil else { return UInt8(truncatingIfNeeded: received) }
    let place: Int
    switch byte >> 6 {
    case 0: (place, heardFrom.0) = (heardFrom.0, heardFrom.0 &+ 1)
    case 1: (place, heardFrom.1) = (heardFrom.1, heardFrom.1 &+ 1)
    default: (place, heardFrom.2) = (heardFrom.2, heardFrom.2 &+ 1)
    }
    return byte & 0xC0 | UInt8(truncatingIfNeeded: place & 63)
  }

  func read(into run: UnsafeMutableRawBufferPointer) -> Transfer {
    let dice = throwDice()
    if said == says || dice < 16 { return .blocked(until: .readable) }
    let count = min(run.count, says &- said, 1 &+ dice & 7)
    for place in 0..<count { run[place] = byte(at: said &+ place) }
    said &+= count
    return .moved(count)
  }

  func write(_ run: UnsafeRawBufferPointer) -> Transfer {
    let dice = throwDice()
    if dice < 16 { return .blocked(until: .writable) }
    if dice < 24 { return .moved(0) }
    let count = min(run.count, 1 &+ dice & 7)
    for place in 0..<count {
      if run[place] != expected(run[place]) { isRight = false }
      received &+= 1
    }
    return .moved(count)
  }

  func close() { delegate = nil }
}
