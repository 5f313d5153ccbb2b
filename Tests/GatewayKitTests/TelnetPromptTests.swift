// The log-in prompt of telnet listeners, byte by byte.

import StreamBroker
import StreamTelnet
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A telnet log-in prompt")
struct TelnetPromptTests {
  /// Types `text` and returns what the prompt sends, without the negotiation at its beginning.
  private func type(_ text: [UInt8], into prompt: inout TelnetPrompt) throws -> String {
    try text.withUnsafeBytes { try prompt.take($0) }
    return String(decoding: prompt.takeAnswers(), as: UTF8.self)
  }

  private func begun() -> TelnetPrompt {
    var prompt = TelnetPrompt("lab")
    _ = prompt.takeAnswers()
    return prompt
  }

  /// The client lets us echo.
  private let doEcho: [UInt8] = [255, 253, 1]

  @Test("asks for all options, names the route, and asks for the name")
  func begins() {
    var prompt = TelnetPrompt("lab")
    let answers = prompt.takeAnswers()
    #expect(answers.starts(with: [255, 251, 0]))
    #expect(String(decoding: answers.suffix(21), as: UTF8.self).hasSuffix("baudway: lab\r\nlogin: "))
  }

  @Test(
    "takes a line that ends by CR LF, CR NUL, LF or CR, in one piece or byte by byte",
    arguments: [[13, 10], [13, 0], [10], [13]] as [[UInt8]], [false, true])
  func lines(end: [UInt8], isSplit: Bool) throws {
    var prompt = begun()
    let all = Array("ada".utf8) + end + Array("secret".utf8) + end + Array("rest".utf8)
    for piece in isSplit ? all.map({ [$0] }) : [all] { _ = try type(piece, into: &prompt) }
    #expect(prompt.takeCredential() == .password(user: "ada", Secret("secret")))
    #expect(prompt.early == Array("rest".utf8))
    #expect(prompt.takeCredential() == nil)
  }

  @Test("leaves the bytes after the password to the session as they are", arguments: [false, true])
  func typedAhead(isSplit: Bool) throws {
    var prompt = begun()
    let all = Array("ada\r\nsecret\r\nreboot\r\nls\r\n".utf8)
    for piece in isSplit ? all.map({ [$0] }) : [all] { _ = try type(piece, into: &prompt) }
    #expect(prompt.takeCredential() == .password(user: "ada", Secret("secret")))
    #expect(prompt.early == Array("reboot\r\nls\r\n".utf8))
  }

  @Test("echoes the name if the client lets it, and never the password")
  func echo() throws {
    var prompt = begun()
    #expect(try type(Array("ab".utf8), into: &prompt) == "")  // the client shows what is typed by itself
    #expect(try type(doEcho + Array("c\u{7F}d\r\n".utf8), into: &prompt).hasSuffix("c\u{8} \u{8}d\r\npassword: "))
    #expect(try type(Array("secret\r\n".utf8), into: &prompt) == "\r\n")
    #expect(prompt.takeCredential() == .password(user: "abd", Secret("secret")))
  }

  @Test("edits the line: backspace, ^U; leaves at ^C and ^D")
  func editing() throws {
    var prompt = begun()
    _ = try type(Array("xy\u{15}\u{8}ada\r\n".utf8), into: &prompt)
    _ = try type(Array("wrong\u{15}right\r\n".utf8), into: &prompt)
    #expect(prompt.takeCredential() == .password(user: "ada", Secret("right")))
    for end in [3, 4] as [UInt8] {
      var other = begun()
      _ = try type([end], into: &other)
      #expect(other.hasLeft)
    }
  }

  @Test("keeps 256 bytes of a line, and asks again after an empty name")
  func bounds() throws {
    var prompt = begun()
    #expect(try type([13, 10], into: &prompt).hasSuffix("login: "))
    _ = try type([UInt8](repeating: 0x61, count: 5000) + [13, 10, 0x62, 13, 10], into: &prompt)
    #expect(prompt.takeCredential() == .password(user: String(repeating: "a", count: 256), Secret("b")))
  }

  @Test("gives three tries, and drops what was typed ahead of a failure")
  func tries() throws {
    var prompt = begun()
    for number in 1...3 {
      _ = try type(Array("ada\r\nguess\r\nahead".utf8), into: &prompt)
      #expect(prompt.takeCredential() != nil)
      #expect(prompt.mayTryAgain == (number < 3))
      prompt.tryAgain()
      #expect(String(decoding: prompt.takeAnswers(), as: UTF8.self).hasSuffix("log-in failed\r\nlogin: "))
      #expect(prompt.early == [])
    }
  }

  @Test("hands over a client that has agreed to COM-PORT, whose session then reports modem lines to it")
  func comPort() throws {
    var prompt = begun()
    _ = try type([255, 251, 44] + Array("ada\r\nsecret\r\n".utf8), into: &prompt)
    let acceptance = TelnetAcceptance(negotiation: prompt.negotiation, keepsAlive: false)
    let rig = try HubRig()
    let line = ScriptedLine()
    let endpoint = ScriptedStream(takesAll: true)
    endpoint.serialLine = line
    rig.linkIs(.open)
    rig.hub.attach(endpoint)
    let stream = acceptance.stream(over: ScriptedStream(takesAll: true), on: rig.poller)
    rig.join(stream, controlChannel: ControlChannel(of: stream))
    #expect(stream.hasBufferedInput && line.watcher == nil)
    rig.wakeReader(stream)  // as `SessionGroup.take` does for a stream with buffered input
    #expect(line.watcher != nil && !stream.hasBufferedInput)
  }

  @Test("notices a program that sends RFC 2217 requests")
  func program() throws {
    var prompt = begun()
    _ = try type([255, 251, 44, 255, 250, 44, 1, 0, 0, 0, 0, 255, 240], into: &prompt)
    #expect(prompt.sawRequests)
  }
}
