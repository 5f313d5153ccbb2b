// A device's identity: one request after the other, and any messages that arrive in between.

import ByteStreams
import StreamTestKit
import Testing

@testable import StreamBrokerBluetooth

@Suite("The identity of a device")
struct GATTIdentityTests {
  private func message(_ bytes: [UInt8]) throws -> ATTMessage { try ATTMessage(bytes[...]) }
  private func value(_ text: String) throws -> ATTMessage {
    try message([0x09, UInt8(text.utf8.count + 2), 3, 0] + Array(text.utf8))
  }
  private func takes(_ identity: inout GATTIdentity, _ message: ATTMessage) -> Bool { identity.handle(message) }
  private func refusal() throws -> ATTMessage { try message([0x01, 0x08, 1, 0, 0x0A]) }

  @Test("is requested one question at a time, and complete when all are answered")
  func all() throws {
    var identity = GATTIdentity(mtu: 517)
    let answers = ["HMSoft", "ACME\0\0", "X 1", "42", "1.2 "]
    for (number, answer) in zip([0x00, 0x29, 0x24, 0x25, 0x26] as [UInt8], answers) {
      #expect(!identity.isOver && !identity.isAsking)
      let question = identity.ask()
      #expect(question == [0x08, 1, 0, 0xFF, 0xFF, number, 0x2A])
      #expect(identity.isAsking)
      let second = identity.ask()
      #expect(second == nil)
      let answer = try value(answer)
      #expect(takes(&identity, answer))
      let late = try value("late")
      #expect(!takes(&identity, late))
    }
    let none = identity.ask()
    #expect(identity.isOver && none == nil)
    var wanted = DeviceFacts()
    (wanted.name, wanted.manufacturer, wanted.model) = ("HMSoft", "ACME", "X 1")
    (wanted.serialNumber, wanted.firmware) = ("42", "1.2")
    #expect(identity.facts == wanted)
  }

  @Test("stays unknown if a device refuses or is silent, and the requests end")
  func none() throws {
    var identity = GATTIdentity(mtu: 517)
    var questions = 0
    while identity.ask() != nil {
      questions += 1
      let answer = try questions.isMultiple(of: 2) ? refusal() : value("")
      #expect(takes(&identity, answer))
    }
    #expect(questions == 5 && identity.facts.isEmpty && identity.isOver)
  }

  @Test("ignores other messages, before, between and after")
  func others() throws {
    var identity = GATTIdentity(mtu: 517)
    let (early, refused) = (try value("early"), try refusal())
    #expect(!takes(&identity, early))
    #expect(!takes(&identity, refused))
    _ = identity.ask()
    for bytes in [[0x13], [0x1B, 1, 0, 0x41], [0x01, 0x12, 1, 0, 0x0A], [0x03, 23, 0], [0x02, 23, 0]] as [[UInt8]] {
      let other = try message(bytes)
      #expect(!takes(&identity, other))
    }
    #expect(identity.isAsking && identity.facts.isEmpty)
  }

  /// A device that gives `text` in every answer, as far as its MTU allows.
  private func reported(
    _ text: String, mtu: Int, known: String? = nil, refusing: Set<UInt8> = [], because code: UInt8 = 0x0B
  ) throws -> (facts: DeviceFacts, questions: [UInt8]) {
    var identity = GATTIdentity(mtu: mtu, knownName: known)
    var questions: [UInt8] = []
    let value = Array(text.utf8)
    while let question = identity.ask() {
      questions.append(question[0])
      let offset = question[0] == 0x0C ? Int(question[3]) | Int(question[4]) << 8 : 0
      if question[0] != 0x08 { #expect(question[1...2] == [3, 0]) }
      let answer: [UInt8] =
        if refusing.contains(question[0]) { [0x01, question[0], 3, 0, code] } else if question[0] == 0x08 {
          [0x09, UInt8(min(mtu - 4, value.count) + 2), 3, 0] + value.prefix(mtu - 4)
        } else { [question[0] + 1] + value.dropFirst(offset).prefix(mtu - 1) }
      let said = try message(answer)
      #expect(takes(&identity, said))
      try #require(questions.count < 1000)
    }
    return (identity.facts, questions)
  }

  @Test(
    "continues reading a text that may be longer, to its end", arguments: [18, 19, 20, 21, 22, 23, 43, 44, 45, 66, 128])
  func long(count: Int) throws {
    let text = "The.serial.number.0123456789".cycled(to: count)
    let (facts, questions) = try reported(text, mtu: 23)
    #expect(facts.serialNumber == text && facts.name == text && facts.firmware == text)
    #expect(questions.count == 5 * (count < 19 ? 1 : 2 + count / 22))
  }

  @Test("treats a value as complete if the device has no more, and as missing if it can't be read, except a name")
  func cut() throws {
    let text = "Büro: a thermometer no 4"
    let refused = try reported(String(text.prefix(21)), mtu: 23, refusing: [0x0C]).facts
    #expect(refused.serialNumber == String(text.prefix(21)))
    for (known, wanted) in [(text, nil), (nil, "Büro: a thermomete"), ("another", "Büro: a thermomete")]
      as [(String?, String?)]
    {
      var facts = DeviceFacts()
      facts.name = wanted
      #expect(try reported(text, mtu: 23, known: known, refusing: [0x0A]).facts == facts)
    }
  }

  @Test(
    "reports no partial serial number if the device refuses to send the rest", arguments: [0x02, 0x06, 0x08] as [UInt8])
  func half(code: UInt8) throws {
    let text = "0123456789".cycled(to: 40)
    var name = DeviceFacts()
    name.name = String(text.prefix(22))
    #expect(try reported(text, mtu: 23, refusing: [0x0C], because: code).facts == name)
    #expect(
      try reported(String(text.prefix(22)), mtu: 23, refusing: [0x0C], because: 0x07).facts.serialNumber?.count == 22)
  }

