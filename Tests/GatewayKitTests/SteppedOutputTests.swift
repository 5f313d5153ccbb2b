import ByteStreams
import Glibc
import Testing

@testable import GatewayKit

@Suite("Output beside the wait for signals", .timeLimit(.minutes(2)))
struct SteppedOutputTests {
  @Test("never waits for a reader, and goes on where it was")
  func stuck() throws {
    var ends: [Int32] = [-1, -1]
    guard Glibc.pipe(&ends) == 0 else { throw SystemError("pipe") }
    let reader = Descriptor(owning: ends[0])
    let writer = Descriptor(owning: ends[1])
    var output = SteppedOutput(writer.raw)
    let text = (0..<50_000).map { "\($0)\n" }.joined()
    output.add(text)
    var heard: [UInt8] = []
    var flushes = 0
    while heard.count < text.utf8.count {
      try output.flush()
      flushes += 1
      var bytes = [UInt8](repeating: 0, count: 65_536)
      let count = Glibc.read(reader.raw, &bytes, bytes.count)
      guard count > 0 else { throw SystemError("read") }
      heard += bytes[..<count]
    }
    #expect(flushes > 2 && output.isIdle)
    #expect(heard == Array(text.utf8))
  }
}
