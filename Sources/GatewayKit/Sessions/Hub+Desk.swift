// What clients of `baudway.v1` ask for beside their bytes, and what they are told. Line commands keep their place: what was sent
// before is out, what comes behind waits. Works on any endpoint through SerialLine.

import ByteStreams
import StreamBroker

extension Hub {
  // MARK: - Events

  func tellAll(_ event: DeskEvent) {
    for session in sessions { session.desk?.tell(event) }
  }

  func linkIs(_ status: LinkStatus) {
    linkStatus = status
    tellAll(.link(status))
    guard case .waiting = status, endpoint == nil else { return }
    // What waited for the opening has waited in vain.
    refuseAskers("the link is waiting")
    carryOutAll()
  }

  func tellPen(to session: Session) {
    guard let desk = session.desk, policy.writers == .one else { return }
    desk.tell(.pen(holder: pen?.number, isMine: pen === session))
  }

  /// How things stand.
  func tellStatus(to session: Session) {
    guard let desk = session.desk else { return }
    desk.tell(.link(linkStatus))
    if let line = endpoint?.serialLine { desk.tell(.line(line.settings)) }
    if desk.watches, let inputs = keeping.condition?.inputs { desk.tell(.modem(inputs, changes: 0)) }
    tellPen(to: session)
  }

  // MARK: - Requests

  /// What has come of texts with the last read; then reading goes on.
  func takeTexts(of session: Session, _ desk: Desk) {
    while !session.isOver, let text = desk.takeText() {
      handle(text, of: session, desk)
      if !session.isOver { readOn(session) }
    }
  }

  private func handle(_ text: [UInt8], of session: Session, _ desk: Desk) {
    let (id, request): (DeskRequest.ID?, DeskRequest)
    do throws(DeskRequest.Fault) {
      (id, request) = try DeskRequest.parse(text)
    } catch {
      return desk.reply(.failed(error.id, error.message, suggestion: error.suggestion))
    }
    if request.hasPlace {
      desk.add(Desk.Mark(id: id, request: request, place: session.pump.moved &+ UInt64(session.pump.count)))
      return carryOut(of: session, desk)
    }
    switch request {
    case .purge(let what): purge(what, id, session, desk)
    case .watch(let isOn): watch(isOn, id, desk)
    case .pen(let wish): desk.reply(follow(wish, of: session).map { .failed(id, $0) } ?? .done(id))
    default:
      tellStatus(to: session)
      desk.reply(.done(id))
    }
  }

  /// Why the client may not touch anything; nil when he may.
  private func rightless(_ session: Session) -> String? {
    if session.arrival.role == .monitor { return "a monitor may only listen" }
    guard session.mayWrite else { return policy.writers == .one ? "another client has the pen" : "nobody writes here" }
    return nil
  }

  /// Why the client may not touch the line; nil when he may. Who is the first to set it holds it until he leaves.
  private func refusal(of session: Session) -> String? {
    if let rightless = rightless(session) { return rightless }
    guard endpoint?.serialLine != nil else {
      return endpoint == nil ? "the link is \(linkStatus.word)" : Self.notSupported
    }
    if let holder = lineHolder, holder !== session { return "session \(holder.number) holds the line" }
    if policy.writers == .all { lineHolder = session }
    return nil
  }

  /// What waited for the line.
  func carryOutAll() {
    for session in sessions {
      if let desk = session.desk { goOn(session, desk) }
    }
  }

  /// The next command of his that is due, one at a time. It waits for a link that is being opened: whether it can be done, and who
  /// may, is seen then.
  func carryOut(of session: Session, _ desk: Desk) {
    while !isComing, !keeping.isPuttingRight, keeping.busyLeavers == 0,
      let (mark, turn) = desk.begin(moved: session.pump.moved, isEmpty: session.pump.count == 0)
    {
      if let refusal = refusal(of: session) {
        desk.end(turn)
        desk.reply(.failed(mark.id, refusal))
        continue
      }
      guard let endpoint, let line = endpoint.serialLine else { return desk.end(turn) }
      holdInput()
      note(mark.request, of: session)
      perform(mark.request, on: line) { [weak self, weak endpoint] result in
        desk.reply(DeskReply(mark.id, result))
        desk.end(turn)
        guard let self, turn == desk.turn || session.isOver else { return }
        // When the endpoint has gone, the next one or its absence decides about what stands behind.
        guard let endpoint, endpoint === self.endpoint else { return goOn(session, desk) }
        if session.isOver {
          keeping.busyLeavers -= 1
          putLineRight(behind: session)
        }
        if case .success(let settings?) = result { tellOthers(of: settings, but: session) }
        resumeInput()
        if session.isOver { carryOutAll() } else { goOn(session, desk) }
      }
      return
    }
  }

