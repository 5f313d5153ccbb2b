// A TLS connection between our code and a plain OpenSSL far end, over the loopback or a socket pair.

import ByteStreams
import Glibc
import StreamTestKit

@testable import StreamTLS

/// A folder with an authority, a server's certificate and other files that a test needs.
struct TLSRig: Sendable {
  let folder: TemporaryFolder
  let authority: TestAuthority
  var server: TLSServerSettings
  var far = TLSFarEnd.Manner()

  init(_ wish: TestAuthority.Wish = .init("gw.test", names: "DNS:gw.test,IP:127.0.0.1")) throws {
    folder = try TemporaryFolder()
    authority = try TestAuthority()
    try folder.write("ca.pem", authority.pem)
    let files = try authority.write("server", wish, to: folder)
    server = TLSServerSettings(identities: [TLSIdentity(certificate: files.certificate, key: files.key)])
  }

  /// Runs a handshake as the server. Returns both ends; our session is on the lane.
  func accept(
    _ context: TLSServerContext? = nil, resuming ticket: TLSTicket? = nil, on lane: isolated Lane
  ) async throws -> (TLSStream, TLSFarEnd) {
    let (near, far) = try FarEnd.tcpPair()
    let end = try TLSFarEnd(try far.take(), self.far, resuming: ticket)
    async let greeted: Void = onOwnThread { try end.handshake() }
    let context = try context ?? TLSServerContext(server)
    let descriptor = try near.take()
    let session = try await shake(try TLSHandshake(context, over: descriptor.raw), descriptor.raw)
    let stream = TLSStream(session, over: descriptor, kind: .tcp(wasDialled: false), on: lane.poller)
    try await greeted
    return (stream, end)
  }

  /// Expects that the handshake fails. Returns the failure on each side.
  func refuse(
    _ context: TLSServerContext? = nil, choosing choose: (@Sendable (String?) -> TLSServerContext?)? = nil,
    _ play: @escaping @Sendable (TLSFarEnd) throws -> Void = {
      try $0.handshake(); _ = try $0.receive()
    }
  )
    async throws -> (failure: TLSFailure?, far: TLSFarEnd.Failure?)
  {
    let (near, far) = try FarEnd.tcpPair()
    let end = try TLSFarEnd(try far.take(), self.far)
    async let reported: TLSFarEnd.Failure? = onOwnThread {
      do {
        try play(end)
        return nil
      } catch let failure as TLSFarEnd.Failure {
        return failure
      }
    }
    let context = try context ?? TLSServerContext(server)
    let descriptor = try near.take()
    var failure: TLSFailure?
    let handshake =
      if let choose {
        try TLSHandshake(context, choosing: choose, over: descriptor.raw)
      } else {
        try TLSHandshake(context, over: descriptor.raw)
      }
    do { _ = try await shake(handshake, descriptor.raw) } catch let error
      as TLSFailure
    {
      failure = error
    }
    // Half-closes as the gateway does: a reset would lose the alert.
    shutdown(descriptor.raw, Int32(SHUT_WR))
    return (failure, try await reported)
  }
}

/// Advances the handshake to its end, waiting on its own thread.
func shake(_ handshake: sending TLSHandshake, _ descriptor: Int32) async throws -> TLSSession {
  while true {
    switch try handshake.advance() {
    case .finished: return handshake.takeSession()
    case .blocked(let wish): try await waitFor(descriptor, wish)
    }
  }
}

func waitFor(_ descriptor: Int32, _ wish: Readiness) async throws {
  try await onOwnThread {
    var one = pollfd(fd: descriptor, events: Int16(wish == .writable ? POLLOUT : POLLIN), revents: 0)
    guard poll(&one, 1, 30_000) > 0 else { throw SystemError("poll", ETIMEDOUT) }
  }
}
