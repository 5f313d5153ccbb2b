// rfc2217 and telnet endpoints against a scripted server: what they ask for, what they make of the answers, and servers
// that refuse, keep silent or send nonsense.

import ByteStreams
import Dispatch
import Glibc
import StreamTestKit
import Synchronization
import Testing

@testable import StreamBroker
@testable import StreamBrokerCore
import StreamTelnet

private let broker = Broker(Schemes.standard)

/// Nonsense of every kind between the answers.
private let garbage: [UInt8] =
  [255, 250, 44, 255, 240] + [255, 250, 44, 101, 1, 255, 240] + [255, 250, 24, 0, 120, 255, 240] + [255, 241, 255, 249]
  + [255, 253, 99, 255, 251, 99] + [255, 250, 44, 102, 9, 255, 240] + [255, 250, 44, 105, 99, 255, 240]
  + [255, 250, 44, 1, 0, 0, 0, 0, 255, 240] + [255, 250, 44, 200, 1, 255, 240]

/// A server for one client, and the URL to open it.
private struct Served {
  let url: String
  let end: Task<RFC2217FarEnd, any Error>

  /// `play` runs on a thread of its own once the client has connected.
  init(
    _ query: String = "", scheme: String = "rfc2217", _ manner: RFC2217FarEnd.Manner = .init(),
    _ play: @escaping @Sendable (RFC2217FarEnd) throws -> Void
  ) throws {
    let listener = try LoopbackListener()
    url = "\(scheme)://\(listener.address)\(query)"
    end = Task {
      try await onOwnThread {
        defer { listener.close() }
        let end = RFC2217FarEnd(over: try listener.accept(), manner)
        defer { end.close() }
        try play(end)
        return end
      }
    }
  }

  /// Opens it, and runs `body`. Returns the requests that have come.
  @discardableResult
  func open(
    discardingInput: Bool = false, clock: ManualClock? = nil,
    _ body: @Sendable (any ByteStream, isolated Lane) async throws -> Void = { _, _ in }
  ) async throws -> [LineWord] {
    let lane = try clock?.lane("test") ?? Lane("test")
    defer { lane.stop() }
    try await onLane(lane) { lane in
      let stream = try await broker.open(url, OpenRequest(discardsInput: discardingInput), on: lane)
      defer { stream.close() }
      try await body(stream, lane)
    }
    return try await end.value.requests
  }

  /// The text of the failure to open it.
  func failure() async throws -> String {
    let text = try await onLane { (lane: isolated Lane) async throws -> String in
      do {
        try await broker.open(url, on: lane).close()
        return "it opened"
      } catch { return "\(error)" }
    }
    _ = try? await end.value
    return text
  }
}

extension RFC2217FarEnd {
  /// Answers requests and drops data, until the client has closed: by a reset if an answer reached it that it has not
  /// read.
  fileprivate func answerToEnd() throws {
    do { while !(try receive().isEmpty) {} } catch let error as SystemError
      where [ECONNRESET, EPIPE].contains(error.errno)
    {}
  }
}

extension SerialLine {
  fileprivate func apply(_ settings: LineSettings, on lane: isolated Lane) async throws -> LineSettings {
    try await result(on: lane) { apply(settings, $0) }.get()
  }

  /// Waits for the result of a call.
  fileprivate func result<Answer: Sendable>(
    on lane: isolated Lane, _ call: (@escaping (Result<Answer, SystemError>) -> Void) -> Void
  ) async throws -> Result<Answer, SystemError> {
    var result: Result<Answer, SystemError>?
    let gate = Gate()
    call {
      result = $0
      gate.open()
    }
    await gate.wait(on: lane)
    return try #require(result)
  }
}

