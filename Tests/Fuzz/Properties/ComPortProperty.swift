// A telnet stream with COM-PORT, read and written over a stream that is played in memory. Everything it sends is well
// formed, data arrive once and in order, and what it keeps is bounded.

import StreamBrokerCore

@testable import ByteStreams
@testable import StreamTelnet

final class ComPortProperty {
  private let rig: PollerRig

  init() throws(Broken) { rig = try PollerRig() }

  /// The stream below: gives what the input says, and takes as much as the input says.
  private final class Played: TransportStream {
    var delegate: (any ByteStreamDelegate)?
    var readerWaits: Readiness = []
    var writerWaits: Readiness = []
    var arriving: [UInt8] = []
    var room = 0
    var sent: [UInt8] = []
    var isBroken = false

    func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
      guard !arriving.isEmpty else { return .blocked(until: .readable) }
      let count = min(run.count, arriving.count)
      run.copyBytes(from: arriving[..<count])
      arriving.removeFirst(count)
      return .moved(count)
    }

    func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
      guard !isBroken else { throw SystemError("write", 32) }
      guard room > 0 else { return .blocked(until: .writable) }
      let count = min(run.count, room)
      sent += run[..<count]
      room -= count
      return .moved(count)
    }

    func close() { dismissDelegate() }
  }

  /// Bit 0 of the first byte: which end; bit 1: terms that were agreed before; bit 2: with an observer. Then steps: a
  /// byte for what happens and how much.
  func check(_ input: [UInt8]) throws(Broken) {
    try Self.checkMessages(input)
    guard let choice = input.first else { return }
    rig.restart()
    let role: TelnetRole = choice & 1 == 0 ? .server : .client
    var negotiation = TelnetNegotiation(role == .server ? .server(comPort: true) : .client(comPort: true))
    var dropped: [UInt8] = []
    if choice & 2 != 0 {
      for option in TelnetOption.allCases {
        negotiation.receive(.do, option.rawValue, &dropped)
        negotiation.receive(.will, option.rawValue, &dropped)
      }
    }
    let below = Played()
    let stream = TelnetStream(over: below, .init(role), negotiation, on: rig.poller)
    defer { stream.close() }
    if choice & 4 != 0 {
      stream.observer = { [weak stream] event in if case .comPort(let message) = event { stream?.send(message) } }
    }
    if choice & 8 != 0 { stream.begin() }
    var written: [UInt8] = []  // data that was taken
    var next: UInt8 = 0
    var rest = input.dropFirst()
    while let step = rest.popFirst() {
      let amount = Int(step >> 3)
      switch step & 7 {
      case 0...2:  // bytes arrive and are read
        below.arriving += rest.prefix(amount)
        rest = rest.dropFirst(amount)
        try read(stream, room: amount + 1)
      case 3:
        below.room += amount * amount
        stream.stream(below, handle: .hasSpaceAvailable)
      case 4:  // data that often have 255 and CR
        let data = (0..<amount + 1).map { _ in
          next = next &+ 1
          return [next, 255, 13, next, 0][Int(next) % 5]
        }
        do {
          if case .moved(let count) = try data.withUnsafeBytes({ try stream.write($0) }) { written += data[..<count] }
        } catch { try hold(below.isBroken, "\(error)") }
      case 5: stream.send(.modemState(step))
      case 6:
        stream.readerWaits = amount & 1 == 0 ? .readable : []
        stream.writerWaits = amount & 2 == 0 ? .writable : []
        rig.now += UInt64(amount) * 25_000_000
        rig.turn()
      default:
        if amount == 31 { below.isBroken = true }
        while stream.takeEvent() != nil {}
        try read(stream, room: 4096)
      }
      try hold(stream.undelivered.onItsWay <= TelnetStream.mostOwn + 8192, "\(stream.undelivered) waits")
    }
    guard !below.isBroken else { return }
    below.room = .max
    stream.stream(below, handle: .hasSpaceAvailable)
    try hold(!stream.hasPendingOutput, "it keeps output that can be sent")
    try checkSent(below.sent, data: written, isAgreed: choice & 2 != 0)
  }

  private func read(_ stream: TelnetStream, room: Int) throws(Broken) {
    var run = [UInt8](repeating: 0, count: room)
    for _ in 0..<10_000 {
      do {
        guard case .moved = try run.withUnsafeMutableBytes({ try stream.read(into: $0) }) else { return }
      } catch { return }
    }
    throw Broken("reading does not end")
  }

  /// What was sent is telnet. Unless BINARY was negotiated in the middle it has the data and nothing else.
  private func checkSent(_ sent: [UInt8], data: [UInt8], isAgreed: Bool) throws(Broken) {
    var rest = sent[...]
    var heard: [UInt8] = []
    var changesBinary = false
    var lastWasCR = false
    while let byte = rest.popFirst() {
      guard byte == 255 else {
        if !lastWasCR || byte != 0 { heard.append(byte) }
        lastWasCR = byte == 13 && !isAgreed
        continue
      }
      switch rest.popFirst() {
      case 255?:
        heard.append(255)
        lastWasCR = false
      case 241?, 243?: break
      case 251?, 252?, 253?, 254?:
        let option = rest.popFirst()
        try hold(option != nil, "a word without its option")
        if option == 0 { changesBinary = true }
      case 250?:
        try hold(rest.popFirst() == 44, "a subnegotiation of another option")
        var isComplete = false
        while !isComplete, let byte = rest.popFirst() {
          guard byte == 255 else { continue }
          let second = rest.popFirst()
          try hold(second == 255 || second == 240, "a command in a subnegotiation")
          isComplete = second == 240
        }
        try hold(isComplete, "a subnegotiation without an end")
      default: throw Broken("it sends a strange command")
      }
    }
    // The answer to AYT is text among the data.
    let answer = Array("\r\n[baudway: yes]\r\n".utf8)
    var plain: [UInt8] = []
    var place = 0
    var next = 0
    guard !changesBinary else { return }
    while place < heard.count {
      if next < data.count, heard[place] == data[next], !heard[place...].starts(with: answer) {
        plain.append(heard[place])
        next += 1
        place += 1
      } else if heard[place...].starts(with: answer) {
        place += answer.count
      } else {
        throw Broken("byte \(next) of the data is not sent, or others are")
      }
    }
    try hold(plain == data, "\(data.count - next) bytes of data are not sent")
  }

  /// A message that reads back is the same, from either side.
  private static func checkMessages(_ content: [UInt8]) throws(Broken) {
    for role in [TelnetRole.server, .client] {
      guard let message = ComPortMessage(content, from: role) else { continue }
      var decoder = TelnetDecoder()
      var run = message.bytes(from: role)
      var progress = TelnetDecoder.Progress()
      var token: TelnetDecoder.Token?
      do {
        token = try run.withUnsafeMutableBytes { run throws(TelnetFault) in
          try decoder.decode(UnsafeRawBufferPointer(run), into: run, &progress)
        }
      } catch { throw Broken("\(message): \(error)") }
      guard case .subnegotiation(option: 44, let again)? = token, progress.used == run.count else {
        try hold(content.count > TelnetDecoder.longestContent, "\(message) is no subnegotiation")
        continue
      }
      try hold(ComPortMessage(again, from: role) == message, "\(message) does not read back")
      try hold(content.starts(with: again) || again.count == 2 && content.count == 1, "\(message) has other bytes")
    }
  }
}
