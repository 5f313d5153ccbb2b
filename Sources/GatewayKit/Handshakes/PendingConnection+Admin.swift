// A request for the admin listener: checks what its head shows and logs the client in. AdminServer, on the control
// lane, answers it.

import ByteStreams
import StreamWebSocket

extension PendingConnection {
  func decide(_ head: HTTPRequestHead, _ early: [UInt8], _ resource: AdminResource, _ binding: RouteBinding) {
    self.binding = binding
    guard wasAskedEnough(for: binding) else {
      return end(Ending(.loginFailed, HandshakeFault.noCertificate), saying: [])
    }
    let pages = WebPageRule(hosts: listenSocket.hostNames(of: binding), isSecure: binding.tls != nil)
    do throws(AdminRefusal) {
      adminRequest = try AdminRequest(head, early: early, for: resource, pages: pages)
      if case .terminal(let route) = resource, head.method == "GET" {
        acceptance = try Self.acceptance(head, early, route, pages)
      }
    } catch {
      return end(
        Ending(error.isOfWebPage ? .denied : .protocolError, HandshakeFault.adminRefused(error)),
        saying: error.response.bytes)
    }
    guard resource.needsLogIn else { return handOver() }
    if let acceptance, redeemTicket(head, acceptance.route, binding) { return }
    logIn(head, binding)
  }

  private static func acceptance(
    _ head: HTTPRequestHead, _ early: [UInt8], _ route: String, _ pages: WebPageRule
  ) throws(AdminRefusal) -> WebSocketAcceptance {
    let upgrade: WebSocketUpgrade
    do throws(HTTPRefusal) {
      upgrade = try WebSocketUpgrade(
        head,
        WebSocketUpgrade.Settings(hosts: pages.hosts, isSecure: pages.isSecure, subprotocols: [.baudwayV1]))
    } catch {
      throw AdminRefusal(error)
    }
    guard upgrade.terms.subprotocol == .baudwayV1 else {
      throw AdminRefusal(.badRequest, "Offer the sub-protocol baudway.v1.")
    }
    return WebSocketAcceptance(
      response: upgrade.response, settings: WebSocketStream.Settings(upgrade.terms, as: Config.WebSocket()),
      early: early, route: route)
  }

  /// Whether the client shows a ticket, which is its log-in then.
  private func redeemTicket(_ head: HTTPRequestHead, _ route: String, _ binding: RouteBinding) -> Bool {
    let shown = head.fields.list("sec-websocket-protocol").compactMap(Tickets.name(in:))
    guard !shown.isEmpty else { return false }
    stage = .logIn
    wait(for: [])
    let name = shown.count == 1 ? shown[0] : nil
    let identity = name.flatMap {
      handshakeServer.tickets.redeem($0, for: route, showing: certificate, at: poller.timers.now)
    }
    guard let identity else {
      logIn(nil, binding)
      return true
    }
    // A reload may have changed the rules since the ticket was given.
    let role = binding.access.role(of: identity, listener: binding.role)
    took(role.map { .admitted(identity, $0) } ?? .denied(identity))
    return true
  }

  func refuseAdmin(_ answer: LogIns.Answer) {
    guard let adminRequest else { return }
    func refuse(_ status: HTTPStatus, _ detail: String, _ word: Ending.Word, _ cause: any Error) {
      end(Ending(word, cause), saying: AdminResponse.problem(status, detail).adapted(to: adminRequest).bytes)
    }
    switch answer {
    case .admitted: break
    case .asks:
      refuse(.unauthorized, AdminResponse.logIn, .loginFailed, HandshakeFault.unnamed)
    case .failed(let fault): refuse(.unauthorized, AdminResponse.logIn, .loginFailed, fault)
    case .busy(let fault):
      refuse(.tooManyRequests, "Too many log-ins are waiting. Try again later.", .loginFailed, fault)
    case .denied(let identity):
      self.identity = identity
      refuse(
        .forbidden, "This user has no role on any route.", .denied, HandshakeFault.notLetIn(isUser: identity.isUser))
    }
  }
}
