// A stream of whole datagrams, as L2CAP is: a read with too little room loses the rest without a word. Tests of the rule
// that a read is made with room for `largestUnit` use it.

import ByteStreams

public final class DatagramStream: ByteStream {
  public var delegate: (any ByteStreamDelegate)?
  public var readerWaits: Readiness = []
  public var writerWaits: Readiness = []
  public let largestUnit: Int

  /// What will come, in order; after it the stream is blocked.
  public var datagrams: [[UInt8]]
  /// Bytes that were cut off because a read had too little room.
  public private(set) var lost = 0

  public init(_ datagrams: [[UInt8]], largestUnit: Int) {
    self.datagrams = datagrams
    self.largestUnit = largestUnit
  }

  public func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    guard !datagrams.isEmpty else { return .blocked(until: .readable) }
    let datagram = datagrams.removeFirst()
    let count = min(datagram.count, run.count)
    run.copyBytes(from: datagram[..<count])
    lost += datagram.count - count
    return .moved(count)
  }

  public func write(_ run: UnsafeRawBufferPointer) throws -> Transfer { .moved(min(run.count, largestUnit)) }

  public func close() { dismissDelegate() }
}
