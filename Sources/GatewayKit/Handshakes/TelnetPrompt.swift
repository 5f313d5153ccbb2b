// The log-in prompt of a telnet listener: the client's bytes go in; what to send and the credential come out. Sees no
// socket. The name is echoed, the password is not.

import StreamBroker
import StreamTelnet

struct TelnetPrompt: Sendable {
  private enum Field {
    case user, password
    /// The password is being checked; bytes that come now are the session's.
    case none
  }

  private(set) var negotiation = TelnetNegotiation(.server(comPort: true))
  /// Bytes that came after the password.
  private(set) var early: [UInt8] = []
  /// The client has ended the log-in: ^C or ^D.
  private(set) var hasLeft = false
  /// A program that sets a serial line waits for answers that nobody can give it here.
  private(set) var sawRequests = false
  var mayTryAgain: Bool { tries < Self.mostTries }

  private(set) var decoder = TelnetDecoder()
  private var answers: [UInt8] = []
  private var field = Field.user
  private var line: [UInt8] = []
  private var lastWasCR = false
  private var user = ""
  private var tries = 0
  private var credential: Credential?

  private static let mostTries = 3
  private static let longestLine = 256

  /// `route` is named above the prompt.
  init(_ route: String) {
    negotiation.askForAll(&answers)
    answers += "baudway: \(route)\r\n".utf8
    ask(.user)
  }

  private mutating func ask(_ field: Field) {
    self.field = field
    line = []
    answers += (field == .user ? "login: " : "password: ").utf8
  }

  mutating func tryAgain() {
    answers += "log-in failed\r\n".utf8
    early = []
    ask(.user)
  }

  mutating func takeAnswers() -> [UInt8] {
    defer { answers = [] }
    return answers
  }

  /// The name and password, once they are complete.
  mutating func takeCredential() -> Credential? {
    defer { credential = nil }
    return credential
  }

  mutating func take(_ bytes: UnsafeRawBufferPointer) throws(TelnetFault) {
    var data = [UInt8](repeating: 0, count: bytes.count)
    var used = 0
    while used < bytes.count {
      var progress = TelnetDecoder.Progress()
      let source = UnsafeRawBufferPointer(rebasing: bytes[used...])
      let token = try decode(source, into: &data, &progress)
      used += progress.used
      for byte in data[..<progress.made] { type(byte) }
      if let token { follow(token) }
    }
  }

  private mutating func decode(
    _ source: UnsafeRawBufferPointer, into data: inout [UInt8], _ progress: inout TelnetDecoder.Progress
  ) throws(TelnetFault) -> TelnetDecoder.Token? {
    var result = Result<TelnetDecoder.Token?, TelnetFault>.success(nil)
    data.withUnsafeMutableBytes { run in
      result = Result { () throws(TelnetFault) in try decoder.decode(source, into: run, &progress) }
    }
    return try result.get()
  }

  private mutating func follow(_ token: TelnetDecoder.Token) {
    switch token {
    case .negotiation(let verb, let option):
      negotiation.receive(verb, option, &answers)
      decoder.isBinary = negotiation.state(of: .binary, .remote) == .on
    case .subnegotiation(let option, _): sawRequests = sawRequests || option == TelnetOption.comPort.rawValue
    case .command: break
    }
  }

  private mutating func type(_ byte: UInt8) {
    let isRestOfLine = lastWasCR && (byte == 0x0A || byte == 0)
    lastWasCR = byte == 0x0D && field != .none  // bytes after the log-in stay as they are
    guard !isRestOfLine else { return }
    guard field != .none else { return early.append(byte) }
    switch byte {
    case 0x0D, 0x0A: lineIsComplete()
    case 0x08, 0x7F:
      guard line.popLast() != nil else { return }
      echo([0x08, 0x20, 0x08])
    case 0x15:
      echo(line.flatMap { _ in [UInt8]([0x08, 0x20, 0x08]) })
      line = []
    case 0x03, 0x04: hasLeft = true
    case ..<0x20: break
    default:
      guard line.count < Self.longestLine else { return }
      line.append(byte)
      echo([byte])
    }
  }

  private mutating func echo(_ bytes: [UInt8]) {
    if field == .user, negotiation.state(of: .echo, .local) == .on { answers += bytes }
  }

  private mutating func lineIsComplete() {
    answers += "\r\n".utf8
    let text = String(decoding: line, as: UTF8.self)
    switch field {
    case .user:
      guard !line.isEmpty else { return ask(.user) }
      user = text
      ask(.password)
    case .password:
      tries += 1
      credential = .password(user: user, Secret(text))
      (field, line) = (.none, [])
    case .none: break
    }
  }
}
