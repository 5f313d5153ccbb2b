// A stream of whole datagrams, like L2CAP: a read with too little space silently loses the rest. Used by tests of the
// rule that a read needs space for `largestUnit`.

import ByteStreams

public final class DatagramStream: TransportStream {
  public var delegate: (any ByteStreamDelegate)?
  public var readerWaits: Readiness = []
  public var writerWaits: Readiness = []
  public let largestUnit: Int

  /// Datagrams to read, in order; after the last the stream is blocked.
  public var datagrams: [[UInt8]]
  /// Count of bytes lost because a read had too little space.
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
