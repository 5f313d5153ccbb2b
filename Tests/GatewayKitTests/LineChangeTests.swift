// Changes of an open port by an administrator: line settings, outputs, breaks, and the writer role.

import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A line that an administrator changes", .timeLimit(.minutes(5)))
struct LineChangeTests {
  private let line = ScriptedLine()
  private let endpoint = ScriptedStream(takesAll: true)

  private func rig() throws -> HubRig {
    let rig = try HubRig(buffer: 4096)
    endpoint.serialLine = line
    rig.linkIs(.open)
    rig.hub.attach(endpoint)
    return rig
  }

  private final class Answers {
    var all: [Result<LineSettings, LinkRefusal>] = []
    var refusal: String? { if case .failure(let refusal)? = all.first { refusal.message } else { nil } }
  }

  private func change(_ rig: HubRig, _ text: String) throws -> Answers {
    let answers = Answers()
    rig.hub.change(by: try LineAsk(try JSONReader.read(text.utf8))) { answers.all.append($0) }
    return answers
  }

  private func answerAll() { while line.asked > 0 { line.answer() } }

  @Test("is changed step by step, while input waits; clients hear of it")
  func changes() throws {
    let rig = try rig()
    let (watcher, _) = rig.joinControlChannel()
    _ = watcher.news()
    let client = ScriptedStream(reads: [.bytes([1])])
    rig.join(client)
    let answers = try change(rig, #"{"rts":false,"baud":19200,"dtr":true}"#)
    rig.wakeReader(client)
    #expect(endpoint.written == [] && answers.all.isEmpty)
    answerAll()
    #expect(line.applied == [LineSettings(bitsPerSecond: 19_200)] && line.outputs.map(\.isOn) == [true, false])
    #expect(answers.all == [.success(LineSettings(bitsPerSecond: 19_200))] && endpoint.written == [1])
    let news = watcher.news()
    #expect(news.contains { $0.contains(#""baud":19200"#) } && news.contains { $0.contains(#""dtr":true"#) }, "\(news)")
  }

  @Test("keeps the setting when a client that has set another one ends")
  func lasts() throws {
    let rig = try rig()
    let (client, session) = rig.joinControlChannel()
    _ = try change(rig, #"{"baud":19200}"#)
    answerAll()
    rig.send(client, .text(#"{"request":"line","baud":300}"#))
    answerAll()
    #expect(line.settings.bitsPerSecond == 300)
    rig.hub.end(session, Ending(.clientLeft))
    answerAll()
    #expect(line.settings.bitsPerSecond == 19_200)
  }

  @Test("has a break of the length that was asked for")
  func breaks() throws {
    let rig = try rig()
    let answers = try change(rig, #"{"break":250}"#)
    answerAll()
    #expect(line.breaks == [true] && answers.all.isEmpty)
    rig.advance(by: .milliseconds(250))
    answerAll()
    #expect(line.breaks == [true, false] && answers.all.count == 1)
  }

  @Test("says what the port refuses, makes no further change, and takes input again")
  func refuses() throws {
    let rig = try rig()
    line.takes = { _ in .failure(SystemError("tcsetattr", 22)) }
    let client = ScriptedStream(reads: [.bytes([1])])
    rig.join(client)
    let answers = try change(rig, #"{"baud":19200,"dtr":true}"#)
    answerAll()
    rig.wakeReader(client)
    #expect(answers.refusal == SystemError("tcsetattr", 22).text && line.outputs.isEmpty && endpoint.written == [1])
  }

  @Test("says so when the link closes meanwhile, or has no line at all")
  func gone() throws {
    let rig = try rig()
    let answers = try change(rig, #"{"baud":19200}"#)
    rig.hub.detach()?.close()
    answerAll()
    #expect(answers.refusal == "the link has closed")
    let plain = try HubRig(buffer: 4096)
    plain.hub.attach(ScriptedStream())
    #expect(try change(plain, #"{"dtr":true}"#).refusal == "this endpoint has no serial line")
  }
}

@Suite("The writer role, when an administrator gives and takes it,", .timeLimit(.minutes(5)))
struct WriterGiftTests {
  @Test("moves to the session, whatever the takeover is; monitors and others never get it")
  func moves() throws {
    let rig = try HubRig(writers: .one)
    let (first, second) = (ScriptedStream(), ScriptedStream())
    let (holder, other) = (rig.join(first), rig.join(second))
    let monitor = rig.join(ScriptedStream(), role: .monitor)
    let endpoint = ScriptedStream(takesAll: true)
    rig.hub.attach(endpoint)
    #expect(rig.hub.upstream.giveRole(to: other.number) == nil && rig.hub.upstream.writer === other)
    for (client, byte) in [(first, 1), (second, 2)] {
      client.willRead(.bytes([UInt8(byte)]))
      rig.wakeReader(client)
    }
    #expect(endpoint.written == [2] && holder.dropped == 1)
    #expect(rig.hub.upstream.giveRole(to: monitor.number)?.contains("monitor") == true)
    #expect(rig.hub.upstream.giveRole(to: 999) == "there is no session 999")
    #expect(rig.hub.upstream.writer === other)
  }

  @Test("is nobody's after it was taken, until a new client comes")
  func taken() throws {
    let rig = try HubRig(writers: .one)
    let first = ScriptedStream()
    let holder = rig.join(first)
    let endpoint = ScriptedStream(takesAll: true)
    rig.hub.attach(endpoint)
    #expect(rig.hub.upstream.giveRole(to: nil) == nil && rig.hub.upstream.writer == nil)
    first.willRead(.bytes([1]))
    rig.wakeReader(first)
    #expect(endpoint.written == [] && holder.dropped == 1)
    let next = rig.join(ScriptedStream())
    #expect(rig.hub.upstream.writer === next)
  }

  @Test("does not exist where all clients may write")
  func none() throws {
    let rig = try HubRig(writers: .all)
    let session = rig.join(ScriptedStream())
    #expect(rig.hub.upstream.giveRole(to: session.number)?.contains("'clients.writers' is all") == true)
  }
}
