// A PROXY header, from a proxy or any other client, and the bytes after it.

import ByteStreams

@testable import GatewayKit

enum ProxyProperty {
  private struct Outcome: Equatable {
    var result: Result<ProxyHeader?, ProxyFault>
    /// Number of header bytes consumed; meaningless after a fault.
    var taken: Int
  }

  static func check(_ input: [UInt8]) throws(Broken) {
    let whole = try read(input, inPiecesOf: max(1, input.count))
    for size in [1, 2, 3, 7, 16] {
      try hold(try read(input, inPiecesOf: size) == whole, "in pieces of \(size) it is another header than whole")
    }
    switch whole.result {
    case .failure(let fault): try holdsOneLine(fault.description, "a fault")
    case .success(nil): try hold(whole.taken == input.count, "bytes are left, though there is no header yet")
    case .success(.some):
      let header = Array(input[..<whole.taken])
      for more in [[], [0x0A], Array("PROXY TCP4 ".utf8)] as [[UInt8]] {
        try hold(try read(header + more, inPiecesOf: 5) == whole, "what follows changes the header")
      }
      try hold(try read(Array(header.dropLast()), inPiecesOf: 5).result == .success(nil), "it was whole before its end")
      try holdsSaidAgain(whole)
    }
  }

  /// The same address in either version gives the same header.
  private static func holdsSaidAgain(_ outcome: Outcome) throws(Broken) {
    guard case .success(let header?) = outcome.result, let source = header.source else { return }
    let family = source.family == .ipv4 ? "TCP4" : "TCP6"
    let other = source.family == .ipv4 ? "0.0.0.0" : "::"
    let line = "PROXY \(family) \(source.host) \(other) \(source.port) 1\r\n"
    try hold(try read(Array(line.utf8), inPiecesOf: 9).result == .success(header), "\(line) is another header")
  }

  private static func read(_ input: [UInt8], inPiecesOf size: Int) throws(Broken) -> Outcome {
    var reader = ProxyReader()
    var taken = 0
    var place = 0
    while reader.header == nil && place < input.count {
      let piece = Array(input[place..<min(place + size, input.count)])
      place += piece.count
      do throws(ProxyFault) {
        taken += try take(piece, with: &reader)
      } catch {
        return Outcome(result: .failure(error), taken: 0)
      }
    }
    try hold(reader.keptCount <= ProxyReader.longestLine, "\(reader.keptCount) bytes are kept")
    return Outcome(result: .success(reader.header), taken: taken)
  }

  private static func take(_ piece: [UInt8], with reader: inout ProxyReader) throws(ProxyFault) -> Int {
    var answer: Result<Int, ProxyFault> = .success(0)
    piece.withUnsafeBytes { run in
      do throws(ProxyFault) { answer = .success(try reader.take(run)) } catch { answer = .failure(error) }
    }
    return try answer.get()
  }
}
