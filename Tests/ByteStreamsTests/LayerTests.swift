// The smallest possible layer passes the suite for layers, and the suite fails without a layer.

import ByteStreams
import Glibc
import StreamTestKit
import Testing

/// Flips bit 5 of each byte.
private final class FlippingStream: LayeredStream {
  let below: any ByteStream
  var delegate: (any ByteStreamDelegate)? { didSet { if isClosed && delegate != nil { delegate = nil } } }
  private var isClosed = false

  init(over below: any ByteStream) {
    self.below = below
    below.delegate = self
  }

  static func flipped(_ bytes: some Sequence<UInt8>) -> [UInt8] { bytes.map { $0 ^ 0x20 } }

  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    let transfer = try below.read(into: run)
    if case .moved(let count) = transfer { run.copyBytes(from: Self.flipped(run[..<count])) }
    return transfer
  }

  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer { try below.write(Self.flipped(run)) }

  func close() {
    guard !isClosed else { return }
    isClosed = true
    below.close()
    dismissDelegate()
  }

  func abort() {
    guard !isClosed else { return }
    isClosed = true
    below.abort()
    dismissDelegate()
  }
}

/// The far end of a FlippingStream.
private struct FlippingEnd: FarParty {
  let below: FarEnd

  func send(_ bytes: [UInt8]) throws { try below.send(FlippingStream.flipped(bytes)) }
  func receive() throws -> [UInt8] { FlippingStream.flipped(try below.receive()) }
  func finishWriting() { below.finishWriting() }
  func close() { below.close() }
}

/// The far end of a `FramingStream`.
private final class FramingEnd: FarParty {
  private let below: FarEnd
  init(_ below: FarEnd) { self.below = below }

  func send(_ bytes: [UInt8]) throws {
    let parts = stride(from: 0, to: bytes.count, by: FramingStream.largestPayload)
      .map { bytes[$0..<min($0 + FramingStream.largestPayload, bytes.count)] }
    for part in parts { try below.send([UInt8(part.count >> 8), UInt8(part.count & 255)] + part) }
  }

  func receive() throws -> [UInt8] {
    let head = try below.receive(exactly: 2)
    return head.count == 2 ? try below.receive(exactly: Int(head[0]) << 8 | Int(head[1])) : []
  }

  func finishWriting() { below.finishWriting() }
  func close() { below.close() }
}

@Suite("A layer", .timeLimit(.minutes(5)))
struct LayerTests {
  @Test("with only four methods of its own forwards everything else", arguments: [true, false])
  func smallest(aborting: Bool) {
    let below = ScriptedStream(takesAll: true)
    LayerForwarding(FlippingStream(over: below), over: below).run(aborting: aborting)
  }

  @Test("that writes units forwards what it does not hold itself", arguments: [true, false])
  func framing(aborting: Bool) {
    let below = ScriptedStream(takesAll: true)
    LayerForwarding(FramingStream(over: below), over: below, answersItself: [.closeBehavior]).run(aborting: aborting)
  }

  @Test("carries bytes in its own way, however they are written")
  func carriage() async throws {
    try await onLane { lane in
      let (near, far) = try FarEnd.pair()
      try await LayerCarriage(FlippingStream(over: try near.stream(on: lane.poller)), to: FlippingEnd(below: far))
        .run(on: lane)
      let (framing, other) = try FarEnd.pair()
      try await LayerCarriage(FramingStream(over: try framing.stream(on: lane.poller)), to: FramingEnd(other))
        .run(on: lane)
    }
  }

  @Test("that only one end has is detected")
  func oneSided() async throws {
    await withKnownIssue {
      try await onLane { lane in
        let (near, far) = try FarEnd.pair()
        try await LayerCarriage(FlippingStream(over: try near.stream(on: lane.poller)), to: far).run(on: lane)
      }
    }
  }
}
