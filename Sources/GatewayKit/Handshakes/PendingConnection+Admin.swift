// A request for the admin listener: checks what its head shows and logs the client in. AdminServer, on the control
// lane, answers it.

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
    } catch {
      return end(
        Ending(error.isOfWebPage ? .denied : .protocolError, HandshakeFault.adminRefused(error)),
        saying: error.response.bytes)
    }
    if resource.needsLogIn { logIn(head, binding) } else { handOver() }
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
