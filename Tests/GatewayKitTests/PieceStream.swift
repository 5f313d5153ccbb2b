// A stream with a script, read in pieces, that records each write. For tests about the ends of packets.

import ByteStreams
import StreamTestKit

@testable import GatewayKit

final class PieceStream: TransportStream {
  var delegate: (any ByteStreamDelegate)?
  var readerWaits: Readiness = []
  var writerWaits: Readiness = []
  var serialLine: (any SerialLine)?
  let closeBehavior = CloseBehavior(canHalfClose: true)
  /// What it will send; with `ends` its end follows.
  var script: [UInt8]
  var ends = false
  /// The most bytes that a write takes and that a read returns; with `random` chosen anew each time.
  var mostTaken = Int.max
  var mostSaid = Int.max
  /// It takes nothing.
  var isStuck = false
  /// It takes this many more bytes, and then nothing.
  var limit: Int?
  /// The bytes taken, by write.
  private(set) var pieces: [[UInt8]] = []
  private(set) var said = 0
  private var random: SeededRandom?

  /// With `random` it blocks now and then, and takes and returns pieces of any length up to the maximum.
  init(_ script: [UInt8] = [], random: SeededRandom? = nil) {
    self.script = script
    self.random = random
  }

  var taken: [UInt8] { Array(pieces.joined()) }
  var hasSaidAll: Bool { said == script.count }

  /// The bytes taken since the last call, by write.
  func newPieces() -> [[UInt8]] {
    defer { pieces = [] }
    return pieces
  }

  private func portion(_ most: Int) -> Int {
    guard random != nil else { return most }
    return Int.random(in: 0..<8, using: &random!) == 0 ? 0 : Int.random(in: 1...min(most, 12), using: &random!)
  }

  func read(into run: UnsafeMutableRawBufferPointer) -> Transfer {
    if hasSaidAll && ends { return .ended }
    let count = min(run.count, script.count - said, portion(mostSaid))
    guard count > 0 else { return .blocked(until: .readable) }
    run.copyBytes(from: script[said..<said + count])
    said += count
    return .moved(count)
  }

  func write(_ run: UnsafeRawBufferPointer) -> Transfer {
    let count = isStuck ? 0 : min(run.count, portion(mostTaken), limit ?? .max)
    guard count > 0 else { return .blocked(until: .writable) }
    limit? -= count
    pieces.append(Array(run[..<count]))
    return .moved(count)
  }

  func close() { dismissDelegate() }
}

extension Config.Packets {
  /// After each `\n`.
  static let lines = Config.Packets(idle: nil, max: nil, delimiter: [10])
}
