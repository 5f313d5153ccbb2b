// The request to upgrade of a client who is being greeted: which route its path means, who he is, and that it is a WebSocket's.
// The answer is given on the lane of the route, which knows whether there is a place for him; refusals known here are given here.

import ByteStreams
import StreamBroker
import StreamTLS
import StreamWebSocket

extension Guest {
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
    } catch let fault as HTTPFault {
      refuse(HTTPRefusal(fault), Ending(.protocolError, GreetingFault.noRequest(fault)))
    } catch let failure as TLSFailure {
      end(Ending(failure.word, failure), saying: [])
    } catch {
      end(error is GreetingFault ? Ending(.clientLeft, error) : Ending(brokenBy: error))
    }
  }

  private enum Reading {
    case incomplete
    case blocked(Readiness)
    case head(HTTPRequestHead, early: [UInt8])
  }

  private func readOn() throws -> Reading {
    try withUnsafeTemporaryAllocation(byteCount: 4096, alignment: 1) { scratch in
      switch try read(into: scratch).checked(of: scratch.count, at: "guest.readRequest") {
      case .moved(let count):
        let run = UnsafeRawBufferPointer(rebasing: scratch[..<count])
        switch try parser.take(run) {
        case .incomplete: return .incomplete
        case .complete(let head, let taken): return .head(head, early: Array(run[taken...]))
        }
      case .blocked(let wish): return .blocked(wish)
      case .ended: throw GreetingFault.left(step)
      }
    }
  }

  private func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    if let transfer = try session?.read(into: run) { return transfer }
    let count = try receive(into: run)
    return count < 0 ? .blocked(until: .readable) : count == 0 ? .ended : .moved(count)
  }

  // MARK: - Where to, and who

  private func decide(_ head: HTTPRequestHead, _ early: [UInt8]) {
    guard let way = entrance.ways.webSocket(for: facts?.serverName, path: head.path) else {
      var refusal = HTTPRefusal.notFound
      refusal.answersHead = head.method == "HEAD"
      return endWithoutSession(.noSuchPath(head.path), saying: refusal.bytes)
    }
    self.way = way
    guard wasAskedEnough(for: way) else { return end(Ending(.loginFailed, GreetingFault.noCertificate), saying: []) }
    do throws(HTTPRefusal) {
      let upgrade = try WebSocketUpgrade(head, way.upgradeSettings(entrance.hostNames(of: way)))
      greeting = WebSocketGreeting(
        response: upgrade.response, settings: way.streamSettings(upgrade.terms), early: early, route: way.route)
    } catch {
      let word = error.status == .forbidden ? Ending.Word.denied : .protocolError
      return refuse(error, of: head, Ending(word, GreetingFault.refused(error)))
    }
    if let client, !isCheck, !way.clients.admits(client) {
      return refuse(HTTPRefusal(.forbidden, "\(way.route) is not open to \(client.host)."), Ending(.denied))
    }
    logIn(head, way)
  }

  private func logIn(_ head: HTTPRequestHead, _ way: Way) {
    let shown = head.fields.all.filter { $0.name == "authorization" }.map(\.value)
    let credential = Credential(authorization: shown, subprotocols: head.fields.list("sec-websocket-protocol"))
    stage = .logIn
    // One who leaves meanwhile is not asked after: his connection is as hung up as that of one who waits.
    wait(for: [])
    attempt = reception.logIns.begin(
      way.access, credential, certificate: certificate, role: way.role, from: client
    ) { [weak self] answer in self?.took(answer) }
  }

  private func took(_ answer: LogIns.Answer) {
    guard case .logIn = stage, let way else { return }
    attempt = nil
    switch answer {
    case .admitted(let identity, let role):
      self.identity = identity
      self.role = role
      handOver()
    case .asks: refuse(.unauthorized(), Ending(.loginFailed, GreetingFault.unnamed))
    case .failed(let fault): refuse(.unauthorized(), Ending(.loginFailed, fault))
    case .busy(let fault): refuse(HTTPRefusal(.tooManyRequests, "Try again later."), Ending(.loginFailed, fault))
    case .denied(let identity):
      self.identity = identity
      let fault = GreetingFault.notLetIn(isUser: identity.isUser)
      refuse(HTTPRefusal(.forbidden, "\(way.route) is not for this user."), Ending(.denied, fault))
    }
  }

  /// Before it was known who he is.
  static let tooLate = HTTPRefusal.unavailable("The log-in took too long. Try again later.", retryAfter: .seconds(5))
    .bytes

  private func refuse(_ refusal: HTTPRefusal, of head: HTTPRequestHead? = nil, _ ending: Ending) {
    var refusal = refusal
    refusal.answersHead = head?.method == "HEAD"
    end(ending, saying: refusal.bytes)
  }
}

extension Way {
  fileprivate func upgradeSettings(_ hosts: HostNames) -> WebSocketUpgrade.Settings {
    WebSocketUpgrade.Settings(
      origins: websocket?.origins ?? [], hosts: hosts, isSecure: tls != nil, subprotocols: [.baudwayV1, .binary],
      deflate: websocket?.deflate == true ? DeflateSettings() : nil)
  }

  fileprivate func streamSettings(_ terms: WebSocketTerms) -> WebSocketStream.Settings {
    WebSocketStream.Settings(terms, as: websocket)
  }
}

/// What is left to do for one who asked for a WebSocket: to answer him.
struct WebSocketGreeting: Sendable {
  /// The whole answer, status 101.
  let response: [UInt8]
  let settings: WebSocketStream.Settings
  /// What came behind the request.
  let early: [UInt8]
  let route: String

  /// The whole answer for one whom his route does not let in; `notice` says why.
  func refusal(_ word: Ending.Word, _ notice: String) -> [UInt8] {
    switch word {
    case .denied: HTTPRefusal(.forbidden, notice).bytes
    default: HTTPRefusal.unavailable(notice, retryAfter: .seconds(5)).bytes
    }
  }
}

extension WebSocketClose {
  /// What a client is told of his ending, in the code that there is for it, and its word.
  init(_ ending: Ending) {
    let code: UInt16 =
      switch ending.word {
      case .clientLeft, .endpointLeft: 1000
      case .openFailed, .deviceLost, .clientLost, .internal: 1011
      case .full, .queueLeft: 1013
      case .denied, .loginFailed, .replaced, .kicked, .idle, .tooSlow: 1008
      case .protocolError: 1002
      case .routeRemoved, .shutdown: 1001
      }
    self.init(code, code == 1000 ? "" : ending.word.rawValue)
  }
}
