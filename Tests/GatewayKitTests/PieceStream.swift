// A stream that says its script in pieces and writes down every write it takes, for tests that care where pieces end.

import ByteStreams
import StreamTestKit

@testable import GatewayKit

final class PieceStream: ByteStream {
  var delegate: (any ByteStreamDelegate)?
  var readerWaits: Readiness = []
  var writerWaits: Readiness = []
  let canHalfClose = true
  /// What it will say; it ends behind that if `ends` is set.
  var script: [UInt8]
  var ends = false
  /// The most bytes a write takes, and the most a read gives; chosen anew each time with `random`.
  var mostTaken = Int.max
  var mostSaid = Int.max
  /// It takes nothing.
  var isStuck = false
  /// It takes so many bytes more, and then nothing.
  var limit: Int?
  /// What was taken, by write.
  private(set) var pieces: [[UInt8]] = []
  private(set) var said = 0
  private var random: SeededRandom?

  /// With `random` it blocks now and then, and takes and gives pieces of any length up to the most.
  init(_ script: [UInt8] = [], random: SeededRandom? = nil) {
    self.script = script
    self.random = random
  }

  var taken: [UInt8] { Array(pieces.joined()) }
  var hasSaidAll: Bool { said == script.count }

  /// What was taken since the last call, by write.
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
  /// Behind each `\n`.
  static let lines = Config.Packets(idle: nil, max: nil, delimiter: [10])
}
