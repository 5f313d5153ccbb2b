// Two ends of a telnet negotiation with policies of the input's choice, and a third one that says anything. Two of ours
// come to rest and agree; nobody gets more answers than words.

@testable import StreamTelnet

enum NegotiationProperty {
  private struct End {
    var negotiation: TelnetNegotiation
    let policy: TelnetNegotiation.Policy
    var sent: [(verb: TelnetCommand, option: UInt8)] = []

    init(_ local: UInt8, _ remote: UInt8) {
      var policy = TelnetNegotiation.Policy.server(comPort: true)
      policy.local = NegotiationProperty.options(local)
      policy.remote = NegotiationProperty.options(remote)
      self.policy = policy
      negotiation = TelnetNegotiation(policy)
    }

    /// At most `most` words follow.
    mutating func say(_ most: Int, _ change: (inout TelnetNegotiation, inout [UInt8]) -> Void) throws(Broken) {
      var bytes: [UInt8] = []
      change(&negotiation, &bytes)
      try hold(bytes.count % 3 == 0 && bytes.count <= 3 * most, "\(bytes) for one word")
      for start in stride(from: 0, to: bytes.count, by: 3) {
        guard bytes[start] == 255, let verb = TelnetCommand(rawValue: bytes[start + 1]), verb.rawValue >= 251 else {
          throw Broken("\(bytes) is no word")
        }
        sent.append((verb, bytes[start + 2]))
      }
    }

    mutating func hear(_ verb: TelnetCommand, _ option: UInt8) throws(Broken) {
      try say(1) { $0.receive(verb, option, &$1) }
    }
  }

  private static func options(_ bits: UInt8) -> Set<TelnetOption> {
    Set(TelnetOption.allCases.enumerated().filter { bits & (1 << UInt8($0.offset)) != 0 }.map(\.element))
  }

  /// Two bytes for the policies; then each byte is a step: who asks or hears, and for the stranger two more, a word.
  static func check(_ input: [UInt8]) throws(Broken) {
    guard input.count > 2 else { return }
    var ends = [End(input[0] & 15, input[0] >> 4), End(input[1] & 15, input[1] >> 4)]
    var stranger = End(input[0] & 15, input[0] >> 4)
    var rest = input[2...]
    var asked = 0
    while let step = rest.popFirst() {
      let end = Int(step & 1)
      switch step >> 1 & 3 {
      case 0:
        asked += 1
        try ends[end].say(8) { $0.askForAll(&$1) }
      case 1:
        guard let option = TelnetOption.allCases.dropFirst(Int(step >> 3 & 3)).first else { break }
        asked += 1
        let side: TelnetNegotiation.Side = step & 0x20 == 0 ? .local : .remote
        let isAllowed = (side == .local ? ends[end].policy.local : ends[end].policy.remote).contains(option)
        if isAllowed { try ends[end].say(1) { $0.ask(for: option, side, &$1) } }
      case 2: try deliver(from: end, &ends)
      default:
        guard let code = rest.popFirst(), let verb = TelnetCommand(rawValue: 251 + (step >> 3 & 3)) else { break }
        let before = stranger
        try stranger.hear(verb, code)
        try checkAnswer(before, stranger, verb, code)
      }
    }
    var words = 0
    while let end = ends.indices.first(where: { !ends[$0].sent.isEmpty }) {
      words += 1
      try hold(words <= 4 * 8 + 8 * asked, "no end after \(words) words")
      try deliver(from: end, &ends)
    }
    for option in TelnetOption.allCases {
      for (one, other) in [(0, 1), (1, 0)] {
        let (here, there) = (
          ends[one].negotiation.state(of: option, .local), ends[other].negotiation.state(of: option, .remote)
        )
        try hold((here == .on) == (there == .on), "\(option) is \(here) here and \(there) there")
        try hold(here != .asked && there != .asked, "a question about \(option) has no answer")
        let isAllowed = ends[one].policy.local.contains(option) && ends[other].policy.remote.contains(option)
        try hold(here != .on || isAllowed, "\(option) is on against a policy")
      }
    }
  }

  private static func deliver(from end: Int, _ ends: inout [End]) throws(Broken) {
    guard !ends[end].sent.isEmpty else { return }
    let word = ends[end].sent.removeFirst()
    try ends[1 - end].hear(word.verb, word.option)
  }

  /// Nothing but the option changes, an answer is about it, and a repeated word gets none.
  private static func checkAnswer(_ before: End, _ after: End, _ verb: TelnetCommand, _ code: UInt8) throws(Broken) {
    let side: TelnetNegotiation.Side = verb == .do || verb == .dont ? .local : .remote
    let agrees = verb == .do || verb == .will
    for option in TelnetOption.allCases {
      for place in [TelnetNegotiation.Side.local, .remote] where option.rawValue != code || place != side {
        let isSame = after.negotiation.state(of: option, place) == before.negotiation.state(of: option, place)
        try hold(isSame, "\(option) changed by a word about \(code)")
      }
    }
    let option = TelnetOption(rawValue: code)
    let isAllowed = option.map { (side == .local ? after.policy.local : after.policy.remote).contains($0) } ?? false
    let wasOn = option.map { before.negotiation.state(of: $0, side) == .on } ?? false
    let isOn = option.map { after.negotiation.state(of: $0, side) == .on } ?? false
    try hold(isOn == (isAllowed && agrees), "\(code) is \(isOn ? "on" : "off") after \(verb)")
    let answers = after.sent.dropFirst(before.sent.count)
    try hold(answers.count == (isAllowed ? (isOn == wasOn ? 0 : 1) : (agrees ? 1 : 0)), "\(answers) to \(verb) \(code)")
    guard let answer = answers.first else { return }
    let yes: TelnetCommand = side == .local ? .will : .do
    let no: TelnetCommand = side == .local ? .wont : .dont
    try hold(answer.option == code && answer.verb == (isOn ? yes : no), "\(answer) to \(verb) \(code)")
  }
}
