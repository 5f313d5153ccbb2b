// The built-in devices.

import ByteStreams
import StreamTestKit
import Testing

import StreamBroker
@testable import StreamBrokerCore

@Suite("A simulated device", .timeLimit(.minutes(5)))
struct SimTests {
  private static let broker = Broker(Schemes.standard)

  @Test("echo keeps at most its ring, then blocks the writer until that is read")
  func echoBound() async throws {
    try await onLane { lane in
      let stream = try await Self.broker.open("sim://echo", on: lane)
      defer { stream.close() }
      let bytes = ScriptedStream.pattern(0..<100_000)
      #expect(try stream.write(bytes) == .moved(65_536))
      #expect(try stream.write(bytes) == .blocked(until: .writable))
      let recorder = EventRecorder()
      stream.delegate = recorder
      stream.writerWaits = .writable
      #expect(try stream.readSome() == ScriptedStream.pattern(0..<4096))
      #expect(recorder.events.isEmpty)  // never from inside a call
      let gate = Gate()
      recorder.onEvent = { _ in
        stream.writerWaits = []
        gate.open()
      }
      await gate.wait(on: lane)
      #expect(recorder.events == [.hasSpaceAvailable])
      #expect(try stream.write(bytes) == .moved(4096))
    }
  }

  @Test("calls only waiting streams, in shared rounds")
  func levelTriggered() async throws {
    try await onLane { lane in
      let flood = try await Self.broker.open("sim://flood", on: lane)
      let other = try await Self.broker.open("sim://flood", on: lane)
      let gate = Gate()
      let recorder = EventRecorder()
      let second = EventRecorder { _ in if recorder.events.count > 10 { gate.open() } }
      flood.delegate = recorder
      other.delegate = second
      flood.readerWaits = .readable
      other.readerWaits = .readable
      await gate.wait(on: lane)
      #expect(abs(recorder.events.count - second.events.count) <= 1)
      flood.readerWaits = []
      other.readerWaits = []
      let count = recorder.events.count + second.events.count
      let later = Gate()
      lane.poller.timers.after(.milliseconds(20)) { later.open() }
      await later.wait(on: lane)
      #expect(recorder.events.count + second.events.count <= count + 2)
      flood.close()
      other.close()
    }
  }

  @Test("flood sends a pattern in which every position can be found and checked", arguments: [127, 1000, 65_536])
  func flood(size: Int) async throws {
    try await onLane { lane in
      let stream = try await Self.broker.open("sim://flood", on: lane)
      defer { stream.close() }
      let bytes = try await stream.read(exactly: 200_000, on: lane)
      var random = SeededRandom()
      for _ in 0..<5 {
        let start = Int.random(in: 0...(bytes.count - size), using: &random)
        var window = Array(bytes[start..<(start + size)])
        #expect(FloodPattern.position(of: window) == UInt64(start), "\(random)")
        window[Int.random(in: 0..<size, using: &random)] ^= 1
        #expect(FloodPattern.position(of: window) == nil, "\(random)")
      }
      #expect(String(decoding: bytes.prefix(21), as: UTF8.self) == "0000000000000000 !\"#$")
      #expect(bytes[63] == 0x0A && bytes[64 + 17] == 0x22)
    }
  }

  @Test("finds far positions in the flood pattern, nothing else", arguments: [0, 1 << 32, (1 << 40) + 17] as [UInt64])
  func floodPlaces(position: UInt64) {
    var window = [UInt8](repeating: 0, count: 200)
    window.withUnsafeMutableBytes { FloodPattern.fill($0, from: position) }
    #expect(FloodPattern.position(of: window) == position)
    #expect(FloodPattern.position(of: Array(window.prefix(40))) == nil)
    #expect(FloodPattern.position(of: Array("\nffffffffffffffff rest".utf8)) == nil)
    #expect(FloodPattern.position(of: []) == nil)
  }

  @Test("sink reads everything, sends nothing, and counts")
  func sink() async throws {
    try await onLane { lane in
      let stream = try await Self.broker.open("sim://sink", on: lane)
      for _ in 0..<10 { try await stream.writeAll([UInt8](repeating: 1, count: 100_000), on: lane) }
      #expect((stream as? SimStream)?.taken == 1_000_000)
      #expect(try stream.read() == .blocked(until: .readable))
      stream.finishWriting()
      #expect(try stream.read() == .ended)
      stream.close()
    }
  }