@Suite("A remote serial port", .timeLimit(.minutes(5)))
struct RemotePortTests {
  @Test("opens with the settings, DTR and RTS of its URL in force", arguments: [false, true])
  func opening(isSplit: Bool) async throws {
    var manner = RFC2217FarEnd.Manner()
    manner.isSplit = isSplit
    manner.answers = { word in
      switch word {
      case LineWord(0, []): [LineWord(0, Array("ser2net \u{7F}".utf8) + [255])]
      case LineWord(5, 10): [LineWord(5, 11)]  // RTS is on
      default: [word]
      }
    }
    let served = try Served("?baud=57600&data=7&parity=even&stop=2&flow=rtscts&dtr=off", manner) {
      try $0.answerToEnd()
    }
    let requests = try await served.open(discardingInput: true) { stream, _ in
      let line = try #require(stream.serialLine)
      #expect(
        line.settings
          == LineSettings(bitsPerSecond: 57_600, dataBits: 7, parity: .even, stopBits: .two, flowControl: .rtscts))
      #expect(line.outputStates == ModemOutputStates(dtr: false, rts: true))
      #expect(stream.metadata?.facts.name?.hasPrefix("ser2net") == true)
    }
    let settings = [
      LineWord(5, 9), LineWord(1, [0, 0, 0xE1, 0]), LineWord(2, 7), LineWord(3, 3), LineWord(4, 2), LineWord(5, 3),
    ]
    let others = [
      LineWord(0, Array(Version.name.utf8)), LineWord(0, []), LineWord(5, 10), LineWord(10, 0), LineWord(11, 0),
    ]
    #expect(requests == others + settings + [LineWord(12, 1)])
  }

  @Test(
    "reports a setting that is not in force",
    arguments: [
      ("baud=9600", LineWord(1, [0, 0, 0x25, 0x80]), LineWord(1, [0, 1, 0xC2, 0]), "9600 bit/s (it runs at 115200)"),
      ("data=7", LineWord(2, 7), LineWord(2, 8), "7 data bits"),
      ("parity=mark", LineWord(3, 4), LineWord(3, 1), "parity mark"),
      ("stop=2", LineWord(4, 2), LineWord(4, 1), "2 stop bits"),
      ("flow=rtscts", LineWord(5, 3), LineWord(5, 1), "flow control rtscts"),
      ("dtr=on", LineWord(5, 8), LineWord(5, 9), "does not change DTR; a port without this line needs dtr=keep"),
    ])
  func refusals(setting: String, request: LineWord, answer: LineWord, words: String) async throws {
    var manner = RFC2217FarEnd.Manner()
    manner.answers = { [$0 == request ? answer : $0] }
    let text = try await Served("?\(setting)", manner) { try $0.answerToEnd() }.failure()
    #expect(text.contains(words) && text.contains("RFC 2217 to 127.0.0.1:"), "\(text)")
  }

  @Test("opens where the answer is a rate that receivers tolerate")
  func rounded() async throws {
    var manner = RFC2217FarEnd.Manner()
    manner.answers = { [$0.code == 1 ? LineWord(1, [0, 1, 0xC1, 0]) : $0] }
    try await Served("", manner) { try $0.answerToEnd() }.open { stream, _ in
      #expect(stream.serialLine?.settings.bitsPerSecond == 0x1C100)
    }
  }

  @Test("reports a server that refuses RFC 2217, closes or is none, and what to use instead")
  func noServers() async throws {
    var manner = RFC2217FarEnd.Manner()
    manner.options = [0, 3]
    var text = try await Served("", manner) { try $0.answerToEnd() }.failure()
    #expect(text.contains("does not have RFC 2217") && text.contains("telnet:// or tcp://"), "\(text)")
    text = try await Served { try $0.sendRaw(Array("\r\nconsole\r\nPort already in use\r\n".utf8)) }.failure()
    #expect(text.contains("closed the connection") && text.hasSuffix("sent: Port already in use"), "\(text)")
    text = try await Served { try $0.sendRaw(Array("x\u{1B}[2J".utf8)) }.failure()
    #expect(text.hasSuffix("sent: x"), "\(text)")
  }

  @Test("reports a server that keeps silent, within seconds, and what it kept silent about", .waits)
  func silence() async throws {
    var mute = RFC2217FarEnd.Manner()
    mute.isMute = true
    var withoutDTR = RFC2217FarEnd.Manner()
    withoutDTR.answers = { $0 == LineWord(5, 8) ? [] : [$0] }
    var withoutRate = RFC2217FarEnd.Manner()
    withoutRate.answers = { $0.code == 1 ? [] : [$0] }
    async let first = Served("", mute) { try $0.answerToEnd() }.failure()
    async let second = Served("?dtr=on", withoutDTR) { try $0.answerToEnd() }.failure()
    async let third = Served("", withoutRate) { try $0.answerToEnd() }.failure()
    let texts = try await [first, second, third]
    #expect(texts[0].contains("does not answer as RFC 2217 requires"), "\(texts[0])")
    #expect(texts[1].contains("ETIMEDOUT") && texts[1].contains("try dtr=keep"), "\(texts[1])")
    #expect(texts[2].contains("ETIMEDOUT"), "\(texts[2])")
  }

  @Test("has what others change at a gateway, which is no answer to its own request")
  func changedElsewhere() async throws {
    let (asked, told) = (LineWord(1, [0, 0, 1, 44]), LineWord(1, [0, 0, 0x12, 0xC0]))
    var manner = RFC2217FarEnd.Manner()
    manner.answers = { $0 == asked ? [] : $0.code == 0 ? [] : [$0] }
    let served = try Served("?baud=9600", manner) { end in
      try end.await(1, count: 2)
      try end.report(told)
      try end.report(LineWord(5, 8))
      try end.tell(asked)
      try end.answerToEnd()
    }
    try await served.open { stream, lane in
      let line = try #require(stream.serialLine)
      var changes: [(UInt32, Bool?)] = []
      line.observe { changes.append((line.settings.bitsPerSecond, line.outputStates.dtr)) }
      let inForce = try await line.apply(LineSettings(bitsPerSecond: 300), on: lane)
      #expect(inForce.bitsPerSecond == 300 && line.settings.bitsPerSecond == 300)
      #expect(changes.count == 2 && changes[1].1 == true)
    }
  }

  @Test("keeps data from before its opening, or drops it if that is asked for", arguments: [false, true])
  func earlyData(discards: Bool) async throws {
    let served = try Served { end in
      try end.send(Array("early ".utf8) + [255])
      try end.await(5, count: 3)
      try end.await(1)
      if discards { try end.await(12) }
      try end.receive().forEach { _ in }
      try end.send(Array("late".utf8))
      try end.answerToEnd()
    }
    try await served.open(discardingInput: discards) { stream, lane in
      try await stream.writeAll([1], on: lane)
      let expected = discards ? Array("late".utf8) : Array("early ".utf8) + [255] + Array("late".utf8)
      #expect(try await stream.read(exactly: expected.count, on: lane) == expected)
    }
  }

  @Test("finds answers among nonsense and notifications, and lets none of it into the data")
  func nonsense() async throws {
    var manner = RFC2217FarEnd.Manner()
    manner.answers = { $0.code == 0 ? [] : [LineWord(7, 0xB0), LineWord(6, 0x10), $0] }
    let served = try Served("?baud=9600", manner) { end in
      try end.sendRaw(garbage)
      try end.await(4)
      try end.sendRaw(garbage)
      try end.send(try end.receive())
      try end.sendRaw(garbage)
      try end.answerToEnd()
    }
    try await served.open { stream, lane in
      try await stream.writeAll([255, 0, 13, 10, 13], on: lane)
      #expect(try await stream.read(exactly: 5, on: lane) == [255, 0, 13, 10, 13])
      #expect(stream.serialLine?.settings.parity == LineSettings.Parity.none)
    }
  }

  @Test("is cut off from a server whose subnegotiation has no end")
  func endless() async throws {
    let served = try Served { end in
      try? end.sendRaw([255, 250, 44] + [UInt8](repeating: 1, count: 100_000))
      _ = try? end.answerToEnd()
    }
    let text = try await served.failure()
    #expect(text.contains("does not end") || text.contains("closed"), "\(text)")
  }
}

