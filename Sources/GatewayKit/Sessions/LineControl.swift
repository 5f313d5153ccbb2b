// The endpoint's serial line as several clients share it: runs their commands. A command keeps its position among the
// client's bytes: it runs once the bytes before it are written, and the bytes after it wait. Its parts: LineRights decides
// which client may use the line, LineChanges undoes what clients have changed, ResetControl replays reset recipes,
// LineReports reports to clients. LineControl can hold and resume the clients' input, no more. Every protocol with line
// commands uses it: `baudway.v1`, RFC 2217 and ptys.

import ByteStreams
import StreamBroker

protocol LineControlDelegate: AnyObject {
  /// Keeps clients' input back from the endpoint. Each call needs its own `resume`.
  func hold()
  func resume()
  func purge(_ what: Purge, of line: any SerialLine, then done: @escaping (Result<Void, SystemError>) -> Void)
  /// A request of the session is done, so there may be room for its next one.
  func takeRequests(of session: Session)
  /// The session's request was carried out, or refused for this reason.
  func lineWasAsked(_ request: ControlChannelRequest, refusal: String?, by session: Session)
  /// `recipe` was replayed for the session, or for `baudway reset`.
  func lineWasReset(by recipe: ResetRecipe, for session: UInt64?, _ result: Result<Void, SystemError>)
  /// `lastingSettings` may have changed.
  func lineChanged()
}

final class LineControl {
  static let notSupported = "not supported by this endpoint"

  private let poller: Poller
  unowned var delegate: (any LineControlDelegate)!  // the Upstream, which the hub owns as it owns this; set once
  private let reports: LineReports
  private let changes: LineChanges
  private let resets: ResetControl
  private var rights: LineRights

  private var linkStatus = LinkStatus.closed
  private var isAttached = false
  private var line: (any SerialLine)?
  /// Counts attached and detached endpoints, to recognise and ignore a late result of one that is gone.
  private var attachment = 0
  /// Sessions that ended with a command in flight. Other sessions' commands wait until this is 0.
  private var endedWithCommand = 0

  init(writers: Config.Clients.Writers, reset: ResetRecipe? = nil, on poller: Poller) {
    self.poller = poller
    rights = LineRights(writers)
    reports = LineReports(on: poller)
    changes = LineChanges(on: poller)
    resets = ResetControl(reset, on: poller)
    changes.owner = self
    resets.owner = self
  }

  /// Call it after a reload.
  func update(writers: Config.Clients.Writers) { rights.update(writers) }

  /// Call it after a reload.
  func update(reset recipe: ResetRecipe?) { resets.update(recipe) }

  /// With `writers: all`: the number of the session that holds the line.
  var holder: UInt64? { rights.holder }

  // MARK: - Sessions

  func join(_ session: Session) { reports.join(session, state) }

  /// The session is over. If one of its commands is in flight, its changes are undone when that command ends.
  func leave(_ session: Session) {
    guard let controlChannel = session.controlChannel else { return }
    reports.leave(session)
    if changes.isSetter(session.number) { delegate.lineChanged() }
    release(by: session)
    if controlChannel.isBusy, isAttached { endedWithCommand += 1 } else { restore(after: session) }
  }

  /// The client has finished sending and all its input is delivered: TCP cannot tell whether it has closed. It still
  /// receives for a while, but the next client must not wait for that. Commands under way come first.
  func inputIsOver(of session: Session) {
    guard let controlChannel = session.controlChannel, !session.isOver, !controlChannel.isBusy,
      controlChannel.marks.isEmpty
    else { return }
    release(by: session)
    restore(after: session)
  }

  /// The session no longer uses the line: others may.
  private func release(by session: Session) {
    rights.release(by: session.number)
    changes.forget(session.number)
  }

  private func restore(after session: Session) {
    endBreak(of: session)
    changes.restore(after: session.number)
  }

  /// A break blocks the line for all clients. So it ends with the session that began it, or when that session loses the
  /// right to write.
  func endBreak(of session: Session) {
    if resets.isHolding(for: session.number) { resets.release() }
    changes.endBreak(of: session.number)
  }

  // MARK: - Reports

  /// What there is to report of link and line now.
  private var state: [ControlChannelEvent] {
    [.link(linkStatus)] + (line.map { [.line($0.settings)] } ?? []) + (changes.outputs.map { [$0] } ?? [])
  }

