// A pending connection at a telnet listener. Most are handed over at once, and negotiate options on their route's lane.
// On a route with users, the client types its name and password first; with `raw=auto`, its first bytes show whether
// it speaks telnet at all.

import ByteStreams
import Glibc
import StreamTLS
import StreamTelnet

/// How a client that speaks telnet is served.
struct TelnetAcceptance: Sendable {
  /// The state of the negotiation, if it has begun.
  var negotiation: TelnetNegotiation?
  /// What came after the log-in: bytes, and the beginning of a command.
  var early: [UInt8] = []
  var decoder = TelnetDecoder()
  /// Whether IAC NOP is sent in silence.
  let keepsAlive: Bool

  func stream(over below: any ByteStream, on poller: Poller) -> TelnetStream {
    let stream = TelnetStream(
      over: below, .init(.server, keepalive: keepsAlive ? .seconds(20) : nil),
      negotiation ?? TelnetNegotiation(.server(comPort: true)), early: early, decoder, on: poller)
    if negotiation == nil { stream.begin() } else { stream.goOn() }
    return stream
  }
}

extension PendingConnection {
  /// With `raw=auto`, a telnet client sends its first command within this time.
  static let longestSniff = Duration.milliseconds(300)

  func beginPlain() {
    if let binding, binding.listen.usesTelnet { beginTelnet(binding) } else { handOver() }
  }

  func beginTelnet(_ binding: RouteBinding) {
    guard wasAskedEnough(for: binding) else { return refuseWithoutCertificate(binding) }
    telnet = TelnetAcceptance(keepsAlive: binding.clients.keepalive)
    // A client that the route refuses by its address is not asked.
    let isAdmitted = client.map { binding.clients.admits($0) } ?? true
    guard !isCheck, isAdmitted, !binding.listen.asksNobody else { return beginSession(binding) }
    switch binding.access.decide(.none, certificate: certificate, role: binding.role) {
    case .admitted(let identity, let role):
      self.identity = identity
      self.role = role
      beginSession(binding)
    case .asks, .denied, .failed, .check: beginPrompt(binding)
    }
  }

  private func beginSession(_ binding: RouteBinding) {
    guard binding.listen.detectsRawTCP, !isCheck else { return handOver() }
    stage = .sniff
    sniffTimer = poller.timers.after(Self.longestSniff) { [weak self] in
      guard let self, case .sniff = stage else { return }
      if peekedTelnet() != true { telnet = nil }
      handOver()
    }
    sniff()
  }

  // MARK: - Raw or telnet

  func sniff() {
    switch peekedTelnet() {
    case true?: handOver()
    case false?: wait(for: [])  // until the time is over
    case nil: wait(for: .readable)
    }
  }

  /// Whether the first bytes have a command; nil while there is none. They stay in the socket for the session.
  private func peekedTelnet() -> Bool? {
    withUnsafeTemporaryAllocation(byteCount: 512, alignment: 1) { scratch -> Bool? in
      guard let count = try? receive(into: scratch, Int32(MSG_PEEK)), count >= 0 else { return nil }
      return scratch[..<count].contains(TelnetCommand.iac.rawValue)
    }
  }

  // MARK: - The log-in

  private func beginPrompt(_ binding: RouteBinding) {
    stage = .prompt
    prompt = TelnetPrompt(binding.route)
    handshakeServer.prompts(self)
    sendAnswers()
    readPrompt()
  }

  func readPrompt() {
    do {
      while case .prompt = stage {
        let transfer = try withUnsafeTemporaryAllocation(byteCount: 512, alignment: 1) { scratch in
          let transfer = try read(into: scratch).checked(of: scratch.count, at: "pending.readPrompt")
          if case .moved(let count) = transfer {
            try prompt?.take(UnsafeRawBufferPointer(rebasing: scratch[..<count]))
          }
          return transfer
        }
        sendAnswers()
        switch transfer {
        case .moved: followPrompt()
        case .blocked(let wish): return wait(for: wish)
        case .ended: return end(Ending(.clientLeft, HandshakeFault.left(step)))
        }
      }
    } catch {
      end(Ending(brokenBy: error))
    }
  }

  private func followPrompt() {
    guard let prompt, let binding else { return }
    if prompt.hasLeft { return end(Ending(.clientLeft, HandshakeFault.left(step)), saying: []) }
    if prompt.sawRequests {
      let reason = "\(binding.route) asks for a log-in, which RFC 2217 clients can't answer"
      return end(Ending(.loginFailed, HandshakeFault.comPortAtPrompt), saying: Self.line(reason))
    }
    guard let credential = self.prompt?.takeCredential() else { return }
    stage = .logIn
    wait(for: [])
    attempt = handshakeServer.logIns.begin(
      binding.access, credential, certificate: nil, role: binding.role, from: client
    ) { [weak self] answer in self?.tookAtPrompt(answer) }
  }

  private func tookAtPrompt(_ answer: LogIns.Answer) {
    guard case .logIn = stage, let binding, let prompt else { return }
    attempt = nil
    switch answer {
    case .admitted(let identity, let role):
      self.identity = identity
      self.role = role
      telnet?.negotiation = prompt.negotiation
      telnet?.early = prompt.early
      telnet?.decoder = prompt.decoder
      handOver()
    case .denied(let identity):
      self.identity = identity
      end(
        Ending(.denied, HandshakeFault.notLetIn(isUser: identity.isUser)),
        saying: Self.line("this user may not use \(binding.route)"))
    case .busy(let fault): end(Ending(.loginFailed, fault), saying: Self.line("too many log-ins; try again later"))
    case .asks, .failed:
      guard prompt.mayTryAgain else {
        return end(Ending(.loginFailed, HandshakeFault.tooManyTries), saying: Self.line("log-in failed"))
      }
      stage = .prompt
      self.prompt?.tryAgain()
      sendAnswers()
      readPrompt()
    }
  }

  static func line(_ text: String) -> [UInt8] { Array("baudway: \(text)\r\n".utf8) }

  /// Sends what the prompt has to say. A client that does not read so little of it has no use for the rest.
  private func sendAnswers() {
    guard let answers = prompt?.takeAnswers(), !answers.isEmpty else { return }
    answers.withUnsafeBytes { bytes in
      guard session == nil else {
        try? session?.write(bytes)
        return
      }
      AcceptLoop.send(bytes, to: raw)
    }
  }
}