@Suite("The line of a remote serial port", .timeLimit(.minutes(5)))
struct RemoteLineTests {
  @Test("sends the settings that differ, and reports those in force")
  func changes() async throws {
    var manner = RFC2217FarEnd.Manner()
    manner.answers = { $0.code == 0 ? [] : [$0 == LineWord(4, 2) ? LineWord(4, 1) : $0] }
    let served = try Served("?baud=9600", manner) { try $0.answerToEnd() }
    let requests = try await served.open { stream, lane in
      let line = try #require(stream.serialLine)
      var wanted = line.settings
      #expect(try await line.apply(wanted, on: lane) == wanted)
      wanted.bitsPerSecond = 19_200
      wanted.stopBits = .two
      var inForce = wanted
      inForce.stopBits = .one
      #expect(try await line.apply(wanted, on: lane) == inForce)
      #expect(line.settings == inForce)
    }
    #expect(requests.suffix(3) == [LineWord(5, 1), LineWord(1, [0, 0, 0x4B, 0]), LineWord(4, 2)])
  }

  @Test("sets DTR, RTS and break, purges, and reports a refusal")
  func outputs() async throws {
    var manner = RFC2217FarEnd.Manner()
    manner.answers = { [$0 == LineWord(5, 11) ? LineWord(5, 12) : $0] }
    let served = try Served("", manner) { try $0.answerToEnd() }
    let requests = try await served.open { stream, lane in
      let line = try #require(stream.serialLine)
      try await line.result(on: lane) { line.set(.dtr, true, $0) }.get()
      let refused = try await line.result(on: lane) { line.set(.rts, true, $0) }.error
      #expect(refused == SystemError("SET-CONTROL", EPERM) && refused?.isUnsupported == false)
      #expect(line.outputStates == ModemOutputStates(dtr: true, rts: false))
      try await line.result(on: lane) { line.setBreak(true, $0) }.get()
      try await line.result(on: lane) { line.setBreak(false, $0) }.get()
      try await line.result(on: lane) { line.purge(.both, $0) }.get()
      #expect(try await line.result(on: lane) { line.unsent($0) }.get() == 0)
    }
    let expected = [LineWord(5, 8), LineWord(5, 11), LineWord(5, 5), LineWord(5, 6), LineWord(12, 3)]
    #expect(Array(requests.suffix(5)) == expected)
  }