  @Test("console prompts, echoes and knows a few commands")
  func console() async throws {
    var console = SimConsole()
    #expect(type("", into: &console).hasSuffix("try help\r\nsim> "))
    #expect(type("echo hello\r\n", into: &console) == "echo hello\r\nhello\r\nsim> ")
    #expect(type("\n", into: &console) == "\r\nsim> ")
    #expect(type("uptine\u{8}\u{8}me\r", into: &console).contains("up 0 seconds\r\n"))
    #expect(type("frobnicate\r", into: &console).contains("frobnicate: not found; try help\r\n"))
    #expect(type("help\r", into: &console).contains("reboot"))
    #expect(type("abc\u{3}", into: &console) == "abc^C\r\nsim> ")
    #expect(!console.hasEnded)
    #expect(type("reboot\r", into: &console).hasSuffix("going down\r\n"))
    #expect(console.hasEnded)
  }

  @Test("console stays bounded whatever is typed and however little is read")
  func consoleBounds() {
    var console = SimConsole()
    var random = SeededRandom()
    for _ in 0..<200 {
      let bytes = random.bytes(1000)
      _ = bytes.withUnsafeBytes { console.take($0) }
    }
    var kept = [UInt8](repeating: 0, count: 8192)
    let count = kept.withUnsafeMutableBytes { console.give($0) }
    #expect(count > 1000 && count <= 4096, "\(random)")
    #expect(console.hasSpace)
  }

  private func type(_ text: String, into console: inout SimConsole) -> String {
    _ = Array(text.utf8).withUnsafeBytes { console.take($0) }
    var answer = [UInt8](repeating: 0, count: 8192)
    let count = answer.withUnsafeMutableBytes { console.give($0) }
    return String(decoding: answer[..<count], as: UTF8.self)
  }
}

@Suite("A simulated GPS", .timeLimit(.minutes(5)))
struct SimNMEATests {
  private func sentences(_ device: inout SimNMEA) -> [String] {
    var bytes = [UInt8](repeating: 0, count: 8192)
    let count = bytes.withUnsafeMutableBytes { device.give($0) }
    return String(decoding: bytes[..<count], as: UTF8.self).split(separator: "\r\n").map(String.init)
  }

  @Test("sends sentences with right checksums, a moving time and a moving position")
  func sentences() throws {
    var device = SimNMEA(rate: 1, start: 1_700_000_000)  // 2023-11-14 22:13:20
    device.tick()
    let first = sentences(&device)
    #expect(first[0].hasPrefix("$GPRMC,221320.00,A,4717.6510,N,00833.9180,E,020.4,090.0,141123,,,A*"))
    #expect(first[1].hasPrefix("$GPGGA,221320.00,4717.6510,N,00833.9180,E,1,08,0.9,408.2,M,47.5,M,,*"))
    var last = first
    for _ in 0..<3000 {
      device.tick()
      let next = sentences(&device)
      #expect(next.count == 2 && next[0] != last[0])
      for sentence in next {
        let parts = sentence.dropFirst().split(separator: "*")
        let sum = parts[0].utf8.reduce(UInt8(0), ^)
        #expect(UInt8(parts[1], radix: 16) == sum && parts[1].count == 2)
        #expect(sentence.utf8.count <= 80)  // NMEA 0183: 82 with the line end
      }
      last = next
    }
    #expect(last[0].contains("230320.00"))
  }

  @Test("drops whole sentences while nothing reads, and keeps no more than 4 KiB")
  func unread() {
    var device = SimNMEA(rate: 10, start: 0)
    for _ in 0..<1000 { device.tick() }
    let kept = sentences(&device)
    #expect(kept.joined().utf8.count <= 4096 && kept.allSatisfy { $0.hasPrefix("$GP") && $0.contains("*") })
  }

  @Test("keeps its rate, fractional ones too", arguments: ["40", "12.5"])
  func rate(rate: String) async throws {
    let period = 1_000_000_000 / (Double(rate) ?? 1)
    try await onLane { lane in
      let start = monotonicNanoseconds()
      let stream = try await Broker(Schemes.standard).open("sim://nmea?rate=\(rate)", on: lane)
      defer { stream.close() }
      var lines = 0
      while lines < 8 { lines += try await stream.read(exactly: 1, on: lane) == [0x0A] ? 1 : 0 }
      // The fourth pair arrives three periods after the first, which is sent at once.
      #expect(Double(monotonicNanoseconds() - start) >= 3 * period * 0.999)
    }
  }

  @Test("refuses an invalid rate", arguments: ["0", "-1", "fast", "1e9", "nan"])
  func badRate(rate: String) {
    #expect(throws: URLProblem.self) { try Broker(Schemes.standard).connector("sim://nmea?rate=\(rate)") }
  }
}
