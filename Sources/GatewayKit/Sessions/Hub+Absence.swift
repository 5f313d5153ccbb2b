// Up, while nothing of the clients' goes to the endpoint: the link speaks to it first, or holds them back for a moment, or
// it is away and what they send is dropped, or they have all gone and what they left behind is.

import ByteStreams

extension Hub {
  /// What clients send can go to the endpoint now. Else it is kept.
  var takesInput: Bool { canReachEndpoint && holds == 0 && preface.isEmpty }

  /// It may have to wait, but there is an endpoint that listens.
  var canReachEndpoint: Bool { endpoint != nil && writeFailure == nil && !endpointIsDeaf }

  // MARK: - Holding back

  /// Keeps clients' input back from here on, until `resumeInput` is called as often: for what must not meet it, such as
  /// other line settings. A new endpoint begins without holds.
  func holdInput() {
    holds += 1
    for session in sessions { session.pump.sink = nil }
    endpoint?.writerWaits = []
  }

  func resumeInput() {
    guard holds > 0 else { return }
    holds -= 1
    letInputFlow()
  }

  func letInputFlow() {
    guard takesInput || !preface.isEmpty else { return }
    for session in sessions { connect(session) }
    serve()
    for session in sessions where session.pump.sourceEnded { settle(session) }
  }

  /// The first the endpoint hears. Whether it is out.
  func saysPreface(to endpoint: any ByteStream) -> Bool {
    do {
      while !preface.isEmpty {
        let transfer = try preface.withUnsafeBytes { try endpoint.write($0) }
        switch try transfer.checked(of: preface.count, at: "hub.saysPreface") {
        case .moved(let count): preface = preface.dropFirst(count)
        case .blocked(let wish):
          endpoint.writerWaits = wish
          return false
        case .ended: throw SystemError("write", 32)  // EPIPE
        }
      }
    } catch {
      endpointFailed(error)
      return false
    }
    for session in sessions { connect(session) }
    return true
  }

  // MARK: - Dropping

  /// The endpoint is away, or is here again: what clients have sent, and what they send, is dropped, or kept.
  func setDropsInput(_ drops: Bool) {
    guard drops != dropsInput else { return }
    dropsInput = drops
    if drops { for session in sessions { dropKept(of: session) } }
    for session in sessions where session.pump.sourceEnded { settle(session) }
  }

  /// What was read of him goes nowhere, and what comes is read.
  func dropKept(of session: Session) {
    session.dropped &+= UInt64(session.pump.discard())
    if session.isWaiting { waiting.removeAll { $0 === session } }
    session.isWaiting = false
    readOn(session)
  }

  /// What he sends goes nowhere.
  func drainAway(_ session: Session) {
    do {
      try skim(session)
      if session.pump.sourceEnded { settle(session) }
    } catch {
      pumpFailed(session, error)
    }
  }

  /// Reads what the client has sent and forgets it. Counts it before anything can end the session, which is reported with it.
  func skim(_ session: Session) throws(Pump.Fault) {
    let before = session.pump.skimmed
    defer { session.dropped &+= session.pump.skimmed &- before }
    try session.pump.skim()
  }

  /// Where that is the policy: once all have finished sending, what the endpoint has not taken of it is thrown away.
  func flushIfAllHaveFinished() {
    guard policy.flushesBehindLast, sessions.allSatisfy({ $0.pump.sourceEnded || $0.hasSentLastByte }) else { return }
    let left = sessions.filter { !$0.isFlushed }
    guard !left.isEmpty else { return }
    for session in left {
      session.isFlushed = true
      dropKept(of: session)
    }
    delegate.allHaveFinished()
    for session in left where session.pump.sourceEnded { settle(session) }
  }
}
