// The stream over a device's characteristics, on a socket that keeps message boundaries as L2CAP does. The test plays
// the device.

import ByteStreams
import CLinux
import Glibc
import StreamTestKit
import Testing

@testable import StreamBrokerBluetooth

@Suite("A stream over GATT", .timeLimit(.minutes(5)))
struct GATTStreamTests {
  static let plan = GATTPlan(mtu: 23, ourMTU: 517, rx: 12, tx: 14, asksForAnswers: false, early: [])

  /// The device's end. Its calls never block; tests repeat them until they succeed.
  final class Device: Sendable {
    private let descriptor: DescriptorParcel
    let raw: Int32
    init(_ descriptor: consuming Descriptor) {
      raw = descriptor.raw
      self.descriptor = DescriptorParcel(descriptor)
    }
    func say(_ message: [UInt8]) throws {
      guard send(raw, message, message.count, Int32(MSG_NOSIGNAL)) == message.count else { throw SystemError("send") }
    }
    /// The next message; nil if there is none now.
    func handle() -> [UInt8]? {
      var buffer = [UInt8](repeating: 0, count: 600)
      let count = recv(raw, &buffer, buffer.count, Int32(MSG_DONTWAIT))
      return count > 0 ? Array(buffer[..<count]) : nil
    }
    func hangUp() { _ = descriptor.take() }

    /// Our end, and the device.
    static func pair() throws -> (DescriptorParcel, Device) {
      var ends: [Int32] = [-1, -1]
      let type = Int32(SOCK_SEQPACKET.rawValue) | Int32(SOCK_NONBLOCK.rawValue) | Int32(SOCK_CLOEXEC.rawValue)
      guard socketpair(AF_UNIX, type, 0, &ends) == 0 else { throw SystemError("socketpair") }
      return (DescriptorParcel(Descriptor(owning: ends[0])), Device(Descriptor(owning: ends[1])))
    }
  }

  static func pair(_ plan: GATTPlan = plan, on poller: Poller) throws -> (GATTStream, Device) {
    let (socket, device) = try Device.pair()
    guard let descriptor = socket.take() else { throw SystemError("socketpair", EBADF) }
    return (GATTStream(descriptor, plan, on: poller), device)
  }

  private func read(_ stream: GATTStream, _ room: Int = 4096) throws -> (Transfer, [UInt8]) {
    var bytes = [UInt8](repeating: 0, count: room)
    let transfer = try bytes.withUnsafeMutableBytes { try stream.read(into: $0) }
    if case .moved(let count) = transfer { return (transfer, Array(bytes[..<count])) }
    return (transfer, [])
  }

  private func write(_ stream: GATTStream, _ bytes: [UInt8]) throws -> Transfer {
    try bytes.withUnsafeBytes { try stream.write($0) }
  }

  @Test("reads notifications of its characteristic, and nothing else")
  func reads() async throws {
    try await onLane { lane in
      let (stream, device) = try Self.pair(on: lane.poller)
      defer { stream.close() }
      #expect(try read(stream).0 == .blocked(until: .readable))
      for message in [[0x1B, 12, 0, 1, 2], [0x1B, 11, 0, 9], [0x1B], [0x13], [0x1B, 12, 0], [0x1B, 12, 0, 3]]
        as [[UInt8]]
      {
        try device.say(message)
      }
      #expect(try read(stream).1 == [1, 2, 3])
      #expect(stream.largestUnit == 20)
    }
  }

  @Test("returns early values first, and those without space at the next read")
  func holds() async throws {
    try await onLane { lane in
      var plan = Self.plan
      plan.early = [1, 2, 3]
      let (stream, device) = try Self.pair(plan, on: lane.poller)
      defer { stream.close() }
      try device.say([0x1B, 12, 0, 4, 5])
      #expect(try read(stream, 2).1 == [1, 2])
      #expect(stream.hasBufferedInput)
      #expect(try read(stream, 1).1 == [3])
      #expect(!stream.hasBufferedInput)
      #expect(try read(stream, 1).1 == [4])
      #expect(try read(stream).1 == [5])
    }
  }

