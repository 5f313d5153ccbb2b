// A scripted RFC 2217 server with none of our code, over a socket of any kind. Each call blocks: use `onOwnThread`.

import ByteStreams
import Dispatch
import Glibc
import StreamTestKit
import Synchronization

/// A request or answer about the line: the code of RFC 2217, without the server's 100, and its value.
struct LineWord: Hashable, Sendable, CustomStringConvertible {
  var code: UInt8
  var value: [UInt8]
  init(_ code: UInt8, _ value: [UInt8]) { (self.code, self.value) = (code, value) }
  init(_ code: UInt8, _ value: UInt8) { self.init(code, [value]) }
  var description: String { "\(code):\(value)" }
}

final class RFC2217FarEnd: FarParty {
  struct Manner: Sendable {
    /// BINARY, SGA and COM-PORT.
    var options: Set<UInt8> = [0, 3, 44]
    /// Its answers to a request. A signature and the modem's lines are not answered.
    var answers: @Sendable (LineWord) -> [LineWord] = { $0.code == 0 || $0.code == 7 ? [] : [$0] }
    /// Sends one byte at a time.
    var isSplit = false
    /// Answers no option.
    var isMute = false
  }

  private struct State {
    var came: [UInt8] = []
    var data: [UInt8] = []
    var requests: [LineWord] = []
    var verbs: [[UInt8]] = []
    var hasEnded = false
  }

  private let below: any FarParty
  private let manner: Manner
  private let state = Mutex(State())

  /// What the client has asked for so far.
  var requests: [LineWord] { state.withLock { $0.requests } }

  init(over below: any FarParty, _ manner: Manner = Manner()) {
    self.below = below
    self.manner = manner
  }

  /// A server whose client has opened the line, or with `isPlain` has agreed to the options.
  convenience init(opened below: any FarParty, _ manner: Manner = Manner(), isPlain: Bool = false) throws {
    self.init(over: below, manner)
    while !state.withLock({ isPlain ? $0.verbs.count == 4 : $0.requests.contains { $0.code == 5 && $0.value[0] < 4 } })
    {
      guard try step() else { throw SystemError("receive", 104) }
    }
  }

  /// Answers until `count` requests of this code have come.
  func await(_ code: UInt8, count: Int = 1) throws {
    while requests.count(where: { $0.code == code }) < count {
      guard try step() else { throw SystemError("receive", 104) }
    }
  }

  func send(_ bytes: [UInt8]) throws { try sendRaw(bytes.flatMap { $0 == 255 ? [255, 255] : [$0] }) }

  func tell(_ word: LineWord) throws {
    try sendRaw([255, 250, 44, word.code + 100] + word.value.flatMap { $0 == 255 ? [255, 255] : [$0] } + [255, 240])
  }

  /// What a gateway says of a change by others: a request in form.
  func report(_ word: LineWord) throws { try sendRaw([255, 250, 44, word.code] + word.value + [255, 240]) }

  func sendRaw(_ bytes: [UInt8]) throws {
    guard manner.isSplit else { return try below.send(bytes) }
    for byte in bytes { try below.send([byte]) }
  }

  func receive() throws -> [UInt8] {
    while state.withLock({ $0.data.isEmpty }) { guard try step() else { return [] } }
    return state.withLock { state in
      defer { state.data = [] }
      return state.data
    }
  }

  func finishWriting() { below.finishWriting() }
  func close() { below.close() }

  // MARK: - Decoding

  /// Reads once and answers. False at the end, and after a reset: a client that closes before it has read the last
  /// answer resets the connection.
  private func step() throws -> Bool {
    let some: [UInt8]
    do { some = try below.receive() } catch let error as SystemError where error.errno == ECONNRESET { some = [] }
    state.withLock { $0.came += some }
    while let (verb, word) = state.withLock({ Self.next(&$0) }) {
      if let verb { try negotiate(verb) }
      if let word { for answer in manner.answers(word) { try tell(answer) } }
    }
    return !some.isEmpty
  }

  private func negotiate(_ verb: [UInt8]) throws {
    guard !manner.isMute, verb[0] == 251 || verb[0] == 253 else { return }
    let isAgreed = manner.options.contains(verb[1])
    let answer: UInt8 = verb[0] == 251 ? (isAgreed ? 253 : 254) : (isAgreed ? 251 : 252)
    try sendRaw([255, answer, verb[1]])
  }

  /// Moves data to `data`, up to the next whole command.
  private static func next(_ state: inout State) -> (verb: [UInt8]?, word: LineWord?)? {
    while let first = state.came.firstIndex(of: 255) {
      state.data += state.came[..<first]
      state.came.removeFirst(first)
      guard state.came.count > 1 else { return nil }
      switch state.came[1] {
      case 255:
        state.data.append(255)
        state.came.removeFirst(2)
      case 251...254:
        guard state.came.count > 2 else { return nil }
        let verb = Array(state.came[1...2])
        state.came.removeFirst(3)
        state.verbs.append(verb)
        return (verb, nil)
      case 250:
        guard let content = content(&state.came) else { return nil }
        guard content.count > 1, content[0] == 44 else { continue }
        let word = LineWord(content[1], Array(content[2...]))
        state.requests.append(word)
        return (nil, word)
      default: state.came.removeFirst(2)
      }
    }
    state.data += state.came
    state.came = []
    return nil
  }

  private static func content(_ came: inout [UInt8]) -> [UInt8]? {
    var (content, index): ([UInt8], Int) = ([], 2)
    while index + 1 < came.count {
      if came[index] != 255 {
        content.append(came[index])
        index += 1
      } else if came[index + 1] == 255 {
        content.append(255)
        index += 2
      } else {
        came.removeFirst(index + 2)
        return content
      }
    }
    return nil
  }
}

/// Servers for the conformance suite.
struct RemotePortRig: StreamRig {
  /// rfc2217, rfc2217s or telnet.
  let scheme: String
  /// For rfc2217s.
  var tls: TLSRig?

  func farEnd(_ part: FarPart) throws -> String? {
    let isPlain = scheme == "telnet"
    switch part {
    case .refuse: return "\(scheme)://127.0.0.1:1\(tls?.query ?? "")"
    case .answerAfterTheEnd where !isPlain: return nil  // the end of our output is the end for such a server
    default: break
    }
    if let tls {
      let address = try tls.serve { try RFC2217FarEnd(opened: $0).play(part) }
      return "\(scheme)://\(address)\(tls.query)&baud=9600"
    }
    let listener = try LoopbackListener()
    part.begin {
      defer { listener.close() }
      return try RFC2217FarEnd(opened: listener.accept(), isPlain: isPlain)
    }
    return "\(scheme)://\(listener.address)"
  }
}
