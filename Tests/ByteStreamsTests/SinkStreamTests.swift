// What stands before a pump's sink and is only written to.

import ByteStreams
import StreamTestKit
import Testing

@Suite("A stream that is only written to")
struct SinkStreamTests {
  private final class Sink: SinkStream {
    var below: (any ByteStream)?
    init(_ below: (any ByteStream)?) { self.below = below }
    func write(_ run: UnsafeRawBufferPointer) throws -> Transfer { try below?.write(run) ?? .blocked(until: []) }
  }

  private final class Delegate: ByteStreamDelegate {
    func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {}
  }

  @Test("passes on what its writer waits for, and nothing else")
  func waits() throws {
    let below = ScriptedStream(takesAll: true)
    below.readerWaits = .readable
    let sink = Sink(below)
    sink.writerWaits = .writable
    #expect(below.writerWaits == .writable && sink.writerWaits == .writable)
    sink.readerWaits = []
    sink.delegate = Delegate()
    #expect(below.readerWaits == .readable && sink.readerWaits == [] && sink.delegate == nil && below.delegate == nil)
    let transfer = try withUnsafeTemporaryAllocation(byteCount: 8, alignment: 1) { try sink.read(into: $0) }
    #expect(transfer == .blocked(until: []))
    sink.close()
    sink.abort()
    #expect(!below.isClosed && below.readCalls == 0)
  }

  @Test("waits for nothing while there is no stream below")
  func nothingBelow() {
    let sink = Sink(nil)
    sink.writerWaits = .writable
    #expect(sink.writerWaits == [])
  }
}