  @Test("reads many messages in one call, in order, as space allows")
  func many() async throws {
    try await onLane { lane in
      let (stream, device) = try Self.pair(on: lane.poller)
      defer { stream.close() }
      let bytes = (0..<50).map { UInt8($0) }
      for byte in bytes { try device.say([0x1B, 12, 0, byte]) }
      try device.say([0x1D, 12, 0, 50])
      #expect(try read(stream, 30).1 == Array(bytes[..<11]))  // then there is no space for a whole value
      #expect(device.handle() == nil)
      #expect(try read(stream).1 == bytes[11...] + [50])
      #expect(device.handle() == [0x1E])
    }
  }

  @Test("reads values longer than the MTU, and treats an empty message as the end")
  func odd() async throws {
    try await onLane { lane in
      let (stream, device) = try Self.pair(on: lane.poller)
      defer { stream.close() }
      let long = (0..<60).map { UInt8($0) }
      try device.say([0x1B, 12, 0] + long)
      try device.say([0x1B, 12, 0] + long)
      try device.say([])
      try device.say([0x1B, 12, 0, 1])
      #expect(try read(stream, 50).1 == Array(long[..<50]))
      #expect(stream.hasBufferedInput)
      #expect(try read(stream, 70).1 == Array(long[50...]) + long)
      #expect(try read(stream).0 == .ended)
    }
  }

  @Test("confirms indications once there is space for them, and answers the device's requests")
  func confirms() async throws {
    try await onLane { lane in
      let (stream, device) = try Self.pair(on: lane.poller)
      defer { stream.close() }
      try device.say([0x1D, 12, 0, 7])
      #expect(device.handle() == nil)
      #expect(try read(stream).1 == [7])
      #expect(device.handle() == [0x1E])
      try device.say([0x02, 23, 0])
      try device.say([0x0A, 1, 0])
      #expect(try read(stream).0 == .blocked(until: .readable))
      #expect(device.handle() == [0x03, 5, 2])
      #expect(device.handle() == [0x01, 0x0A, 0, 0, 0x06])
    }
  }

