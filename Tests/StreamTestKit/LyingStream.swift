// A faulty stream, as if our code had a mistake: it reports impossible counts.

import ByteStreams

public final class LyingStream: TransportStream {
  public enum Lie: CaseIterable, Sendable {
    case oneMore, most, negative, least

    /// The count it reports for a call with `offered` bytes.
    func count(of offered: Int) -> Int {
      switch self {
      case .oneMore: offered + 1
      case .most: .max
      case .negative: -1
      case .least: .min
      }
    }
  }

  public enum Direction: Sendable { case reading, writing, both }

  public var delegate: (any ByteStreamDelegate)?
  public var readerWaits: Readiness = []
  public var writerWaits: Readiness = []
  public let closeBehavior: CloseBehavior
  public private(set) var isClosed = false
  private let lie: Lie
  private let direction: Direction
  private var honestReads: [[UInt8]]
  private var honestWrites: [Transfer]

  /// `reads` and `writes` are used up first. After them, in a direction without lies, nothing arrives and everything is
  /// taken.
  public init(
    _ lie: Lie = .oneMore, in direction: Direction = .both, reads: [[UInt8]] = [], writes: [Transfer] = [],
    closesByHalf: Bool = false
  ) {
    closeBehavior = CloseBehavior(canHalfClose: closesByHalf)
    self.lie = lie
    self.direction = direction
    honestReads = reads
    honestWrites = writes
  }

  public func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    if !honestReads.isEmpty {
      let bytes = honestReads.removeFirst()
      run.copyBytes(from: bytes)
      return .moved(bytes.count)
    }
    return direction == .writing ? .blocked(until: .readable) : .moved(lie.count(of: run.count))
  }

  public func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    if !honestWrites.isEmpty { return honestWrites.removeFirst() }
    return .moved(direction == .reading ? run.count : lie.count(of: run.count))
  }

  public func close() { isClosed = true }
}
