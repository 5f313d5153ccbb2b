// Endings of a GATT stream at unusual moments.

import CLinux
import Glibc
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import StreamBrokerBluetooth

@Suite("A stream over GATT that ends at an unusual moment", .timeLimit(.minutes(5)))
struct GATTStreamEdgesTests {
  private func read(_ stream: GATTStream) throws -> Transfer {
    var bytes = [UInt8](repeating: 0, count: 4096)
    return try bytes.withUnsafeMutableBytes { try stream.read(into: $0) }
  }

  @Test("waits for nothing after an empty message, and reports the end to the next read")
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

  @Test("can be closed from the identity callback, whatever is still unread")
  func closed() async throws {
    try await onLane { lane in
      let (stream, device) = try GATTStreamTests.pair(on: lane.poller)
      stream.metadata?.changed = { [weak stream] in stream?.close() }
      stream.askIdentity()
      for number in 0..<5 {
        stream.askOn()
        #expect(device.handle()?.first == 0x08)
        try device.say(number == 0 ? [0x09, 4, 3, 0, 0x48, 0x4D] : [0x01, 0x08, 1, 0, 0x0A])
        if number == 4 {
          try device.say([0x1D, 12, 0, 65])
          try device.say([0x02, 23, 0])
        }
        #expect(try read(stream) == (number == 4 ? .ended : .blocked(until: .readable)))
      }
      #expect(!stream.socket.isOpen && stream.metadata?.facts.name == "HM")
      #expect(device.handle() == nil)
    }
  }

  /// A UDP socket connected to itself: like L2CAP's it drops what is not read, and counts the drops.
  private static func dropping(atMost room: Int32 = 4096) throws -> Descriptor {
    let type = Int32(SOCK_DGRAM.rawValue) | Int32(SOCK_NONBLOCK.rawValue) | Int32(SOCK_CLOEXEC.rawValue)
    let raw = socket(AF_INET, type, 0)
    guard raw >= 0 else { throw SystemError("socket") }
    let socket = Descriptor(owning: raw)
    var address = sockaddr_in()
    address.sin_family = sa_family_t(AF_INET)
    address.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
    var size = socklen_t(MemoryLayout<sockaddr_in>.size)
    try withUnsafeMutablePointer(to: &address) {
      try $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { place in
        guard bind(raw, place, size) == 0, getsockname(raw, place, &size) == 0, connect(raw, place, size) == 0 else {
          throw SystemError("bind")
        }
      }
    }
    try SocketOptions.set(raw, SOL_SOCKET, SO_RCVBUF, room)
    return socket
  }

  @Test("reports losses within a second, also while nothing reads, and has no timer while a reader waits")
  func losses() throws {
    let clock = ManualClock()
    let poller = try Poller(clock: clock.clock) { _ in }
    func pass(_ time: Duration) {
      clock.advance(by: time)
      poller.timers.fireDue()
    }
    let socket = try Self.dropping()
    let raw = socket.raw
    var reported: [Int] = []
    let stream = GATTStream(socket, GATTStreamTests.plan, on: poller) { reported.append($0) }
    func flood() {
      let message: [UInt8] = [0x1B, 12, 0] + [UInt8](repeating: 7, count: 500)
      for _ in 0..<100 { _ = send(raw, message, message.count, 0) }
    }
    stream.readerWaits = .readable
    flood()
    stream.readerWaits = []
    #expect(reported.isEmpty)
    pass(.seconds(1))
    #expect(reported.count == 1 && reported[0] > 0 && reported[0] < 100)
    pass(.seconds(1))
    #expect(reported.count == 1)
    flood()
    pass(.seconds(1))
    #expect(reported.count == 2 && reported[1] == 100)
    flood()
    stream.readerWaits = .readable
    pass(.seconds(1))
    #expect(reported.count == 3 && reported[2] == 100)
    flood()
    pass(.seconds(5))
    #expect(reported.count == 3)
    stream.close()
    #expect(reported.count == 4)
  }

  @Test("reports a slow reader's losses within a second, and has no timer while nothing can be lost")
  func tooSlow() throws {
    let clock = ManualClock()
    let poller = try Poller(clock: clock.clock) { _ in }
    let socket = try Self.dropping(atMost: 32 << 10)  // holds about fifty messages
    let raw = socket.raw
    var reported: [Int] = []
    let stream = GATTStream(socket, GATTStreamTests.plan, on: poller) { reported.append($0) }
    defer { stream.close() }
    stream.readerWaits = .readable
    func pass() {
      clock.advance(by: .seconds(1))
      poller.timers.fireDue()
    }
    func say(_ count: Int) {
      let message: [UInt8] = [0x1B, 12, 0, 7]
      for _ in 0..<count { _ = send(raw, message, message.count, 0) }
    }
    func flood(_ count: Int) throws -> Int {
      say(count)
      var taken = 0
      while case .moved(let count) = try read(stream) { taken += count }
      return taken
    }
    for turn in 1...3 {
      let taken = try flood(200)
      #expect(reported.count == turn - 1)
      pass()
      #expect(reported.count == turn && reported.last == 200 - taken, "took \(taken)")
    }
    #expect(stream.metadata?.facts.lostMessages == reported.reduce(0, +))
    #expect(try flood(3) == 3)
    say(200)
    for _ in 0..<5 { pass() }
    #expect(reported.count == 3)
  }

