// Options: each state with each word, and two ends that must come to rest.

import StreamTestKit
import Testing

@testable import StreamTelnet

@Suite("A telnet negotiation", .timeLimit(.minutes(5)))
struct NegotiationTests {
  typealias Side = TelnetNegotiation.Side
  typealias State = TelnetNegotiation.State

  /// The words of RFC 854 about an option that `side` performs: what the other end says, and what we say.
  private struct Words {
    let theirYes: TelnetCommand, theirNo: TelnetCommand, ourYes: UInt8, ourNo: UInt8
    init(_ side: Side) {
      (theirYes, theirNo) = side == .local ? (.do, .dont) : (.will, .wont)
      (ourYes, ourNo) = side == .local ? (251, 252) : (253, 254)
    }
  }

  private func negotiation(in state: State, _ option: TelnetOption, _ side: Side) -> TelnetNegotiation {
    var (negotiation, dropped) = (TelnetNegotiation(.server(comPort: true)), [UInt8]())
    let words = Words(side)
    switch state {
    case .off: break
    case .asked: negotiation.ask(for: option, side, &dropped)
    case .on: negotiation.receive(words.theirYes, option.rawValue, &dropped)
    case .refused:
      negotiation.ask(for: option, side, &dropped)
      negotiation.receive(words.theirNo, option.rawValue, &dropped)
    }
    #expect(negotiation.state(of: option, side) == state)
    return negotiation
  }

  @Test(
    "answers as RFC 1143 says, in each state",
    arguments: [
      (.off, true, .on, true), (.off, false, .off, false), (.asked, true, .on, false), (.asked, false, .refused, false),
      (.on, true, .on, false), (.on, false, .off, true), (.refused, true, .on, true),
      (.refused, false, .refused, false),
    ] as [(State, Bool, State, Bool)])
  func table(before: State, agrees: Bool, after: State, isAnswered: Bool) {
    for side in [Side.local, .remote] {
      let words = Words(side)
      for option in [TelnetOption.binary, .suppressGoAhead, .comPort] {
        var negotiation = negotiation(in: before, option, side)
        var answer: [UInt8] = []
        negotiation.receive(agrees ? words.theirYes : words.theirNo, option.rawValue, &answer)
        #expect(negotiation.state(of: option, side) == after)
        #expect(answer == (isAnswered ? [255, agrees ? words.ourYes : words.ourNo, option.rawValue] : []))
        // The other direction is another option.
        #expect(negotiation.state(of: option, side == .local ? .remote : .local) == .off)
      }
    }
  }

  @Test("asks only for what is off", arguments: [.off, .asked, .on, .refused] as [State])
  func asking(before: State) {
    for side in [Side.local, .remote] {
      var negotiation = negotiation(in: before, .binary, side)
      var question: [UInt8] = []
      negotiation.ask(for: .binary, side, &question)
      #expect(question == (before == .off ? [255, Words(side).ourYes, 0] : []))
      #expect(negotiation.state(of: .binary, side) == (before == .off ? .asked : before))
    }
  }

  @Test("refuses each option that it does not have, and never says so unasked")
  func unknown() {
    var negotiation = TelnetNegotiation(.client(comPort: false))
    for option in UInt8.min...UInt8.max where ![0, 1, 3].contains(option) {
      var answer: [UInt8] = []
      negotiation.receive(.do, option, &answer)
      negotiation.receive(.will, option, &answer)
      #expect(answer == Wire.wont(option) + Wire.dont(option))
      answer = []
      negotiation.receive(.dont, option, &answer)
      negotiation.receive(.wont, option, &answer)
      #expect(answer.isEmpty)
    }
    // ECHO is for one direction.
    var answer: [UInt8] = []
    negotiation.receive(.do, 1, &answer)
    negotiation.receive(.will, 1, &answer)
    #expect(answer == Wire.wont(1) + Wire.do(1))
    var server = TelnetNegotiation(.server(comPort: false))
    answer = []
    server.receive(.do, 1, &answer)
    server.receive(.will, 1, &answer)
    #expect(answer == Wire.will(1) + Wire.dont(1))
  }

