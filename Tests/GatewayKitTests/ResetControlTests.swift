// A reset recipe on a shared line: which requests reach the port, what waits meanwhile, and `baudway reset`.

import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A reset recipe on a shared line", .timeLimit(.minutes(5)))
struct ResetControlTests {
  private let line = ScriptedLine()
  private let endpoint = ScriptedStream(takesAll: true)

  private func rig(_ recipe: String? = "esp32", writers: Config.Clients.Writers = .all) throws -> HubRig {
    let rig = try HubRig(buffer: 4096, writers: writers, reset: try recipe.map { try ResetRecipe($0) })
    endpoint.serialLine = line
    rig.linkIs(.open)
    rig.hub.attach(endpoint)
    return rig
  }

  private func answerAll() { while line.asked > 0 { line.answer() } }

  private func dtr(_ isOn: Bool) -> ScriptedControlStream.Item { .text(#"{"request":"dtr","on":\#(isOn),"id":1}"#) }
  private func rts(_ isOn: Bool) -> ScriptedControlStream.Item { .text(#"{"request":"rts","on":\#(isOn),"id":2}"#) }
  private let dtrDone = #"{"reply":1,"ok":true}"#
  private let rtsDone = #"{"reply":2,"ok":true}"#
  private var outputs: [String] { line.outputs.map { "\($0.line) \($0.isOn)" } }

  private static func outputs(dtr: Bool, rts: Bool) -> String {
    #"{"event":"outputs","dtr":\#(dtr),"rts":\#(rts),"break":false}"#
  }

  /// Sends the items, and answers each call of the line at once.
  private func send(_ rig: HubRig, _ client: ScriptedControlStream, _ items: ScriptedControlStream.Item...) {
    for item in items {
      rig.send(client, item)
      answerAll()
    }
  }

  @Test("replays the recipe in one go, answers the client's requests at once, and lets nothing in between")
  func replay() throws {
    let rig = try rig()
    let (client, _) = rig.joinControlChannel()
    let other = ScriptedStream()
    rig.join(other)
    send(rig, client, dtr(false), rts(true), dtr(true))
    #expect(outputs == ["dtr false", "rts true"])
    _ = client.news()
    rig.send(client, rts(false))
    let recipe = try ResetRecipe("esp32")
    #expect(line.performed == [recipe.lineSteps] && client.news() == [rtsDone])
    // The rest of the client's sequence needs nothing from the port; bytes and other commands wait.
    rig.send(client, dtr(false), .bytes("sync"), rts(true))
    other.willRead(.bytes(Array("x".utf8)))
    rig.wakeReader(other)
    #expect(client.news() == [dtrDone] && endpoint.written == [] && outputs.count == 2)
    line.answer()
    #expect(rig.resets == ["esp32 1"])
    answerAll()
    #expect(client.news() == [rtsDone] && outputs == ["dtr false", "rts true", "rts true"])
    #expect(Set(endpoint.written) == Set("syncx".utf8) && endpoint.written.count == 5)
  }

  @Test("makes a change that it holds back before the client's bytes, its other commands and its end")
  func heldBack() throws {
    for next in [ScriptedControlStream.Item.bytes("x"), .text(#"{"request":"break","on":true}"#), .end] {
      let line = ScriptedLine()
      let endpoint = ScriptedStream(takesAll: true)
      let rig = try HubRig(buffer: 4096, reset: ResetRecipe("esp32"))
      endpoint.serialLine = line
      rig.linkIs(.open)
      rig.hub.attach(endpoint)
      let (client, session) = rig.joinControlChannel()
      for item in [dtr(false), rts(true), dtr(true)] {
        rig.send(client, item)
        while line.asked > 0 { line.answer() }
      }
      #expect(line.outputs.count == 2)
      if case .end = next { rig.hub.end(session, Ending(.clientLeft)) } else { rig.send(client, next) }
      #expect(line.outputs.count == 3 && line.outputs.last?.isOn == true, "\(next)")
      #expect(endpoint.written == [], "the change comes first")
      while line.asked > 0 { line.answer() }
      if case .bytes = next { #expect(endpoint.written == Array("x".utf8)) }
      if case .text = next { #expect(line.breaks == [true]) }
    }
  }

  @Test("makes a change that it holds back before the client's bytes, also where these are packets")
  func heldBackBeforePacket() throws {
    let rig = try HubRig(buffer: 4096, packets: Config.Packets(max: 1), reset: ResetRecipe("esp32"))
    endpoint.serialLine = line
    rig.linkIs(.open)
    rig.hub.attach(endpoint)
    let (client, _) = rig.joinControlChannel()
    send(rig, client, dtr(false), rts(true), dtr(true))
    rig.send(client, .bytes("x"))
    #expect(outputs == ["dtr false", "rts true", "dtr true"] && endpoint.written == [])
    answerAll()
    #expect(endpoint.written == Array("x".utf8))
  }

  @Test("makes a change that it holds back before bytes that follow a request without a change")
  func heldBackBeforeUnchangedSetting() throws {
    let rig = try rig()
    let (client, _) = rig.joinControlChannel()
    send(rig, client, dtr(false), rts(true), dtr(true))
    rig.send(client, .text(#"{"request":"line","parity":"none"}"#), .bytes("x"))
    #expect(outputs == ["dtr false", "rts true", "dtr true"] && endpoint.written == [])
    answerAll()
    #expect(endpoint.written == Array("x".utf8))
  }

  @Test("makes a change that it holds back before bytes that follow a query, all read while the port was busy")
  func heldBackBeforeQuery() throws {
    let rig = try rig()
    let (client, _) = rig.joinControlChannel()
    send(rig, client, dtr(false))
    rig.send(client, rts(true))
    rig.send(client, dtr(true), .text(#"{"request":"query"}"#), .bytes("x"))
    #expect(outputs == ["dtr false", "rts true"] && endpoint.written == [])
    line.answer()
    #expect(outputs == ["dtr false", "rts true", "dtr true"] && endpoint.written == [], "the change comes first")
    answerAll()
    #expect(endpoint.written == Array("x".utf8))
  }

  @Test("makes a change that it holds back after two seconds, and holds no bytes longer")
  func heldTooLong() throws {
    let rig = try rig()
    let (client, _) = rig.joinControlChannel()
    send(rig, client, dtr(false), rts(true), dtr(true))
    rig.advance(by: .milliseconds(1990))
    #expect(outputs.count == 2)
    rig.advance(by: .milliseconds(20))
    #expect(outputs == ["dtr false", "rts true", "dtr true"])
    answerAll()
    rig.send(client, .bytes("x"))
    #expect(endpoint.written == Array("x".utf8))
  }

  @Test("makes a change that it holds back when another client uses the line")
  func otherClient() throws {
    let rig = try rig(writers: .all)
    let (first, session) = rig.joinControlChannel()
    send(rig, first, dtr(false), rts(true), dtr(true))
    rig.hub.end(session, Ending(.clientLeft))
    answerAll()
    let (second, _) = rig.joinControlChannel()
    send(rig, second, rts(false))
    // The lines are in no step of the recipe: the two clients' changes are not one sequence.
    #expect(outputs == ["dtr false", "rts true", "dtr true", "rts false"] && line.performed == [])
  }

  @Test("leaves a line alone that can't keep times, and a route without a recipe")
  func inactive() throws {
    for keepsTime in [true, false] {
      let line = ScriptedLine()
      line.keepsTime = keepsTime
      let rig = try HubRig(buffer: 4096, reset: keepsTime ? nil : ResetRecipe("esp32"))
      endpoint.serialLine = line
      rig.linkIs(.open)
      rig.hub.attach(endpoint)
      let (client, _) = rig.joinControlChannel()
      for item in [dtr(false), rts(true), dtr(true), rts(false), dtr(false)] {
        rig.send(client, item)
        while line.asked > 0 { line.answer() }
      }
      #expect(line.outputs.count == 5 && line.performed == [])
      _ = rig.hub.detach()
    }
  }

  @Test("answers no request without the port once the port has refused one")
  func noSuchLines() throws {
    let rig = try rig()
    line.sets = .failure(SystemError("ioctl TIOCMBIC", 25))
    let (client, _) = rig.joinControlChannel()
    _ = client.news()
    send(rig, client, dtr(false), rts(true), dtr(true), rts(false), dtr(false))
    #expect(outputs.count == 5 && line.performed == [] && client.news().allSatisfy { $0.contains(#""ok":false"#) })
  }

  @Test("goes on with the clients when the endpoint is lost in the middle")
  func lost() throws {
    let rig = try rig()
    let (client, _) = rig.joinControlChannel()
    send(rig, client, dtr(false), rts(true), dtr(true))
    rig.send(client, rts(false), .bytes("sync"))
    var answers: [Result<Void, LinkRefusal>] = []
    rig.hub.reset(by: try ResetRecipe("avr")) { answers.append($0) }
    rig.hub.detach()?.close()
    #expect(answers.map { $0.text } == ["the link has closed"])
    let next = ScriptedStream(takesAll: true)
    let nextLine = ScriptedLine()
    next.serialLine = nextLine
    rig.hub.attach(next)
    answerAll()  // late answers of the lost port
    #expect(next.written == [])  // the client's DTR comes first
    while nextLine.asked > 0 { nextLine.answer() }
    #expect(next.written == Array("sync".utf8) && rig.resets == [])
  }

  @Test("leaves DTR and RTS as the client has asked for them, once the endpoint is back")
  func backAgain() throws {
    let rig = try rig()
    let (client, _) = rig.joinControlChannel()
    send(rig, client, dtr(false), rts(true), dtr(true), rts(false), dtr(false))
    rig.hub.detach()?.close()
    let next = ScriptedStream(takesAll: true)
    let nextLine = ScriptedLine()
    nextLine.outputStates = ModemOutputStates(dtr: true, rts: true)
    next.serialLine = nextLine
    rig.hub.attach(next)
    while nextLine.asked > 0 { nextLine.answer() }
    // RTS on would keep the board in reset.
    #expect(nextLine.outputStates == ModemOutputStates(dtr: false, rts: false))
  }

  @Test("recognises a sequence that arrives at once, with the bytes after it")
  func atOnce() throws {
    let rig = try rig()
    let (client, _) = rig.joinControlChannel()
    rig.send(client, dtr(false), rts(true), dtr(true), rts(false), dtr(false), .bytes("sync"))
    answerAll()
    #expect(line.performed == [try ResetRecipe("esp32").lineSteps])
    #expect(endpoint.written == Array("sync".utf8))
  }

  @Test("follows a reload")
  func reload() throws {
    let rig = try rig(nil)
    let (client, _) = rig.joinControlChannel()
    var policy = rig.hub.policy
    policy.reset = try ResetRecipe("stm32")
    rig.hub.update(policy)
    send(rig, client, rts(false), dtr(true), dtr(false))
    #expect(line.performed == [try ResetRecipe("stm32").lineSteps] && outputs == ["rts false", "dtr true"])
    policy.reset = nil
    rig.hub.update(policy)
    send(rig, client, dtr(true), dtr(false))
    #expect(line.performed.count == 1 && outputs.suffix(2) == ["dtr true", "dtr false"])
  }

  @Test("reports to the other clients what it leaves of DTR and RTS, and what it makes later")
  func reportsToOthers() throws {
    let rig = try rig()
    let (client, _) = rig.joinControlChannel()
    let (other, _) = rig.joinControlChannel()
    send(rig, client, dtr(false), rts(true), dtr(true))
    _ = (client.news(), other.news())
    send(rig, client, rts(false))
    #expect(client.news() == [rtsDone], "the client knows what it has asked for")
    #expect(other.news() == [Self.outputs(dtr: false, rts: false)])
    send(rig, client, dtr(false), rts(true), dtr(true))
    #expect(other.news().last == Self.outputs(dtr: false, rts: true), "the last change is held back")
    rig.advance(by: .milliseconds(2010))
    answerAll()
    #expect(other.news() == [Self.outputs(dtr: true, rts: true)])
    #expect(!client.news().contains { $0.contains("outputs") })
  }

  // MARK: - By command

  @Test("is carried out by command without any client, and holds the input of clients meanwhile")
  func command() throws {
    let rig = try rig(nil)
    let client = ScriptedStream()
    rig.join(client)
    var answers: [Result<Void, LinkRefusal>] = []
    rig.hub.reset(by: try ResetRecipe("avr")) { answers.append($0) }
    client.willRead(.bytes(Array("x".utf8)))
    rig.wakeReader(client)
    #expect(line.performed == [try ResetRecipe("avr").lineSteps] && endpoint.written == [] && answers.isEmpty)
    answerAll()
    #expect(answers.map { $0.text } == [nil] && endpoint.written == Array("x".utf8) && rig.resets == ["avr command"])
  }

  @Test("reports to all clients what the command leaves of DTR and RTS")
  func commandReports() throws {
    let rig = try rig(nil)
    let (client, _) = rig.joinControlChannel()
    send(rig, client, dtr(true), rts(true))
    _ = client.news()
    rig.hub.reset(by: try ResetRecipe("esp32")) { _ in }
    #expect(client.news() == [])
    answerAll()
    #expect(client.news() == [Self.outputs(dtr: false, rts: false)])
  }

  @Test("comes after a change of a client that is held back")
  func commandAfterHeld() throws {
    let rig = try rig()
    let (client, _) = rig.joinControlChannel()
    send(rig, client, dtr(false), rts(true), dtr(true))
    rig.hub.reset(by: try ResetRecipe("avr")) { _ in }
    #expect(outputs == ["dtr false", "rts true", "dtr true"] && line.performed.count == 1)
    answerAll()
    // The client's sequence is over.
    send(rig, client, rts(false))
    #expect(line.performed.count == 1)
  }

  @Test(
    "is refused with the reason",
    arguments: [
      (25, "the port has no DTR and RTS (ioctl TIOCMBIS: Inappropriate ioctl for device (ENOTTY))"),
      (5, "the port refused: ioctl TIOCMBIS: Input/output error (EIO)"),
    ] as [(Int32, String)])
  func refused(errno: Int32, message: String) throws {
    let rig = try rig(nil)
    line.performs = .failure(SystemError("ioctl TIOCMBIS", errno))
    var answers: [Result<Void, LinkRefusal>] = []
    rig.hub.reset(by: try ResetRecipe("avr")) { answers.append($0) }
    answerAll()
    #expect(answers.map { $0.text } == [message] && rig.resets == ["avr command \(errno)"])
  }

  @Test("is refused where there are no lines to set")
  func noLines() throws {
    var answers: [Result<Void, LinkRefusal>] = []
    let plain = try HubRig()
    plain.linkIs(.open)
    plain.hub.attach(ScriptedStream(takesAll: true))
    plain.hub.reset(by: try ResetRecipe("avr")) { answers.append($0) }
    line.keepsTime = false
    let remote = try rig(nil)
    remote.hub.reset(by: try ResetRecipe("avr")) { answers.append($0) }
    #expect(answers.map { $0.text } == [LinkRefusal.noLine.message, LinkRefusal.elsewhere.message])
  }
}

extension Result where Success == Void, Failure == LinkRefusal {
  /// Nil: success.
  fileprivate var text: String? { if case .failure(let refusal) = self { refusal.message } else { nil } }
}