  @Test("stops reading at the length that would be kept")
  func endless() throws {
    #expect(try reported(String(repeating: "x", count: 2000), mtu: 23).questions.count == 5 * 7)
    #expect(try reported("42" + String(repeating: "\0", count: 500), mtu: 23).questions.count == 5 * 2)
    let long = String(repeating: "ü", count: 200)
    #expect(try reported(long, mtu: 23).facts.serialNumber == String(long.prefix(128)))
    let blank = String(repeating: " ", count: 30) + long
    #expect(try reported(blank, mtu: 23).facts.serialNumber == String(long.prefix(128)))
    // Requests end also where the answer is not text.
    var identity = GATTIdentity(mtu: 23)
    var questions = 0
    while let question = identity.ask() {
      questions += 1
      let rest = [UInt8](repeating: 0x80, count: question[0] == 0x08 ? 19 : 22)
      let said = try message((question[0] == 0x08 ? [0x09, 21, 3, 0] : [question[0] + 1]) + rest)
      #expect(takes(&identity, said))
    }
    #expect(questions == 5 * 25)
  }
}

extension String {
  fileprivate func cycled(to count: Int) -> String {
    String(decoding: (0..<count).map { Array(utf8)[$0 % utf8.count] }, as: UTF8.self)
  }
}

@Suite("A stream over GATT that asks who the device is", .timeLimit(.minutes(5)))
struct GATTStreamIdentityTests {
  private typealias Device = GATTStreamTests.Device

  private func write(_ stream: GATTStream, _ bytes: [UInt8]) throws -> Transfer {
    try bytes.withUnsafeBytes { try stream.write($0) }
  }

  /// Reads the available bytes, and lets the poller report more.
  private func read(_ stream: GATTStream) throws -> [UInt8] {
    var bytes = [UInt8](repeating: 0, count: 4096)
    let transfer = try bytes.withUnsafeMutableBytes { try stream.read(into: $0) }
    if case .moved(let count) = transfer { return Array(bytes[..<count]) }
    return []
  }

  /// The next message from the stream; the device waits for it.
  private func handle(_ device: Device, on lane: isolated Lane) async throws -> [UInt8] {
    for _ in 0..<20_000 {
      if let message = device.handle() { return message }
      let gate = Gate()
      lane.poller.timers.after(.milliseconds(1)) { gate.open() }
      await gate.wait(on: lane)
    }
    Issue.record("nothing was said")
    return []
  }

  @Test("receives it between the bytes, and reports it as a whole")
  func beside() async throws {
    try await onLane { lane in
      let (stream, device) = try GATTStreamTests.pair(on: lane.poller)
      defer { stream.close() }
      var received: [UInt8] = []
      stream.delegate = EventRecorder { event in
        if event == .hasBytesAvailable { received += (try? read(stream)) ?? [] }
      }
      stream.readerWaits = .readable
      var reported = 0
      stream.metadata?.changed = { reported += 1 }
      stream.askIdentity()
      for (type, text) in zip([0x00, 0x29, 0x24, 0x25, 0x26] as [UInt8], ["HM", "ACME", "X", "", "1.2"]) {
        #expect(try await handle(device, on: lane) == [0x08, 1, 0, 0xFF, 0xFF, type, 0x2A])
        #expect(try write(stream, [type]) == .moved(1))  // write commands need not wait
        #expect(try await handle(device, on: lane) == [0x52, 14, 0, type])
        #expect(reported == 0)
        try device.say([0x1B, 12, 0, type])
        try device.say(
          text.isEmpty ? [0x01, 0x08, 1, 0, 0x0A] : [0x09, UInt8(text.utf8.count + 2), 3, 0] + Array(text.utf8))
      }
      let gate = Gate()
      stream.metadata?.changed = { gate.open() }
      if reported == 0, stream.metadata?.facts.name == nil { await gate.wait(on: lane) }
      #expect(received == [0x00, 0x29, 0x24, 0x25, 0x26])
      let facts = stream.metadata?.facts
      #expect(facts?.name == "HM" && facts?.manufacturer == "ACME" && facts?.model == "X" && facts?.firmware == "1.2")
      #expect(facts?.serialNumber == nil)
    }
  }

  @Test("alternates with confirmed writes, and never has two pending requests")
  func turns() async throws {
    try await onLane { lane in
      var plan = GATTStreamTests.plan
      plan.asksForAnswers = true
      let (stream, device) = try GATTStreamTests.pair(plan, on: lane.poller)
      defer { stream.close() }
      var written = 0
      stream.delegate = EventRecorder { event in
        if event == .hasBytesAvailable { _ = try? read(stream) }
        if event == .hasSpaceAvailable, case .moved? = try? write(stream, [7]) { written += 1 }
      }
      stream.readerWaits = .readable
      stream.writerWaits = .writable
      stream.askIdentity()
      var asked = 0
      for _ in 0..<20 {
        let message = try await handle(device, on: lane)
        #expect(device.handle() == nil, "two at once")
        if message.first == 0x08 { asked += 1 }
        try device.say(message.first == 0x08 ? [0x01, 0x08, 1, 0, 0x0A] : [0x13])
      }
      #expect(asked == 5 && written >= 15)
    }
  }
}