  private func goOn(_ session: Session, _ desk: Desk) {
    guard !session.isOver else { return }
    carryOut(of: session, desk)
    takeTexts(of: session, desk)
  }

  private func tellOthers(of settings: LineSettings, but session: Session) {
    for other in sessions where other !== session { other.desk?.tell(.line(settings)) }
  }

  /// Whose work it is, so that it can be taken back.
  private func note(_ request: DeskRequest, of session: Session) {
    switch request {
    case .line: keeping.setter = session
    case .break(let isOn): keeping.breaker = isOn ? session : nil
    case .breakFor: keeping.breaker = nil
    default: break
    }
  }

  private func perform(
    _ request: DeskRequest, on line: any SerialLine,
    _ done: @escaping (Result<LineSettings?, DeskReply.LineFault>) -> Void
  ) {
    let answer: (Result<Void, SystemError>) -> Void = { result in
      done(result.map { nil }.mapError { .init(message: $0.text) })
    }
    switch request {
    case .line(let change):
      line.whenSent(on: poller) { [weak self] in
        // The last words to it are for its own settings.
        guard let self, line === endpoint?.serialLine else {
          return done(.failure(.init(message: "the link has closed")))
        }
        let before = line.settings
        let wanted = change.applied(to: before)
        line.apply(wanted) { result in
          switch result {
          case .success(let inForce):
            guard let refusal = inForce.refusal(of: wanted) else { return done(.success(inForce)) }
            // All of it or nothing: a line that is half changed is a line nobody asked for.
            line.apply(before) { _ in
              done(.failure(.init(message: "the port does not do \(refusal)", inForce: line.settings)))
            }
          case .failure(let error): done(.failure(.init(message: error.text, inForce: line.settings)))
          }
        }
      }
    case .output(let output, let isOn): line.set(output, isOn, answer)
    case .break(let isOn): line.setBreak(isOn, answer)
    case .breakFor(let time):
      line.setBreak(true) { [poller] result in
        guard case .success = result else { return answer(result) }
        poller.timers.after(time) { line.setBreak(false, answer) }
      }
    default: answer(.success(()))
    }
  }

  /// At once: what it is to throw away must not hold it up. What he asked for before, among the bytes that go, is done now.
  private func purge(_ what: Purge, _ id: DeskRequest.ID?, _ session: Session, _ desk: Desk) {
    if let refusal = isComing ? rightless(session) : refusal(of: session) { return desk.reply(.failed(id, refusal)) }
    guard let line = endpoint?.serialLine else {
      // Nothing is in the port, only what he has sent on the way there.
      if what != .input { dropKept(of: session) }
      return desk.reply(.done(id))
    }
    if what != .input { dropKept(of: session) }
    desk.atOnce += 1
    line.purge(what) { [weak self] result in
      desk.atOnce -= 1
      defer { if let self, !session.isOver { takeTexts(of: session, desk) } }
      switch result {
      case .success: desk.reply(.done(id))
      case .failure(let error): desk.reply(.failed(id, error.text))
      }
    }
    carryOut(of: session, desk)
  }

  // MARK: - The pen

  /// Why it can't be; nil when it is done.
  private func follow(_ wish: DeskRequest.PenWish, of session: Session) -> String? {
    guard policy.writers == .one else { return "there is no pen here; 'clients.writers' is \(policy.writers.rawValue)" }
    switch wish {
    case .take:
      if session.arrival.role == .monitor { return "a monitor may only listen" }
      if pen !== session {
        guard mayTakePen(session) || pen == nil || policy.takeover == .newest else {
          return "session \(pen?.number ?? 0) has the pen"
        }
        movePen(to: session)
      }
    case .leave:
      guard pen === session else { return "you don't have the pen" }
      movePen(to: longestPresentWriter)
    }
    return nil
  }
}
