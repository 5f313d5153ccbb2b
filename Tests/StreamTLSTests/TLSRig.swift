// A TLS connection of ours to a far end that is none of ours, over the loopback or a socket pair.

import ByteStreams
import Glibc
import StreamTestKit

@testable import StreamTLS

/// A folder with an authority, a server's certificate and what else a test asks for.
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

  /// Shakes hands as a server. Both ends, with the session on the lane's side.
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

  /// Expects that nothing comes of it, and why on both sides.
  func refuse(
    _ context: TLSServerContext? = nil, choosing chosen: TLSServerContext? = nil,
    _ play: @escaping @Sendable (TLSFarEnd) throws -> Void = {
      try $0.handshake(); _ = try $0.receive()
    }
  )
    async throws -> (failure: TLSFailure?, far: TLSFarEnd.Failure?)
  {
    let (near, far) = try FarEnd.tcpPair()
    let end = try TLSFarEnd(try far.take(), self.far)
    async let told: TLSFarEnd.Failure? = onOwnThread {
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
      if let chosen {
        try TLSHandshake(context, choosing: { _ in chosen }, over: descriptor.raw)
      } else {
        try TLSHandshake(context, over: descriptor.raw)
      }
    do { _ = try await shake(handshake, descriptor.raw) } catch let error
      as TLSFailure
    {
      failure = error
    }
    // As the gateway does: the answer would be lost with a reset.
    shutdown(descriptor.raw, Int32(SHUT_WR))
    return (failure, try await told)
  }
}

/// Advances to the end, waiting on a thread of its own.
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