  @Test("asks for everything but the other side's ECHO")
  func questions() {
    var (server, client) = (TelnetNegotiation(.server(comPort: true)), TelnetNegotiation(.client(comPort: true)))
    var asked: [UInt8] = []
    server.askForAll(&asked)
    let both = Wire.do(0) + Wire.do(3) + Wire.do(44)
    #expect(asked == Wire.will(0) + Wire.will(1) + Wire.will(3) + Wire.will(44) + both)
    asked = []
    client.askForAll(&asked)
    #expect(asked == Wire.will(0) + Wire.will(3) + Wire.will(44) + both)
    client.askForAll(&asked)
    #expect(asked.count == 18)
  }

  // MARK: - Two ends

  /// One end, and what is on its way to the other.
  private struct End {
    var negotiation: TelnetNegotiation
    var sent: [[UInt8]] = []

    init(_ policy: TelnetNegotiation.Policy) { negotiation = TelnetNegotiation(policy) }

    mutating func ask() {
      var bytes: [UInt8] = []
      negotiation.askForAll(&bytes)
      send(bytes)
    }
    mutating func receive(_ message: [UInt8]) {
      guard let verb = TelnetCommand(rawValue: message[1]) else { return }
      var bytes: [UInt8] = []
      negotiation.receive(verb, message[2], &bytes)
      send(bytes)
    }
    private mutating func send(_ bytes: [UInt8]) {
      for start in stride(from: 0, to: bytes.count, by: 3) { sent.append(Array(bytes[start..<start + 3])) }
    }
  }

  private static func subset(_ bits: Int) -> Set<TelnetOption> {
    Set(TelnetOption.allCases.enumerated().filter { bits & (1 << $0.offset) != 0 }.map(\.element))
  }

  private static func policy(local: Int, remote: Int) -> TelnetNegotiation.Policy {
    var policy = TelnetNegotiation.Policy.server(comPort: true)
    policy.local = subset(local)
    policy.remote = subset(remote)
    return policy
  }

  /// Both ask at some moment, or one does; words arrive in order, but between the directions in any.
  private func run(
    _ one: TelnetNegotiation.Policy, _ other: TelnetNegotiation.Policy, asking: [Int], _ random: inout SeededRandom
  ) -> [End]? {
    var ends = [End(one), End(other)]
    var left = asking
    for _ in 0..<200 {
      var moves = left.map { (isAsking: true, end: $0) }
      for end in 0...1 where !ends[end].sent.isEmpty { moves.append((false, end)) }
      guard let move = moves.randomElement(using: &random) else { return ends }
      if move.isAsking {
        ends[move.end].ask()
        left.removeAll { $0 == move.end }
      } else {
        let message = ends[move.end].sent.removeFirst()
        ends[1 - move.end].receive(message)
      }
    }
    return nil
  }

  @Test("comes to rest with every other end, whoever asks and in whatever order, and both know the same")
  func noLoops() throws {
    var random = SeededRandom()
    let seed = random.seed
    var policies = [(1, 1, 1, 1)]
    for bits in 0..<16 { policies.append((bits & 1, bits >> 1 & 1, bits >> 2 & 1, bits >> 3)) }  // one option, all ways
    for _ in 0..<300 {
      let bits = (0..<4).map { _ in Int.random(in: 0..<16, using: &random) }
      policies.append((bits[0], bits[1], bits[2], bits[3]))
    }
    for (local, remote, theirLocal, theirRemote) in policies {
      for asking in [[0], [1], [0, 1]] {
        for _ in 0..<8 {
          let (one, other) = (
            Self.policy(local: local, remote: remote), Self.policy(local: theirLocal, remote: theirRemote)
          )
          let ends = try #require(run(one, other, asking: asking, &random), "it does not end, seed \(seed)")
          for option in TelnetOption.allCases {
            for (this, that) in [(0, 1), (1, 0)] {
              let isOn = ends[this].negotiation.state(of: option, .local) == .on
              #expect(isOn == (ends[that].negotiation.state(of: option, .remote) == .on), "\(option), seed \(seed)")
              // ECHO is not asked for at the other side.
              let mayBe = (this == 0 ? one : other).local.contains(option)
              let wanted = (this == 0 ? other : one).remote.contains(option)
              let isAskedFor = asking.contains(this) || (asking.contains(that) && option != .echo)
              #expect(isOn == (mayBe && wanted && isAskedFor), "\(option), seed \(seed)")
            }
          }
        }
      }
    }
  }