  /// Reports the current state of link and line.
  func reportStatus(to session: Session) {
    if let controlChannel = session.controlChannel { reports.repeatState(state, to: controlChannel) }
  }

  /// From now on, `recorder` gets every report, as a client that watches the line; nil: none does.
  func record(to recorder: CaptureTap?) { reports.record(to: recorder, state) }

  private func report(_ event: ControlChannelEvent, except session: Session?) {
    if case .line = event { delegate.lineChanged() }
    reports.report(event, except: session)
  }

  private func reportLine(_ line: any SerialLine) {
    report(.line(line.settings))
    reportOutputs(except: nil)
  }

  // MARK: - The endpoint

  /// A link is being opened, or will be once the last one has closed in order. Commands wait for it, as bytes do.
  private var isComing: Bool { !isAttached && [.opening, .closed, .draining].contains(linkStatus) }

  func linkIs(_ status: LinkStatus) {
    linkStatus = status
    report(.link(status))
    guard case .waiting = status, !isAttached else { return }
    // The opening that these clients waited for has failed.
    reports.refuseWatch("the link is waiting")
    runAll()
  }

  /// Returns whether the client's settings are applied again first; input must wait for that. Call `begin` after this.
  func attach(_ line: (any SerialLine)?) -> Bool {
    for (session, controlChannel) in reports.clients {
      controlChannel.abandon { mark in
        remembers(mark.request, of: session) ? .remembered(mark.id) : .failed(mark.id, "the link has closed")
      }
    }
    attachment += 1
    isAttached = true
    self.line = line
    changes.attach(line)
    resets.attach(line)
    if let line { reportLine(line) }
    reports.attach(line)
    line?.observe { [weak self, attachment] in
      guard let self, attachment == self.attachment, let line = self.line else { return }
      reportLine(line)
    }
    return changes.mustMakeAgain()
  }

  /// The endpoint is attached, and input is held back if `attach` has returned true.
  func begin() { changes.makeAgain() }

  func detach() {
    attachment += 1
    isAttached = false
    line = nil
    changes.detach()
    delegate.lineChanged()
    reports.detach()
    endedWithCommand = 0
    resets.detach()
  }

  /// A reload has changed the settings of the line.
  func isSet(to settings: LineSettings) {
    changes.isSet(to: settings)
    report(.line(settings))
  }

  /// The settings in force, or those to which the line returns because the session that set it is over. Nil without a
  /// line.
  var lastingSettings: LineSettings? {
    changes.lastingSettings { number in reports.clients.contains { $0.session.number == number } }
  }

  /// The settings to restore on a detached endpoint, if a client has changed them or is about to.
  func settingsToRestore(of line: (any SerialLine)?) -> LineSettings? { changes.settingsToRestore(of: line) }

  // MARK: - Commands

  /// Adds a request that keeps its position among the session's bytes: after all bytes read so far.
  func add(_ request: ControlChannelRequest, _ id: ControlChannelRequest.ID?, of session: Session) {
    let position = session.pump.moved &+ UInt64(session.pump.count)
    session.controlChannel?.add(ControlChannel.Mark(id: id, request: request, position: position))
    run(session)
  }

  private func goOn(_ session: Session) {
    guard !session.isOver else { return }
    run(session)
    delegate.takeRequests(of: session)
    if session.isHalfClosed { inputIsOver(of: session) }
  }

  /// Runs the session's commands that are due, one at a time. A command waits for a link that is being opened; only
  /// then is it decided whether the command is possible and allowed.
  func run(_ session: Session) {
    guard let controlChannel = session.controlChannel else { return }
    while mayRun(controlChannel.marks.first?.request, of: session),
      let (mark, turn) = controlChannel.begin(moved: session.pump.moved, isEmpty: session.pump.count == 0)
    {
      guard let reply = replyAtOnce(to: mark, of: session) else {
        return carryOut(mark, turn, of: session, controlChannel)
      }
      controlChannel.end(turn)
      controlChannel.reply(reply)
    }
    if session.pump.count > 0 { inputFollows(of: session) }
  }

  private func mayRun(_ request: ControlChannelRequest?, of session: Session) -> Bool {
    !isComing && !changes.isRestoring && endedWithCommand == 0 && resets.mayTake(request, of: session.number)
  }

