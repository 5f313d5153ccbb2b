import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("The buffer of a recording")
struct CaptureBufferTests {
  private static func all(_ buffer: CaptureBuffer) -> [(CaptureRecord.Kind, [UInt8])] {
    var events: [(CaptureRecord.Kind, [UInt8])] = []
    while buffer.take({ events.append(($0.kind, Array($0.bytes))) }) {}
    return events
  }

  private static func append(_ bytes: [UInt8], to buffer: CaptureBuffer) {
    bytes.withUnsafeBytes { buffer.append(.fromDevice, [], at: 1, $0) }
  }

  @Test("keeps each byte once and in order, over many rounds")
  func rounds() throws {
    let buffer = try CaptureBuffer(capacity: 4096)
    var (sent, got): ([UInt8], [UInt8]) = ([], [])
    for round in 0..<400 {
      let piece = pattern(sent.count..<(sent.count + round * 7 % 900))
      Self.append(piece, to: buffer)
      sent += piece
      if round % 3 == 2 { got += Self.all(buffer).flatMap(\.1) }
    }
    got += Self.all(buffer).flatMap(\.1)
    #expect(got == sent)
    #expect(buffer.counts.bytesDropped == 0)
  }

  @Test("drops what has no room, counts it, and reports it where it is missing")
  func drops() throws {
    let buffer = try CaptureBuffer(capacity: 4096)
    Self.append([UInt8](repeating: 1, count: 4000), to: buffer)
    Self.append([UInt8](repeating: 2, count: 100), to: buffer)
    Self.append([UInt8](repeating: 3, count: 50), to: buffer)
    Array("link lost, and long words about it, so that there is no room".utf8).withUnsafeBytes {
      buffer.append(.change, [], at: 1, $0)
    }
    #expect(buffer.counts.bytesDropped == 150)
    #expect(Self.all(buffer).map(\.0) == [.fromDevice])
    Self.append([4], to: buffer)
    var lost: [CaptureLoss] = []
    var last: [UInt8] = []
    while buffer.take({ event in
      if event.kind == .lost { lost.append(Self.loss(event)) } else { last = Array(event.bytes) }
    }) {}
    #expect(lost == [CaptureLoss(bytes: 150, events: 1)] && last == [4])
    #expect(buffer.unreported.isNothing)
  }

  @Test("hands over what it could not report, once")
  func unreported() throws {
    let buffer = try CaptureBuffer(capacity: 4096)
    Self.append([UInt8](repeating: 1, count: 5000), to: buffer)
    #expect(buffer.takeUnreported() == CaptureLoss(bytes: 5000) && buffer.takeUnreported().isNothing)
    #expect(Self.all(buffer).isEmpty)
  }

  private static func loss(_ event: CaptureRecord) -> CaptureLoss {
    event.bytes.loadUnaligned(as: CaptureLoss.self)
  }

  @Test("cuts long runs, so that one as long as the largest buffer of a client fits")
  func long() throws {
    let buffer = try CaptureBuffer()
    let run = pattern(0..<300_000)
    Self.append(run, to: buffer)
    let events = Self.all(buffer)
    #expect(events.count == 10 && events.flatMap(\.1) == run)
  }

  @Test("may be drained on another thread")
  func threads() async throws {
    let buffer = try CaptureBuffer(capacity: 8192)
    let total = 2_000_000
    async let reader: (count: Int, lost: UInt64, isInOrder: Bool) = onOwnThread {
      var (count, lost, isInOrder) = (0, UInt64(0), true)
      let limit = monotonicNanoseconds() + Patience.nanoseconds
      while count + Int(lost) < total, monotonicNanoseconds() < limit {
        _ = buffer.take { event in
          if event.kind == .lost {
            lost += Self.loss(event).bytes
          } else {
            let start = count + Int(lost)
            if Array(event.bytes) != pattern(start..<(start + event.bytes.count)) { isInOrder = false }
            count += event.bytes.count
          }
        }
      }
      return (count, lost, isInOrder)
    }
    try await onOwnThread {
      var sent = 0
      while sent < total {
        let piece = pattern(sent..<min(total, sent + 997))
        Self.append(piece, to: buffer)
        sent += piece.count
      }
      // The last drops are reported with the next event that has room.
      let limit = monotonicNanoseconds() + Patience.nanoseconds
      while !buffer.unreported.isNothing, monotonicNanoseconds() < limit {
        [UInt8]().withUnsafeBytes { buffer.append(.change, [], at: 1, $0) }
      }
    }
    let result = try await reader
    #expect(result.isInOrder && result.count + Int(result.lost) == total)
    #expect(result.lost == buffer.counts.bytesDropped)
  }
}
