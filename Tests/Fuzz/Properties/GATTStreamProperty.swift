// A Bluetooth device's messages to an open GATT stream, each preceded by its length; at an empty one the stream writes.
// The first byte selects the stream's kind. Values must arrive complete, once and in order; requests must be answered;
// what the stream writes must arrive.

import CLinux
import Glibc

@testable import ByteStreams
@testable import StreamBrokerBluetooth

/// Not for two threads at once.
final class GATTStreamProperty {
  private let lane: PollerRig
  init() throws(Broken) { lane = try PollerRig() }

  func check(_ input: [UInt8]) throws(Broken) {
    guard let kind = input.first else { return }
    let talk = try Talk(kind, on: lane)
    defer { talk.end() }
    var rest = input.dropFirst()
    var state = input.reduce(0x811C_9DC5 as UInt32) { ($0 ^ UInt32($1)) &* 0x0100_0193 }
    while let length = rest.popFirst(), !talk.isBroken {
      let message = Array(rest.prefix(Int(length)))
      rest = rest.dropFirst(Int(length))
      state = state &* 1_664_525 &+ 1_013_904_223
      let number = Int(state >> 16)
      if message.isEmpty { try talk.write(1 + number % 60) } else { try talk.say(message) }
      switch number >> 8 & 3 {
      case 0: break
      case 1: _ = try talk.read(1 + number % 40)
      case 2: while try talk.read(300) {}
      default: lane.turn()
      }
    }
    try talk.conclude()
  }
}

/// One stream and its device.
private final class Talk {
  private let lane: PollerRig
  private let plan: GATTPlan
  private let stream: GATTStream
  private let device: Int32
  private(set) var isBroken = false
  private var isRefused = false
  // Expected: values, confirmations and other answers from the stream, and what it wrote.
  private var values: [UInt8] = []
  private var (confirmations, answers) = (0, 0)
  private var written: [UInt8] = []
  // Received so far.
  private var received: [UInt8] = []
  private var (confirmed, answered) = (0, 0)
  private var arrived: [UInt8] = []

  init(_ kind: UInt8, on lane: PollerRig) throws(Broken) {
    self.lane = lane
    let ends = try PollerRig.pair(SOCK_SEQPACKET)
    if kind & 4 != 0 {  // the send queue holds a few messages only
      var least: Int32 = 1
      setsockopt(ends.0, SOL_SOCKET, SO_SNDBUF, &least, 4)
    }
    plan = GATTPlan(
      mtu: kind & 2 == 0 ? 23 : 185, ourMTU: 517, rx: 12, tx: 14, asksForAnswers: kind & 1 != 0, early: [])
    stream = GATTStream(Descriptor(owning: ends.0), plan, on: lane.poller)
    stream.readerWaits = .readable
    device = ends.1
  }

  func end() {
    stream.close()
    close(device)
    lane.turn()
  }

  func say(_ message: [UInt8]) throws(Broken) {
    let count = send(device, message, message.count, Int32(MSG_NOSIGNAL))
    try hold(count == message.count, "the device can say no more: \(errno)")
    let opcode = message[0]
    switch opcode {
    case 0x1B, 0x1D:
      guard message.count >= 3 else { return }
      if opcode == 0x1D { confirmations += 1 }
      if message[1] == 12, message[2] == 0 { values += message[3...] }
    case 0x02: answers += message.count == 3 ? 1 : 0
    case 0x01: isRefused = isRefused || (plan.asksForAnswers && message.count == 5 && message[1] == 0x12)
    case 0x1E: break
    default: answers += opcode & 0x41 == 0 ? 1 : 0  // requests; all others are answers or commands
    }
  }

  func write(_ count: Int) throws(Broken) {
    let bytes = (0..<count).map { UInt8(truncatingIfNeeded: written.count + $0) }
    do {
      guard case .moved(let taken) = try bytes.withUnsafeBytes({ try stream.write($0) }) else { return }
      written += bytes[..<taken]
    } catch {
      try broke(error)
    }
  }

  /// Whether bytes were read.
  func read(_ room: Int) throws(Broken) -> Bool {
    var run = [UInt8](repeating: 0, count: room)
    do {
      guard case .moved(let count) = try run.withUnsafeMutableBytes({ try stream.read(into: $0) }) else { return false }
      received += run[..<count]
      return count > 0
    } catch {
      try broke(error)
      return false
    }
  }

  private func broke(_ error: any Error) throws(Broken) {
    isBroken = true
    try hold(isRefused, "\(error), though nothing was refused")
  }

  private func listen() throws(Broken) {
    var message = [UInt8](repeating: 0, count: 600)
    while case let count = recv(device, &message, message.count, 0), count > 0 {
      switch message[0] {
      case 0x1E: confirmed += 1
      case 0x01, 0x03: answered += 1
      case 0x12, 0x52:
        try hold((4...plan.mtu).contains(count), "a write of \(count) bytes")
        try hold(message[1] == 14 && message[2] == 0, "a write to another attribute")
        arrived += message[3..<count]
      default: throw Broken("a message of kind \(message[0])")
      }
    }
  }

  /// Everything sent is read, and then the end.
  func conclude() throws(Broken) {
    for _ in 0..<400
    where !isBroken && (received.count < values.count || confirmed < confirmations || answered < answers) {
      try listen()
      lane.turn()
      _ = try read(300)
    }
    try listen()
    try hold(isBroken ? values.starts(with: received) : received == values, "\(received) was told for \(values)")
    if !isBroken {
      try hold(confirmed == confirmations, "\(confirmed) of \(confirmations) confirmed")
      try hold(answered == answers, "\(answered) of \(answers) answered")
    }
    try hold(arrived == written, "\(arrived) arrived for \(written)")
    guard !isBroken else { return }
    shutdown(device, Int32(SHUT_RDWR))
    for _ in 0..<4 where !isBroken {
      lane.turn()
      try hold(!(try read(300)), "more came than was said")
      if stream.socket.readEnded { return }
    }
    try hold(isBroken, "a stream without end")
  }
}