  /// The reply to a request that needs nothing from the port; nil: it has to be carried out.
  private func replyAtOnce(to mark: ControlChannel.Mark, of session: Session) -> ControlChannelReply? {
    if mark.request == .query {
      var reply = ControlChannelReply.done(mark.id, line?.settings)
      reply.isUnsupported = line == nil
      return reply
    }
    if remembers(mark.request, of: session) { return .remembered(mark.id) }
    if let refusal = refusal(of: session) { return refuse(mark, refusal, of: session) }
    return isTakenByRecipe(mark.request, of: session) ? .done(mark.id) : nil
  }

  /// While the link is away, settings of a client without texts are kept for its return: RFC 2217 has no answer for a
  /// failure. False if the link is open, or the client may not use the line.
  private func remembers(_ request: ControlChannelRequest, of session: Session) -> Bool {
    switch request {
    case .line, .output: break
    default: return false
    }
    guard !isAttached, !session.isOver, session.controlChannel?.hasTexts == false else { return false }
    guard rights.writeRefusal(of: session) == nil, rights.hold(by: session.number) == nil else { return false }
    changes.remember(request, of: session.number)
    return true
  }

  /// Why the client may not use the line now; nil if it may. With `writers: all` the client then holds the line.
  private func refusal(of session: Session) -> String? {
    if let refusal = rights.writeRefusal(of: session) { return refusal }
    guard line != nil else { return isAttached ? Self.notSupported : "the link is \(linkStatus.word)" }
    return rights.hold(by: session.number)
  }

  private func refuse(_ mark: ControlChannel.Mark, _ refusal: String, of session: Session) -> ControlChannelReply {
    if let line, isInForce(mark.request, on: line) {
      if case .line = mark.request { return .done(mark.id, line.settings) }
      return .done(mark.id)
    }
    var reply = ControlChannelReply.failed(mark.id, refusal)
    reply.isUnsupported = isAttached && line == nil
    if !reply.isUnsupported { delegate.lineWasAsked(mark.request, refusal: refusal, by: session) }
    return reply
  }

  /// Nothing would change, which needs no right: RFC 2217 programs set every value when they open a port.
  private func isInForce(_ request: ControlChannelRequest, on line: any SerialLine) -> Bool {
    switch request {
    case .line(let change): change.applied(to: line.settings) == line.settings
    case .output(let output, let isOn): line.outputStates[output] == isOn
    default: false
    }
  }

  private func carryOut(
    _ mark: ControlChannel.Mark, _ turn: Int, of session: Session, _ controlChannel: ControlChannel
  ) {
    guard let line else { return controlChannel.end(turn) }
    delegate.hold()
    changes.begin(mark.request, by: session.number)
    line.carryOut(mark.request, on: poller, while: { [weak self, attachment] in attachment == self?.attachment }) {
      [weak self, attachment] result in
      if let self, attachment == self.attachment { carriedOut(mark.request, result, by: session) }
      let mustAskAgain = turn == controlChannel.turn && self?.remembers(mark.request, of: session) == true
      controlChannel.end(turn, mustAskAgain ? .remembered(mark.id) : ControlChannelReply(mark.id, result))
      guard let self, turn == controlChannel.turn || session.isOver else { return }
      // The endpoint has gone meanwhile. The commands that follow run on the next one, or are refused if there is none.
      guard attachment == self.attachment else { return goOn(session) }
      if session.isOver {
        endedWithCommand -= 1
        restore(after: session)
      }
      if case .failure = result, case .output = mark.request { resets.portRefuses() }
      if case .success(let settings?) = result { report(.line(settings), except: session) }
      delegate.resume()
      if session.isOver { runAll() } else { goOn(session) }
    }
  }

  private func carriedOut(
    _ request: ControlChannelRequest, _ result: Result<LineSettings?, ControlChannelReply.LineFault>,
    by session: Session
  ) {
    switch result {
    case .failure(let fault):
      changes.refused(request, by: session.number)
      // A port without modem lines has refused nothing.
      if !fault.isUnsupported { delegate.lineWasAsked(request, refusal: fault.message, by: session) }
      switch request {
      case .break: break  // others may have been told that it is on
      case .output where !fault.isUnsupported: break  // a remote port answers with the state in force
      default: return
      }
      reportOutputs(except: nil)
    case .success:
      delegate.lineWasAsked(request, refusal: nil, by: session)
      changes.carriedOut(request, by: session.number, isOver: session.isOver)
      if case .line = request { return }
      reportOutputs(except: session.number)
    }
  }