  @Test("cuts what is written to the MTU")
  func cuts() async throws {
    try await onLane { lane in
      let (stream, device) = try Self.pair(on: lane.poller)
      defer { stream.close() }
      let bytes = (0..<50).map { UInt8($0) }
      #expect(try write(stream, bytes) == .moved(50))
      for part in [0..<20, 20..<40, 40..<50] { #expect(device.handle() == [0x52, 14, 0] + bytes[part]) }
      #expect(device.handle() == nil)
    }
  }

  @Test("is full when the kernel's queue is, and reports new space")
  func full() async throws {
    try await onLane { lane in
      let (stream, device) = try Self.pair(on: lane.poller)
      defer { stream.close() }
      let hasSpace = Gate()
      stream.delegate = EventRecorder { if $0 == .hasSpaceAvailable { hasSpace.open() } }
      let bytes = [UInt8](repeating: 7, count: 4000)
      var sent = 0
      while case .moved(let count) = try write(stream, bytes) { sent += count }
      stream.writerWaits = .writable
      while let message = device.handle() { sent -= message.count - 3 }
      #expect(sent == 0)
      await hasSpace.wait(on: lane)
      stream.writerWaits = []
      #expect(try write(stream, [1]) == .moved(1))
    }
  }

  @Test("finds a confirmation while nothing reads, up to the first value, which it keeps")
  func confirmationUnread() async throws {
    try await onLane { lane in
      var plan = Self.plan
      plan.asksForAnswers = true
      let (stream, device) = try Self.pair(plan, on: lane.poller)
      defer { stream.close() }
      var hasSpace = Gate()
      var hasBytes = 0
      stream.delegate = EventRecorder { event in
        if event == .hasSpaceAvailable { hasSpace.open() }
        if event == .hasBytesAvailable { hasBytes += 1 }
      }
      #expect(try write(stream, [1]) == .moved(1))
      stream.writerWaits = .writable
      try device.say([0x13])
      try device.say([0x1B, 12, 0, 65])
      await hasSpace.wait(on: lane)
      stream.writerWaits = []
      #expect(hasBytes == 0)
      #expect(try write(stream, [2]) == .moved(1))
      // After a value the confirmation waits until the value is read.
      hasSpace = Gate()
      stream.writerWaits = .writable
      try device.say([0x13])
      #expect(try read(stream).1 == [65])
      #expect(try read(stream).0 == .blocked(until: .readable))
      await hasSpace.wait(on: lane)
      stream.writerWaits = []
      #expect(try write(stream, [3]) == .moved(1))
    }
  }

  @Test("wakes a waiting reader for held values, and for the end")
  func tells() async throws {
    try await onLane { lane in
      var plan = Self.plan
      plan.early = [1, 2]
      let (stream, device) = try Self.pair(plan, on: lane.poller)
      defer { stream.close() }
      var hasBytes = Gate()
      stream.delegate = EventRecorder { if $0 == .hasBytesAvailable { hasBytes.open() } }
      stream.readerWaits = .readable
      await hasBytes.wait(on: lane)
      #expect(try read(stream).1 == [1, 2])
      hasBytes = Gate()
      device.hangUp()
      await hasBytes.wait(on: lane)
      #expect(try read(stream).0 == .ended)
    }
  }

  @Test("sends one request at a time, and continues when it is confirmed")
  func requests() async throws {
    try await onLane { lane in
      var plan = Self.plan
      plan.asksForAnswers = true
      let (stream, device) = try Self.pair(plan, on: lane.poller)
      defer { stream.close() }
      let bytes = (0..<30).map { UInt8($0) }
      #expect(try write(stream, bytes) == .moved(20))
      #expect(try write(stream, Array(bytes[20...])) == .blocked(until: .writable))
      #expect(device.handle() == [0x12, 14, 0] + bytes[..<20])
      #expect(device.handle() == nil)
      try device.say([0x13])
      #expect(try read(stream).0 == .blocked(until: .readable))  // the reader gets to the confirmation
      #expect(try write(stream, Array(bytes[20...])) == .moved(10))
      #expect(device.handle() == [0x12, 14, 0] + bytes[20...])
    }
  }

  @Test(
    "fails with the reason when the device refuses a write",
    arguments: [
      (0x0F, EACCES, "(ATT error 0x0F: insufficient encryption)"),
      (0x80, EIO, "(ATT error 0x80: an error of its application)"),
    ])
  func refused(code: UInt8, number: Int32, text: String) async throws {
    try await onLane { lane in
      var plan = Self.plan
      plan.asksForAnswers = true
      let (stream, device) = try Self.pair(plan, on: lane.poller)
      defer { stream.close() }
      var reported: [String] = []
      stream.writeFailed = { reported.append("\($0)") }
      _ = try write(stream, [1])
      try device.say([0x1B, 12, 0, 65])
      try device.say([0x01, 0x12, 14, 0, code])
      #expect(try read(stream).1 == [65])
      #expect(reported == ["the device refused a write \(text)"])
      #expect(throws: SystemError("write", number)) { try read(stream) }
      #expect(throws: SystemError("write", number)) { try write(stream, [2]) }
    }
  }

  @Test("delivers values from before the end, then the end")
  func end() async throws {
    try await onLane { lane in
      let (stream, device) = try Self.pair(on: lane.poller)
      defer { stream.close() }
      try device.say([0x1B, 12, 0, 65])
      device.hangUp()
      #expect(try read(stream).1 == [65])
      #expect(try read(stream).0 == .ended)
      stream.close()
      #expect(try read(stream).0 == .ended)
    }
  }
}