  @Test("answers an end that changes its mind for ever with one word each")
  func changeable() {
    var negotiation = TelnetNegotiation(.server(comPort: true))
    var answer: [UInt8] = []
    for _ in 0..<1000 {
      negotiation.receive(.do, 0, &answer)
      negotiation.receive(.do, 0, &answer)
      negotiation.receive(.dont, 0, &answer)
      negotiation.receive(.dont, 0, &answer)
    }
    #expect(answer.count == 2 * 1000 * 3)
  }

  // MARK: - pyserial

  /// An option as pyserial keeps it: what it says and hears, and whether it has asked.
  private struct PyserialOption {
    let code: UInt8, sendYes: UInt8, sendNo: UInt8, ackYes: UInt8, ackNo: UInt8
    var isRequested: Bool
    var isActive = false

    static func `do`(_ code: UInt8, requested: Bool) -> Self {
      Self(code: code, sendYes: 253, sendNo: 254, ackYes: 251, ackNo: 252, isRequested: requested)
    }
    static func will(_ code: UInt8, requested: Bool) -> Self {
      Self(code: code, sendYes: 251, sendNo: 252, ackYes: 253, ackNo: 254, isRequested: requested)
    }

    mutating func hear(_ verb: UInt8) -> [UInt8] {
      defer {
        isActive = verb == ackYes
        isRequested = false
      }
      if verb == ackYes { return isRequested || isActive ? [] : [255, sendYes, code] }
      return !isRequested && isActive ? [255, sendNo, code] : []
    }
  }

  @Test("ends with everything on that pyserial needs, whoever speaks first", arguments: [true, false])
  func pyserial(serverFirst: Bool) {
    var options: [PyserialOption] = [
      .do(1, requested: true), .will(3, requested: true), .do(3, requested: true), .do(0, requested: false),
      .do(44, requested: true), .will(0, requested: false), .will(44, requested: true),
    ]
    var server = TelnetNegotiation(.server(comPort: true))
    var toServer = Wire.do(1) + Wire.will(3) + Wire.do(3) + Wire.do(44) + Wire.will(44)
    var toClient: [UInt8] = []
    if serverFirst { server.askForAll(&toClient) }
    var messages = 0
    while !toServer.isEmpty || !toClient.isEmpty, messages < 100 {
      messages += 1
      if !toServer.isEmpty {
        server.receive(TelnetCommand(rawValue: toServer[1]) ?? .dont, toServer[2], &toClient)
        toServer.removeFirst(3)
      }
      if messages == 3 && !serverFirst { server.askForAll(&toClient) }
      if toClient.count >= 3 {
        let (verb, code) = (toClient[1], toClient[2])
        toClient.removeFirst(3)
        // "telnet_negotiate_option": all options with that code that know the verb; unknown ones are refused.
        for index in options.indices where options[index].code == code {
          if [options[index].ackYes, options[index].ackNo].contains(verb) { toServer += options[index].hear(verb) }
        }
      }
    }
    #expect(messages < 30)
    #expect(!options.contains { !$0.isActive })
    for option in [TelnetOption.binary, .suppressGoAhead, .comPort] {
      #expect(server.state(of: option, .local) == .on && server.state(of: option, .remote) == .on)
    }
    #expect(server.state(of: .echo, .local) == .on && server.hasComPort)
  }
}