  // MARK: - Changes by an administrator

  /// Makes the changes one after the other, up to the first that fails. Clients' input waits.
  func change(
    by requests: ArraySlice<ControlChannelRequest>, then done: @escaping (Result<LineSettings, LinkRefusal>) -> Void
  ) {
    guard let line else { return done(.failure(LinkRefusal("this endpoint has no serial line"))) }
    guard let request = requests.first else {
      done(.success(line.settings))
      return runAll()
    }
    resets.release()
    delegate.hold()
    if case .breakFor = request { changes.beginBreak() }
    line.carryOut(request, on: poller, while: { [weak self, attachment] in attachment == self?.attachment }) {
      [weak self, attachment] result in
      guard let self, attachment == self.attachment else {
        return done(.failure(LinkRefusal("the link has closed")))
      }
      switch result {
      case .success(let settings):
        if let settings { isSet(to: settings) } else { reportOutputs(except: nil) }
        delegate.resume()
        change(by: requests.dropFirst(), then: done)
      case .failure(let fault):
        delegate.resume()
        done(.failure(LinkRefusal(fault.message)))
        runAll()
      }
    }
  }

  // MARK: - Reset recipes

  /// Whether the request belongs to a reset recipe, so that nothing is left to do but to answer it.
  private func isTakenByRecipe(_ request: ControlChannelRequest, of session: Session) -> Bool {
    if case .carryOut = resets.take(request, of: session.number) { return false }
    changes.remember(request, of: session.number)
    return true
  }

  /// The session's bytes wait while a change before them is held back.
  func keepsBytes(of session: Session) -> Bool { resets.isHolding(for: session.number) }

  /// Bytes of the session follow its requests. Those behind another request do not come next.
  func inputFollows(of session: Session) {
    guard keepsBytes(of: session), session.controlChannel?.isNextRequest(behind: session.pump.moved) == false
    else { return }
    resets.release()
  }

  /// Carries out the recipe for `baudway reset`.
  func reset(by recipe: ResetRecipe, then done: @escaping (Result<Void, LinkRefusal>) -> Void) {
    resets.run(recipe, then: done)
  }

  // MARK: - At once

  /// Why the client may not purge; nil if it may. While there is no endpoint, it may purge its own kept bytes.
  func refusalToPurge(of session: Session) -> String? {
    isAttached ? refusal(of: session) : rights.writeRefusal(of: session)
  }

  /// Purges at once, not after the bytes before the request: the purge may have to drop them. Commands among the
  /// dropped bytes run now.
  func purge(_ what: Purge, _ id: ControlChannelRequest.ID?, of session: Session) {
    guard let controlChannel = session.controlChannel else { return }
    guard let line else { return controlChannel.reply(.done(id)) }
    controlChannel.beginAtOnce()
    delegate.purge(what, of: line) { [weak self] result in
      controlChannel.endAtOnce()
      switch result {
      case .success: controlChannel.reply(.done(id))
      case .failure(let error): controlChannel.reply(.failed(id, error.text))
      }
      if let self, !session.isOver { delegate.takeRequests(of: session) }
    }
    run(session)
  }

  /// Starts or stops reports of modem lines and errors to the client.
  func watch(_ isOn: Bool, _ id: ControlChannelRequest.ID?, of session: Session) {
    guard let controlChannel = session.controlChannel else { return }
    if !isOn {
      reports.stopWatch(controlChannel)
      controlChannel.reply(.done(id))
    } else if isAttached || isComing || !controlChannel.hasTexts {
      reports.startWatch(controlChannel, id)
    } else {
      controlChannel.reply(.failed(id, "the link is \(linkStatus.word)"))
    }
  }
}

extension LineControl: LinePartOwner {
  func hold() { delegate.hold() }
  func resume() { delegate.resume() }
  func report(_ event: ControlChannelEvent) { report(event, except: nil) }
  func reportOutputs(except session: UInt64?) {
    guard let outputs = changes.outputs else { return }
    report(outputs, except: reports.clients.first { $0.session.number == session }?.session)
  }
  func runAll() { for (session, _) in reports.clients { goOn(session) } }
  func lineWasReset(by recipe: ResetRecipe, for session: UInt64?, _ result: Result<Void, SystemError>) {
    delegate.lineWasReset(by: recipe, for: session, result)
  }
}