  @Test("takes other answers while one is missing, and gives that request up after seconds")
  func missingAnswer() async throws {
    var manner = RFC2217FarEnd.Manner()
    manner.answers = { $0.code == 5 && (7...9).contains($0.value[0]) ? [] : [$0] }
    let clock = ManualClock()
    try await Served("", manner) { try $0.answerToEnd() }.open(clock: clock) { stream, lane in
      let line = try #require(stream.serialLine)
      var dtr: Result<Void, SystemError>?
      let gate = Gate()
      line.set(.dtr, true) {
        dtr = $0
        gate.open()
      }
      try await line.result(on: lane) { line.set(.rts, true, $0) }.get()
      #expect(try await line.apply(LineSettings(bitsPerSecond: 300), on: lane).bitsPerSecond == 300)
      #expect(dtr == nil)
      let passing = clock.passes()
      await gate.wait(on: lane)
      passing.cancel()
      #expect(throws: SystemError("SET-CONTROL", ETIMEDOUT)) { try dtr?.get() }
      #expect(line.outputStates.dtr == nil)
    }
  }

  @Test("gets answers though nobody reads the stream, and keeps the data before them in order")
  func readAhead() async throws {
    let data = (0..<40_000).map { UInt8(truncatingIfNeeded: $0 &* 7) }
    let served = try Served { end in
      try end.await(4)
      try end.await(5, count: 3)
      try end.send(data)
      try end.answerToEnd()
    }
    try await served.open { stream, lane in
      let line = try #require(stream.serialLine)
      #expect(try await line.apply(LineSettings(bitsPerSecond: 300), on: lane).bitsPerSecond == 300)
      #expect(try await stream.read(exactly: data.count, on: lane) == data)
    }
  }

  @Test("watches modem lines and errors while somebody wants it")
  func watching() async throws {
    let served = try Served { end in
      try end.await(10, count: 2)
      try end.await(7)
      try end.tell(LineWord(7, 0x30))
      try end.await(1, count: 2)  // the first state has been reported
      for word in [LineWord(6, 0x1E), LineWord(6, 0x10), LineWord(7, 0xB8), LineWord(7, 0x3A)] { try end.tell(word) }
      try end.answerToEnd()
    }
    let requests = try await served.open { stream, lane in
      let line = try #require(stream.serialLine)
      let (reports, feed) = AsyncStream.makeStream(of: LineCondition.self)
      line.watch { if case .success(let condition) = $0 { feed.yield(condition) } }
      var iterator = reports.makeAsyncIterator()
      #expect(await iterator.next(isolation: lane) == LineCondition(inputs: [.cts, .dsr], counts: LineCounts()))
      _ = try await line.apply(LineSettings(bitsPerSecond: 300), on: lane)
      var last = await iterator.next(isolation: lane)
      while last?.changes != 3 { last = await iterator.next(isolation: lane) }
      let counts = LineCounts(breaks: 2, framing: 1, parity: 1, overruns: 1)
      #expect(last == LineCondition(inputs: [.cts, .dsr], counts: counts, changes: 3))
      line.endWatch()
      try await line.result(on: lane) { line.purge(.input, $0) }.get()
    }
    #expect(requests.contains(LineWord(10, 0x1E)) && requests.contains(LineWord(11, 255)))
    #expect(Array(requests.suffix(3)) == [LineWord(10, 0), LineWord(11, 0), LineWord(12, 1)])
  }

