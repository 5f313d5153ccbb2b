// What ends a stream over GATT at odd moments.

import ByteStreams
import StreamTestKit
import Testing

@testable import StreamBrokerBluetooth

@Suite("A stream over GATT that ends at an odd moment", .timeLimit(.minutes(2)))
struct GATTStreamEdgesTests {
  private func read(_ stream: GATTStream) throws -> Transfer {
    var bytes = [UInt8](repeating: 0, count: 4096)
    return try bytes.withUnsafeMutableBytes { try stream.read(into: $0) }
  }

  @Test("waits for nothing behind a message without bytes, and tells of the end who reads then")
  func empty() async throws {
    try await onLane { lane in
      var plan = GATTStreamTests.plan
      plan.asksForAnswers = true
      let (stream, device) = try GATTStreamTests.pair(plan, on: lane.poller)
      defer { stream.close() }
      let hasBytes = Gate()
      stream.delegate = EventRecorder { if $0 == .hasBytesAvailable { hasBytes.open() } }
      #expect(try [1].withUnsafeBytes { try stream.write(UnsafeRawBufferPointer(rebasing: $0.prefix(1))) } == .moved(1))
      stream.writerWaits = .writable
      try device.say([])
      try device.say([0x1B, 12, 0, 65])
      stream.ready(.readable)
      #expect(stream.socket.readEnded && !stream.waits.contains(.readable))
      stream.readerWaits = .readable
      await hasBytes.wait(on: lane)
      #expect(try read(stream) == .ended)
    }
  }

  @Test("can be closed by who is told what the device is, whatever lies behind that")
  func closed() async throws {
    try await onLane { lane in
      let (stream, device) = try GATTStreamTests.pair(on: lane.poller)
      stream.metadata?.changed = { [weak stream] in stream?.close() }
      stream.askIdentity()
      for number in 0..<5 {
        stream.askOn()
        #expect(device.hear()?.first == 0x08)
        try device.say(number == 0 ? [0x09, 4, 3, 0, 0x48, 0x4D] : [0x01, 0x08, 1, 0, 0x0A])
        if number == 4 {
          try device.say([0x1D, 12, 0, 65])
          try device.say([0x02, 23, 0])
        }
        #expect(try read(stream) == (number == 4 ? .ended : .blocked(until: .readable)))
      }
      #expect(!stream.socket.isOpen && stream.metadata?.facts.name == "HM")
      #expect(device.hear() == nil)
    }
  }
}
