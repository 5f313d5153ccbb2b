// The telnet stream in the suite for layers, and over real sockets.

import ByteStreams
import StreamTestKit
import StreamTelnet
import Testing

@Suite("A telnet stream as a layer", .timeLimit(.minutes(5)))
struct LayerTests {
  @Test("forwards everything else", arguments: [true, false], [TelnetRole.server, .client])
  func forwarding(aborting: Bool, role: TelnetRole) throws {
    let rig = try Rig(as: role)
    LayerForwarding(rig.stream, over: rig.below).run(aborting: aborting)
  }

  @Test("carries bytes and doubles each 255, however they are written", arguments: [TelnetRole.server, .client])
  func carriage(role: TelnetRole) async throws {
    try await onLane { lane in
      let (near, far) = try FarEnd.pair()
      let stream = TelnetStream(
        over: try near.stream(on: lane.poller), .init(role), .agreed(role), on: lane.poller)
      try await LayerCarriage(stream, to: WireEnd(below: far)).run(on: lane)
    }
  }

  @Test("negotiates over TCP with a client in a few words, and then carries data and a request")
  func overTCP() async throws {
    try await onLane { lane in
      let (near, far) = try FarEnd.tcpPair()
      let stream = TelnetStream(
        over: try near.stream(on: lane.poller, isTCP: true), .init(.server), .init(.server(comPort: true)),
        on: lane.poller)
      async let played = onOwnThread {
        let questions = try far.receive(exactly: 21)
        try far.send(
          Wire.do(0) + Wire.do(1) + Wire.do(3) + Wire.do(44) + Wire.will(0) + Wire.will(3) + Wire.will(44)
            + [1, 255, 255, 2] + Wire.subnegotiation([5, 8]) + [3])
        let answer = try far.receive(exactly: 10)
        far.finishWriting()
        return (questions, answer)
      }
      var events: [TelnetStream.Event] = []
      stream.observer = { events.append($0) }
      stream.begin()
      let received = try await stream.read(exactly: 4, on: lane)
      #expect(received == [1, 255, 2, 3] && events == [.comPortAgreed, .comPort(.control(8))])
      stream.send(.control(8))
      try await stream.writeAll([13, 255], on: lane)
      let (questions, answer) = try await played
      #expect(
        questions == Wire.will(0) + Wire.will(1) + Wire.will(3) + Wire.will(44) + Wire.do(0) + Wire.do(3) + Wire.do(44))
      #expect(answer == Wire.subnegotiation([105, 8]) + [13, 255, 255])
      #expect(try await stream.readToEnd(on: lane) == [])
      stream.close()
    }
  }

  @Test("carries a mebibyte both ways between two of them, with requests and answers among it")
  func bothEnds() async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      let (near, far) = try FarEnd.pair()
      let server = TelnetStream(
        over: try near.stream(on: lane.poller), .init(.server), .init(.server(comPort: true)), on: lane.poller)
      let client = TelnetStream(
        over: try far.stream(on: lane.poller), .init(.client), .init(.client(comPort: true)), on: lane.poller)
      var requests: [ComPortMessage] = []
      var answers: [ComPortMessage] = []
      // `server` is of this lane, as the observer is.
      server.observer = { event in
        guard case .comPort(let message) = event else { return }
        requests.append(message)
        server.send(message)
      }
      client.observer = { if case .comPort(let message) = $0 { answers.append(message) } }
      var random = SeededRandom()
      let seed = random.seed
      let bytes = (0..<1 << 20).map { _ in random.next() & 7 == 0 ? 255 : UInt8(truncatingIfNeeded: random.next()) }
      let done = Gate()
      let echo = Echo(server)
      server.delegate = echo
      let player = Player(client, bytes) { done.open() }
      client.delegate = player
      server.begin()
      client.begin()
      echo.turn()
      player.turn()
      await done.wait(on: lane)
      let isSame = player.received == bytes
      #expect(isSame && player.error == nil, "seed \(seed)")
      let isComplete = player.sentRequests > 100 && requests.count == player.sentRequests && answers == requests
      #expect(isComplete, "\(player.sentRequests) \(requests.count) \(answers.count)")
      client.close()
      server.close()
    }
  }
}

/// Sends back what it reads.
private final class Echo: ByteStreamDelegate {
  private let stream: TelnetStream
  private var kept: [UInt8] = []
  init(_ stream: TelnetStream) { self.stream = stream }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) { turn() }

  func turn() {
    while true {
      if !kept.isEmpty {
        guard case .moved(let count)? = try? stream.write(kept) else {
          stream.writerWaits = .writable
          stream.readerWaits = []
          return
        }
        kept.removeFirst(count)
        continue
      }
      stream.writerWaits = []
      guard let more = try? stream.readSome() else {
        stream.readerWaits = .readable
        return
      }
      kept = more
    }
  }
}

/// Sends bytes with requests between them, and reads until all came back.
private final class Player: ByteStreamDelegate {
  private let stream: TelnetStream
  private let bytes: [UInt8]
  private let done: () -> Void
  private var sent = 0
  private(set) var received: [UInt8] = []
  private(set) var sentRequests = 0
  private(set) var error: (any Error)?
  private var isDone = false

  init(_ stream: TelnetStream, _ bytes: [UInt8], _ done: @escaping () -> Void) {
    (self.stream, self.bytes, self.done) = (stream, bytes, done)
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) { turn() }

  func turn() {
    guard !isDone else { return }
    do {
      var isWriting = true
      while isWriting, sent < bytes.count {
        let run = bytes[sent..<min(sent + 6000, bytes.count)]
        if case .moved(let count) = try stream.write(Array(run)) {
          sent += count
          if stream.send(.baudRate(UInt32(sent))) { sentRequests += 1 }
        } else {
          isWriting = false
        }
      }
      stream.writerWaits = sent < bytes.count ? .writable : []
      while let more = try stream.readSome() { received += more }
      stream.readerWaits = .readable
    } catch { self.error = error }
    if received.count >= bytes.count || error != nil {
      isDone = true
      done()
    }
  }
}