  @Test("reports a state to its observer where the server sends none")
  func noModemLines() async throws {
    try await Served { try $0.answerToEnd() }.open { stream, lane in
      let line = try #require(stream.serialLine)
      let (reports, feed) = AsyncStream.makeStream(of: LineCondition.self)
      line.watch { if case .success(let condition) = $0 { feed.yield(condition) } }
      var iterator = reports.makeAsyncIterator()
      #expect(await iterator.next(isolation: lane) == LineCondition(counts: LineCounts()))
    }
  }

  @Test("follows changes that the server reports unasked, and tells the server who asks who we are")
  func unasked() async throws {
    let told = DispatchSemaphore(value: 0)
    let served = try Served { end in
      try end.await(4)
      try end.await(5, count: 3)
      for word in [LineWord(1, [0, 0, 1, 44]), LineWord(5, 12), LineWord(0, [])] { try end.tell(word) }
      try end.await(0, count: 2)
      try end.send([1])
      told.signal()
      try end.answerToEnd()
    }
    let requests = try await served.open { stream, lane in
      let came = try await stream.read(exactly: 1, on: lane)
      #expect(came == [1])
      #expect(stream.serialLine?.settings.bitsPerSecond == 300 && stream.serialLine?.outputStates.rts == false)
    }
    #expect(requests.last == LineWord(0, Array(Version.name.utf8)))
  }

  @Test("fails on a closed stream, and reports that later")
  func closed() async throws {
    try await Served { try $0.answerToEnd() }.open { stream, lane in
      let line = try #require(stream.serialLine)
      stream.close()
      let failure = SystemError("write", EPIPE)
      let errors = [
        try await line.result(on: lane) { line.set(.dtr, true, $0) }.error,
        try await line.result(on: lane) { line.apply(LineSettings(), $0) }.error,
        try await line.result(on: lane) { line.unsent($0) }.error,
      ]
      #expect(errors == [failure, failure, failure])
      line.watch { _ in Issue.record("a report of a closed stream") }
    }
  }
}

extension Result where Failure == SystemError {
  fileprivate var error: SystemError? { if case .failure(let error) = self { error } else { nil } }
}

@Suite("A telnet endpoint", .timeLimit(.minutes(5)))
struct TelnetEndpointTests {
  @Test("sends bytes unchanged from the first one on")
  func binary() async throws {
    let bytes = [13] + (0...255).map { UInt8($0) } + [13, 0, 13, 10, 255, 255, 13]
    let served = try Served(scheme: "telnet") { end in
      var received: [UInt8] = []
      while received.count < bytes.count { received += try end.receive() }
      #expect(received == bytes)
      try end.send(bytes)
      try end.answerToEnd()
    }
    try await served.open { stream, lane in
      #expect(stream.serialLine == nil)
      try await stream.writeAll(bytes, on: lane)
      #expect(try await stream.read(exactly: bytes.count, on: lane) == bytes)
    }
  }

  @Test("delivers everything that came while it opened, however much")
  func muchEarlyData() async throws {
    let bytes = (0..<100_000).map { UInt8(32 + $0 % 89) }
    var manner = RFC2217FarEnd.Manner()
    manner.isMute = true
    let served = try Served(scheme: "telnet", manner) { end in
      try end.send(bytes)
      end.finishWriting()
      try end.answerToEnd()
    }
    try await served.open { stream, lane in
      let received = try await stream.readToEnd(on: lane)
      #expect(received == bytes)
    }
  }

  @Test(
    "opens where the server has no options, and follows the rules for CR if it refuses them", arguments: [false, true])
  func text(isMute: Bool) async throws {
    var manner = RFC2217FarEnd.Manner()
    manner.options = []
    manner.isMute = isMute
    let served = try Served(scheme: "telnet", manner) { end in
      #expect(try end.receive() == (isMute ? [13, 65, 13, 10] : [13, 0, 65, 13, 10]))
      try end.send([13, 0, 66])
      try end.answerToEnd()
    }
    try await served.open { stream, lane in
      try await stream.writeAll([13, 65, 13, 10], on: lane)
      #expect(try await stream.read(exactly: 2, on: lane) == [13, 66])
    }
  }
}