  @Test("reports losses less and less often while nothing reads, and within a second of the next read")
  func unread() throws {
    let clock = ManualClock()
    let poller = try Poller(clock: clock.clock) { _ in }
    let socket = try Self.dropping()
    let raw = socket.raw
    var (reported, second) = ([Int](), 0)
    let stream = GATTStream(socket, GATTStreamTests.plan, on: poller) { _ in reported.append(second) }
    let message: [UInt8] = [0x1B, 12, 0] + [UInt8](repeating: 7, count: 500)
    func pass(_ seconds: Int) {
      for _ in 0..<seconds {
        second += 1
        for _ in 0..<20 { _ = send(raw, message, message.count, 0) }
        clock.advance(by: .seconds(1))
        poller.timers.fireDue()
      }
    }
    stream.readerWaits = .readable
    stream.readerWaits = []
    pass(200)
    #expect(reported == [1, 3, 7, 15, 31, 63, 123, 183])
    stream.readerWaits = .readable
    pass(5)
    #expect(reported.dropFirst(8) == [201])
    stream.readerWaits = []
    pass(3)
    #expect(reported.dropFirst(9) == [206, 208])
    stream.close()
    stream.readerWaits = .readable
    stream.readerWaits = []
    pass(100)
    #expect(reported.count == 11)
  }

  /// A stream whose identity requests have begun and whose writes are confirmed, its device, and a function that
  /// advances the clock.
  private func asking() throws -> (GATTStream, GATTStreamTests.Device, (Duration) -> Void) {
    let clock = ManualClock()
    let poller = try Poller(clock: clock.clock) { _ in }
    var plan = GATTStreamTests.plan
    plan.asksForAnswers = true
    let (stream, device) = try GATTStreamTests.pair(plan, on: poller)
    stream.askIdentity()
    return (
      stream, device,
      {
        clock.advance(by: $0)
        poller.timers.fireDue()
      }
    )
  }

  @Test("delays confirmed writes by at most 15 seconds for a device with a slow identity")
  func slow() throws {
    let (stream, device, pass) = try asking()
    defer { stream.close() }
    stream.readerWaits = .readable
    var questions = 0
    while stream.identity != nil, questions < 100 {
      stream.askOn()
      guard let question = device.handle() else { break }
      questions += 1
      #expect(stream.holdsWrites)
      pass(.seconds(4))
      let begin: [UInt8] = question[0] == 0x08 ? [0x09, 21, 3, 0] : [question[0] + 1]
      try device.say(begin + [UInt8](repeating: 0x58, count: question[0] == 0x08 ? 19 : 22))
      #expect(try read(stream) == .blocked(until: .readable))
    }
    #expect(questions == 4 && stream.identity == nil && !stream.holdsWrites)
  }

  @Test("reports an unconfirmed write, and ends")
  func unconfirmed() throws {
    let (stream, device, pass) = try asking()
    defer { stream.close() }
    stream.endIdentity()
    var reported: [GATTStream.WriteFault] = []
    stream.writeFailed = { reported.append($0) }
    #expect(try [1].withUnsafeBytes { try stream.write(UnsafeRawBufferPointer(rebasing: $0.prefix(1))) } == .moved(1))
    #expect(device.handle()?.first == 0x12)
    pass(.seconds(29))
    #expect(reported.isEmpty)
    pass(.seconds(1))
    #expect(reported == [.unconfirmed])
    #expect(throws: SystemError("write", ETIMEDOUT)) { try read(stream) }
  }

  @Test("delays confirmed writes by at most 5 seconds for a device without an identity, with a reader or without")
  func mute() throws {
    for readerWaits in [[], .readable] as [Readiness] {
      let (stream, device, pass) = try asking()
      defer { stream.close() }
      stream.readerWaits = readerWaits
      stream.askOn()
      #expect(device.handle()?.first == 0x08 && stream.holdsWrites)
      pass(.seconds(5))
      #expect(!stream.holdsWrites && stream.identity == nil)
    }
  }
}
