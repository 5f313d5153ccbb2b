// The request of a pending connection: finds the route of its path, checks that it is a WebSocket request, and
// logs the client in. A path of no route may be one of the admin listener: PendingConnection+Admin.swift. The route's
// lane answers, because it knows whether a slot is free; refusals decided here are sent here.

import ByteStreams
import StreamBroker
import StreamTLS
import StreamWebSocket

extension PendingConnection {
  func beginRequest() {
    stage = .request
    readRequest()
  }

  func readRequest() {
    do {
      while true {
        switch try readOn() {
        case .incomplete: continue
        case .blocked(let wish): return wait(for: wish)
        case .head(let head, let early): return decide(head, early)
        }
      }
    } catch let fault as HTTPFault where listenSocket.onlyBinding?.listen.isAdmin == true {
      let refusal = AdminRefusal(fault)
      end(Ending(.protocolError, HandshakeFault.adminRefused(refusal)), saying: refusal.response.bytes)
    } catch let fault as HTTPFault {
      refuse(HTTPRefusal(fault), Ending(.protocolError, HandshakeFault.noRequest(fault)))
    } catch let failure as TLSFailure {
      end(Ending(failure.word, failure), saying: [])
    } catch {
      end(error is HandshakeFault ? Ending(.clientLeft, error) : Ending(brokenBy: error))
    }
  }

  private enum Reading {
    case incomplete
    case blocked(Readiness)
    case head(HTTPRequestHead, early: [UInt8])
  }

  private func readOn() throws -> Reading {
    try withUnsafeTemporaryAllocation(byteCount: 4096, alignment: 1) { scratch in
      switch try read(into: scratch).checked(of: scratch.count, at: "pending.readRequest") {
      case .moved(let count):
        let run = UnsafeRawBufferPointer(rebasing: scratch[..<count])
        switch try parser.take(run) {
        case .incomplete: return .incomplete
        case .complete(let head, let taken): return .head(head, early: Array(run[taken...]))
        }
      case .blocked(let wish): return .blocked(wish)
      case .ended: throw HandshakeFault.left(step)
      }
    }
  }

  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    if let transfer = try session?.read(into: run) { return transfer }
    let count = try receive(into: run)
    return count < 0 ? .blocked(until: .readable) : count == 0 ? .ended : .moved(count)
  }

  // MARK: - Route and log-in

  private func decide(_ head: HTTPRequestHead, _ early: [UInt8]) {
    guard let binding = listenSocket.bindings.webSocket(for: facts?.serverName, path: head.path) else {
      if let admin = listenSocket.bindings.admin(for: facts?.serverName), let resource = AdminResource(path: head.path)
      {
        return decide(head, early, resource, admin)
      }
      if listenSocket.bindings.admin(for: facts?.serverName) != nil {
        let answer = AdminResponse.problem(.notFound, "Nothing here has this path.", isHead: head.method == "HEAD")
        return endWithoutSession(.noSuchPath(head.path), saying: answer.bytes)
      }
      var refusal = HTTPRefusal.notFound
      refusal.answersHead = head.method == "HEAD"
      return endWithoutSession(.noSuchPath(head.path), saying: refusal.bytes)
    }
    self.binding = binding
    guard wasAskedEnough(for: binding) else {
      return end(Ending(.loginFailed, HandshakeFault.noCertificate), saying: [])
    }
    do throws(HTTPRefusal) {
      let upgrade = try WebSocketUpgrade(head, binding.upgradeSettings(listenSocket.hostNames(of: binding)))
      acceptance = WebSocketAcceptance(
        response: upgrade.response, settings: binding.streamSettings(upgrade.terms), early: early, route: binding.route,
        unknownSubprotocols: upgrade.unknownSubprotocols)
    } catch {
      let word = error.status == .forbidden ? Ending.Word.denied : .protocolError
      return refuse(error, of: head, Ending(word, HandshakeFault.refused(error)))
    }
    if let client, !isCheck, !binding.clients.admits(client) {
      return refuse(HTTPRefusal(.forbidden, "\(binding.route) is not open to \(client.host)."), Ending(.denied))
    }
    logIn(head, binding)
  }

  func logIn(_ head: HTTPRequestHead, _ binding: RouteBinding) {
    let shown = head.fields.all.filter { $0.name == "authorization" }.map(\.value)
    logIn(Credential(authorization: shown, subprotocols: head.fields.list("sec-websocket-protocol")), binding)
  }

  /// `credential` is nil if what the client sent is not valid.
  func logIn(_ credential: Credential?, _ binding: RouteBinding) {
    stage = .logIn
    // Waits for nothing but a hang-up (EPOLLHUP, EPOLLERR), which ends the connection as in `.waiting`.
    wait(for: [])
    attempt = handshakeServer.logIns.begin(
      binding.access, credential, certificate: certificate, role: binding.role, from: client
    ) { [weak self] answer in self?.took(answer) }
  }

  func took(_ answer: LogIns.Answer) {
    guard case .logIn = stage, let binding else { return }
    attempt = nil
    switch answer {
    case .admitted(let identity, let role):
      self.identity = identity
      self.role = role
      if let offered = acceptance?.unknownSubprotocols {
        let label = AcceptedConnection.Label(address: client, listener: binding.listen.target)
        handshakeServer.status.publish(.subprotocolUnknown(route: binding.route, label, offered))
      }
      handOver()
    case _ where adminRequest != nil: refuseAdmin(answer)
    case .asks: refuse(.unauthorized(), Ending(.loginFailed, HandshakeFault.unnamed))
    case .failed(let fault): refuse(.unauthorized(), Ending(.loginFailed, fault))
    case .busy(let fault): refuse(HTTPRefusal(.tooManyRequests, "Try again later."), Ending(.loginFailed, fault))
    case .denied(let identity):
      self.identity = identity
      let fault = HandshakeFault.notLetIn(isUser: identity.isUser)
      refuse(HTTPRefusal(.forbidden, "This user may not use \(binding.route)."), Ending(.denied, fault))
    }
  }

  /// The answer when the log-in was not checked in time.
  static let tooLate = HTTPRefusal.unavailable("The log-in took too long. Try again later.", retryAfter: .seconds(5))
    .bytes

  private func refuse(_ refusal: HTTPRefusal, of head: HTTPRequestHead? = nil, _ ending: Ending) {
    var refusal = refusal
    refusal.answersHead = head?.method == "HEAD"
    end(ending, saying: refusal.bytes)
  }
}

