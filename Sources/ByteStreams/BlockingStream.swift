// A stream over descriptors that are read and written with blocking calls: standard input and output. These may be
// files, which epoll does not accept, or a terminal shared with other programs, which O_NONBLOCK would disturb. Each
// direction has its own queue beside the lane. The stream reads ahead at most one chunk and holds at most one unit.

import Dispatch
import Glibc

/// A stream over descriptors that are read and written by blocking calls on queues of its own: standard input and
/// output, files. Lives on the lane of its poller, which is never blocked. Reads ahead 64 KiB at most.
public final class BlockingStream: TransportStream, PollHandler {
  public var delegate: (any ByteStreamDelegate)? {
    didSet { if isClosed && delegate != nil { delegate = nil } }
  }
  public var readerWaits: Readiness = [] {
    didSet { if !readerWaits.isEmpty && oldValue.isEmpty { fetchOrNotify() } }
  }
  public var writerWaits: Readiness = []

  private let input: Int32?
  private let output: Int32?
  private let endMark: UInt8?
  private let poller: Poller
  private let readQueue = DispatchQueue(label: "blocking read")
  private let writeQueue = DispatchQueue(label: "blocking write")
  private var isClosed = false

  private enum Answer: Sendable {
    case bytes([UInt8])
    case failed(SystemError)
  }
  // Bytes that were read and not returned yet.
  private var chunk: ArraySlice<UInt8> = []
  private var isReading = false
  private var end: Answer?
  private var isWriting = false
  private var writeError: SystemError?
  /// Limit of the chunk that is read ahead, and of the held unit, in bytes.
  public static let mostHeld = 64 << 10

  /// Does not own the descriptors. They must stay open until `close()`, and until a read or write in progress returns.
  /// Input ends before the first byte `endMark`, as if it were the end of a file.
  public init(reading input: Int32?, writing output: Int32?, endingAt endMark: UInt8? = nil, on poller: Poller) {
    self.input = input
    self.output = output
    self.endMark = endMark
    self.poller = poller
  }

  // MARK: - Reading

  public func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    guard !isClosed, input != nil else { return .ended }
    guard !chunk.isEmpty else {
      switch end {
      case .failed(let error): throw error
      case .bytes: return .ended
      case nil:
        fetch()
        return .blocked(until: .readable)
      }
    }
    let count = min(run.count, chunk.count)
    chunk.withUnsafeBytes { run.copyMemory(from: UnsafeRawBufferPointer(rebasing: $0[..<count])) }
    chunk = chunk.dropFirst(count)
    if chunk.isEmpty { fetch() }
    return .moved(count)
  }

  public var hasBufferedInput: Bool { !chunk.isEmpty || end != nil }

  private func fetch() {
    guard let input, !isReading, end == nil, !isClosed else { return }
    isReading = true
    poller.offload(to: readQueue) {
      Self.blockingRead(input)
    } then: { [self] answer in
      isReading = false
      guard !isClosed else { return }
      take(answer)
      if !readerWaits.isEmpty { delegate?.stream(self, handle: .hasBytesAvailable) }
    }
  }

  private func take(_ answer: Answer) {
    guard case .bytes(let bytes) = answer, !bytes.isEmpty else {
      end = answer
      return
    }
    chunk = bytes[...]
    guard let endMark, let index = bytes.firstIndex(of: endMark) else { return }
    chunk = bytes[..<index]
    end = .bytes([])
  }

  private func fetchOrNotify() {
    if hasBufferedInput { poller.nextRound(self) } else { fetch() }
  }

  /// Called by the poller.
  public func ready(_ events: PollEvents) {
    if !readerWaits.isEmpty && hasBufferedInput { delegate?.stream(self, handle: .hasBytesAvailable) }
  }

  private static func blockingRead(_ raw: Int32) -> Answer {
    var count = 0
    var failure: SystemError?
    let bytes = [UInt8](unsafeUninitializedCapacity: mostHeld) { buffer, filled in
      while true {
        count = Glibc.read(raw, buffer.baseAddress!, mostHeld)
        if count >= 0 { break }
        switch errno {
        case EINTR: continue
        // Another program that shares the terminal has made it non-blocking.
        case EAGAIN:
          var one = pollfd(fd: raw, events: Int16(POLLIN), revents: 0)
          poll(&one, 1, 1000)
        case EIO:  // a terminal that hung up
          count = 0
        default: failure = SystemError("read")
        }
        if count == 0 || failure != nil { break }
      }
      filled = max(0, count)
    }
    return failure.map { .failed($0) } ?? .bytes(bytes)
  }

  // MARK: - Writing

  public func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    guard !isClosed, let output else { return .ended }
    if let writeError { throw writeError }
    guard !isWriting else { return .blocked(until: .writable) }
    let unit = Array(run.prefix(Self.mostHeld))
    isWriting = true
    poller.offload(to: writeQueue) {
      Self.blockingWrite(unit, output)
    } then: { [self] failure in
      isWriting = false
      guard !isClosed else { return }
      writeError = failure
      if let failure {
        delegate?.stream(self, handle: .errorOccurred(failure))
      } else {
        // Sent even if `writerWaits` is empty: other code may wait until nothing is held.
        delegate?.stream(self, handle: .hasSpaceAvailable)
      }
    }
    return .moved(unit.count)
  }

  public var hasPendingOutput: Bool { isWriting }

  private static func blockingWrite(_ bytes: [UInt8], _ raw: Int32) -> SystemError? {
    do throws(SystemError) {
      try writeAll(bytes, to: raw)
      return nil
    } catch {
      return error
    }
  }

  // MARK: - The end

  public func close() {
    guard !isClosed else { return }
    isClosed = true
    chunk = []
    dismissDelegate()
  }
}
