// The control protocol from both sides: bytes as a request, sent in pieces to a real conversation, and the same bytes
// as an answer that a command reads.

@testable import ByteStreams
@testable import GatewayKit

struct ControlProperty {
  private let rig: ConversationRig

  init() throws(Broken) { rig = try ConversationRig() }

  func check(_ input: [UInt8]) throws(Broken) {
    let isJSON = try checkJSON(input)
    let parsed = result(input)
    // Escapes can make a request longer than the limit.
    if case .success(let request) = parsed, request.line.utf8.count <= ControlRequest.longest {
      try hold(result(Array(request.line.utf8)) == parsed, "\(request) does not read back")
    }
    try checkConversation(input)
    if isJSON { try checkAnswers(input) }
  }

  private func result(_ line: some Collection<UInt8>) -> Result<ControlRequest, ControlFault> {
    do throws(ControlFault) { return .success(try ControlRequest.parse(line)) } catch { return .failure(error) }
  }

  private func json(_ input: some Collection<UInt8>) -> Result<JSONValue, JSONFault> {
    do throws(JSONFault) { return .success(try JSONReader.read(input)) } catch { return .failure(error) }
  }

  private func checkJSON(_ input: [UInt8]) throws(Broken) -> Bool {
    switch json(input) {
    case .success(let value):
      let text = value.description
      try holdsOneTerminalLine(text)
      try hold(json(Array(text.utf8)) == .success(value), "\(text) does not read back")
      return true
    case .failure(let fault):
      try hold((0...input.count).contains(fault.offset), "a fault at \(fault.offset) of \(input.count)")
      return false
    }
  }

  /// Terminals act on C0, DEL and C1.
  private func holdsOneTerminalLine(_ text: String) throws(Broken) {
    try hold(!text.unicodeScalars.contains { JSONValue.isControl($0) }, "controls: \(text.debugDescription)")
  }

  // MARK: - A conversation

  /// The answer to a request in this test: the request itself.
  private func echo(_ request: ControlRequest) -> JSONValue { .object(["asked": .text(request.line)]) }

  private func checkConversation(_ input: [UInt8]) throws(Broken) {
    let said = try rig.answer(to: input) { OneLine(echo($0)) }
    let line = input.prefix { $0 != UInt8(ascii: "\n") }
    // A request that is too long, or none at all, is not answered. How much of a long line had arrived depends on the
    // chunks.
    if said.isEmpty {
      return try hold(input.isEmpty || line.count > ControlRequest.longest, "a request that is not answered")
    }
    let expected: JSONValue
    switch result(line) {
    case .success(let request): expected = echo(request)
    case .failure(let fault): expected = fault.answer
    }
    try hold(
      said == Array((expected.description + "\n").utf8), "another answer: \(String(decoding: said, as: UTF8.self))")
    try hold(json(said.dropLast()) == .success(expected), "an answer that is no JSON")
    try holdsOneTerminalLine(String(decoding: said.dropLast(), as: UTF8.self))
  }

  // MARK: - Answers

  private func checkAnswers(_ input: [UInt8]) throws(Broken) {
    if case .carriedOut(let lines) = ReloadAnswer(input) { try hold(!lines.isEmpty, "a reload that says nothing") }
    _ = KickAnswer(input)
    guard let snapshot = Snapshot.read(input) else { return }
    for hasColours in [false, true] {
      for line in StatusTable(snapshot, since: snapshot, hasColours: hasColours).lines {
        let plain = hasColours ? line.replacing("\u{1b}[", with: "[") : line
        try holdsOneTerminalLine(plain)
      }
    }
  }
}