extension RouteBinding {
  fileprivate func upgradeSettings(_ hosts: HostNames) -> WebSocketUpgrade.Settings {
    WebSocketUpgrade.Settings(
      origins: websocket?.origins ?? [], hosts: hosts, isSecure: tls != nil, subprotocols: [.baudwayV1, .binary],
      deflate: websocket?.deflate == true ? DeflateSettings() : nil)
  }

  fileprivate func streamSettings(_ terms: WebSocketTerms) -> WebSocketStream.Settings {
    var settings = WebSocketStream.Settings(terms, as: websocket)
    // A client that asks for a sub-protocol gets what that says.
    settings.sendsText = listen.url.flag("text") == true && terms.subprotocol == nil
    return settings
  }
}

/// The answer to an accepted WebSocket request, which the route's lane still has to send.
struct WebSocketAcceptance: Sendable {
  /// The whole answer, status 101.
  let response: [UInt8]
  let settings: WebSocketStream.Settings
  /// Bytes that came after the request.
  let early: [UInt8]
  let route: String
  var unknownSubprotocols: String?

  /// The whole answer if the route refuses the client; `notice` is the reason.
  func refusal(_ word: Ending.Word, _ notice: String) -> [UInt8] {
    switch word {
    case .denied: HTTPRefusal(.forbidden, notice).bytes
    default: HTTPRefusal.unavailable(notice, retryAfter: .seconds(5)).bytes
    }
  }
}

extension WebSocketClose {
  /// The close frame for an ending: the matching code (RFC 6455 section 7.4.1) and the ending word.
  init(_ ending: Ending) {
    let code: UInt16 =
      switch ending.word {
      case .clientLeft, .noAnswer, .endpointLeft: 1000
      case .openFailed, .deviceLost, .clientLost, .internal: 1011
      case .full, .queueLeft: 1013
      case .denied, .loginFailed, .replaced, .kicked, .idle, .tooSlow: 1008
      case .protocolError: 1002
      case .routeRemoved, .shutdown: 1001
      }
    self.init(code, code == 1000 ? "" : ending.word.rawValue)
  }
}
