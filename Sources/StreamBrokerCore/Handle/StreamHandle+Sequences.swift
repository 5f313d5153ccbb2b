// The input of a handle as asynchronous sequences: chunks, lines, packets. Each of them ends where the stream ends and
// throws the error that broke it.

import ByteStreams

extension StreamHandle {
  /// The input in chunks as they arrive, up to 64 KiB each.
  public var bytes: Chunks { Chunks(stream: self) }

  /// Chunks of input: `StreamHandle.bytes`.
  public struct Chunks: AsyncSequence, Sendable {
    fileprivate let stream: StreamHandle

    public func makeAsyncIterator() -> Iterator { Iterator(stream: stream) }

    /// Takes chunks.
    public struct Iterator: AsyncIteratorProtocol {
      fileprivate let stream: StreamHandle

      /// The next chunk; nil at the end.
      public mutating func next() async throws -> [UInt8]? {
        let chunk = try await stream.read()
        return chunk.isEmpty ? nil : chunk
      }
    }
  }

  /// The input in lines, without their ends ("\n" or "\r\n"). Bytes that are not UTF-8 become U+FFFD. A line that the
  /// end of the stream or the loss of the link cuts short is a line; one of more than 32 KiB comes in pieces.
  public var lines: Lines { Lines(stream: self) }

  /// Lines of input: `StreamHandle.lines`.
  public struct Lines: AsyncSequence, Sendable {
    fileprivate let stream: StreamHandle

    public func makeAsyncIterator() -> Iterator { Iterator(stream: stream) }

    /// Takes lines.
    public struct Iterator: AsyncIteratorProtocol {
      fileprivate let stream: StreamHandle

      /// The next line; nil at the end.
      public mutating func next() async throws -> String? { try await stream.line() }
    }
  }

  /// The next line, as `lines` gives it. Nil at the end of the stream. After a time-out, what has arrived of the line
  /// is still there.
  public func line(within timeout: Duration? = nil) async throws -> String? {
    var line = try await read(until: [UInt8(ascii: "\n")], within: timeout)[...]
    if line.isEmpty { return nil }
    if line.last == UInt8(ascii: "\n") {
      line.removeLast()
      if line.last == UInt8(ascii: "\r") { line.removeLast() }
    }
    return String(decoding: line, as: UTF8.self)
  }

  /// The input in packets, for devices that send frames: a packet ends with `delimiter`, at `max` bytes, or when
  /// nothing arrived for `idle`, whichever comes first. The delimiter is part of the packet. `idle` is measured when
  /// bytes arrive, so a program that reads late gets the same packets. The end of the stream and the loss of the link
  /// end a packet. `max` is 32 KiB at most, and without it that is the limit. Use one such sequence at a time.
  public func packets(idle: Duration? = nil, max: Int? = nil, delimiter: [UInt8] = []) -> Packets {
    let most = Swift.max(1, min(max ?? HandleInput.capacity / 2, HandleInput.capacity / 2))
    return Packets(stream: self, idle: idle, max: most, delimiter: delimiter)
  }

  /// Packets of input: `StreamHandle.packets(idle:max:delimiter:)`.
  public struct Packets: AsyncSequence, Sendable {
    fileprivate let stream: StreamHandle
    fileprivate let idle: Duration?
    fileprivate let max: Int
    fileprivate let delimiter: [UInt8]

    public func makeAsyncIterator() -> Iterator { Iterator(packets: self) }

    /// Takes packets.
    public struct Iterator: AsyncIteratorProtocol {
      fileprivate let packets: Packets
      private var hasBegun = false

      fileprivate init(packets: Packets) { self.packets = packets }

      /// The next packet; nil at the end.
      public mutating func next() async throws -> [UInt8]? {
        if !hasBegun {
          try await packets.stream.cut(by: packets)
          hasBegun = true
        }
        return try await packets.stream.nextPacket(within: nil)
      }
    }
  }

  private func cut(by packets: Packets) async throws {
    try await cut(by: PacketRule(max: packets.max, idle: packets.idle, delimiter: packets.delimiter))
  }
}
