import ByteStreams
import Glibc
import Testing

@testable import GatewayKit

@Suite("Output during the wait for signals", .timeLimit(.minutes(5)))
struct NonBlockingOutputTests {
  @Test("never waits for a reader, and resumes where it stopped")
  func stuck() throws {
    var ends: [Int32] = [-1, -1]
    guard Glibc.pipe(&ends) == 0 else { throw SystemError("pipe") }
    let reader = Descriptor(owning: ends[0])
    let writer = Descriptor(owning: ends[1])
    var output = NonBlockingOutput(writer.raw)
    let text = (0..<50_000).map { "\($0)\n" }.joined()
    output.add(text)
    var received: [UInt8] = []
    var flushes = 0
    while received.count < text.utf8.count {
      try output.flush()
      flushes += 1
      var bytes = [UInt8](repeating: 0, count: 65_536)
      let count = Glibc.read(reader.raw, &bytes, bytes.count)
      guard count > 0 else { throw SystemError("read") }
      received += bytes[..<count]
    }
    #expect(flushes > 2 && output.isIdle)
    #expect(received == Array(text.utf8))
  }
}
