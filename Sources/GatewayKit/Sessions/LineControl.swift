// The endpoint's serial line as several clients share it: runs their commands, and undoes them when the client ends. A
// command keeps its position among the client's bytes: it runs once the bytes before it are written, and the bytes
// after it wait. LineWatch reports what the line does by itself. LineControl can hold and resume the clients' input, no
// more. Every protocol with line commands uses it: `baudway.v1`, RFC 2217 and ptys.

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
  /// Nil until a client asks for reports.
  private var lineWatch: LineWatch?
  /// Gets every report, as a client that watches the line.
  var recorder: CaptureTap? {
    didSet {
      if let recorder {
        report(to: recorder)
        (lineWatch ?? startLineWatch()).recorder = recorder
      } else {
        lineWatch?.recorder = nil
      }
    }
  }
  /// Sessions that have a control channel.
  private var sessions: [(session: Session, controlChannel: ControlChannel)] = []

  private var linkStatus = LinkStatus.closed
  private var isAttached = false
  private var line: (any SerialLine)?
  /// Counts attached and detached endpoints, to recognise and ignore a late result of one that is gone.
  private var attachment = 0

  private var writers: Config.Clients.Writers
  // Session numbers.
  /// With `writers: all`: the first session that used the line. Only this one may use it, until it ends.
  private(set) var holder: UInt64?
  /// The last session that changed the settings, and the one whose break has not ended.
  private var setter: UInt64?
  private var breaker: UInt64?
  /// A client has begun a break on this endpoint, so clients know of the state.
  private var hadBreak = false
  /// What one client has set, to set it again when the endpoint comes back.
  private struct Wishes {
    let session: UInt64
    var line = ControlChannelRequest.LineChange()
    var outputs = ModemOutputStates()
  }
  /// Of the last session that set something.
  private var wishes: Wishes?
  /// The configuration's settings: the line returns to these.
  private var base: LineSettings?
  /// The line is returning to `base`. Commands wait.
  private var isRestoring = false
  /// Sessions that ended with a command in flight. Other sessions' commands wait until this is 0.
  private var endedWithCommand = 0

  private let resets: ResetControl
  /// Answers to `baudway reset` that are due.
  private var resetAnswers: [Int: (Result<Void, LinkRefusal>) -> Void] = [:]
  private var lastReset = 0

  init(writers: Config.Clients.Writers, reset: ResetRecipe? = nil, on poller: Poller) {
    self.writers = writers
    resets = ResetControl(reset, on: poller)
    self.poller = poller
  }

  /// Call it after a reload. With a policy other than `all`, the right to write includes the line.
  func update(writers: Config.Clients.Writers) {
    self.writers = writers
    if writers != .all { holder = nil }
  }

  /// Call it after a reload.
  func update(reset recipe: ResetRecipe?) {
    guard recipe != resets.recipe else { return }
    if let line { release(on: line) }
    resets.reset(to: recipe)
  }

  // MARK: - Sessions

  func join(_ session: Session) {
    guard let controlChannel = session.controlChannel else { return }
    sessions.append((session, controlChannel))
    reportStatus(to: session)
  }

  /// The session is over. If one of its commands is in flight, its changes are undone when that command ends.
  func leave(_ session: Session) {
    guard let controlChannel = session.controlChannel else { return }
    sessions.removeAll { $0.session === session }
    lineWatch?.stop(controlChannel)
    if setter == session.number { delegate.lineChanged() }
    guard controlChannel.isBusy, isAttached else { return letGo(session) }
    if holder == session.number { holder = nil }
    if wishes?.session == session.number { wishes = nil }
    endedWithCommand += 1
  }

  /// The client has finished sending and all its input is delivered: TCP cannot tell whether it has closed. It still
  /// receives for a while, but the next client must not wait for that. Commands under way come first.
  func inputIsOver(of session: Session) {
    guard let controlChannel = session.controlChannel, !session.isOver, !controlChannel.isBusy,
      controlChannel.marks.isEmpty
    else { return }
    letGo(session)
  }

  /// The session no longer uses the line: others may, and what it has changed is undone.
  private func letGo(_ session: Session) {
    if holder == session.number { holder = nil }
    if wishes?.session == session.number { wishes = nil }
    restore(after: session)
  }

  /// Reports the current state of link and line.
  func reportStatus(to session: Session) {
    guard let controlChannel = session.controlChannel else { return }
    controlChannel.report(.link(linkStatus))
    if let line {
      controlChannel.report(.line(line.settings))
      if let outputs = outputs(of: line) { controlChannel.report(outputs) }
    }
    lineWatch?.reportStatus(to: controlChannel)
  }

  /// The same for a recording that begins.
  private func report(to recorder: CaptureTap) {
    recorder.report(.link(linkStatus))
    guard let line else { return }
    recorder.report(.line(line.settings))
    if let outputs = outputs(of: line) { recorder.report(outputs) }
  }

  /// Nil where nothing is known of DTR, RTS and break.
  private func outputs(of line: any SerialLine) -> ControlChannelEvent? {
    guard line.outputStates != ModemOutputStates() || hadBreak else { return nil }
    return .outputs(line.outputStates, isBreak: breaker != nil)
  }

  private func report(_ event: ControlChannelEvent, except session: Session? = nil) {
    if case .line = event { delegate.lineChanged() }
    recorder?.report(event)
    for other in sessions where other.session !== session { other.controlChannel.report(event) }
  }

  // MARK: - The endpoint

  /// A link is being opened, or will be once the last one has closed in order. Commands wait for it, as bytes do.
  private var isComing: Bool { !isAttached && [.opening, .closed, .draining].contains(linkStatus) }

  func linkIs(_ status: LinkStatus) {
    linkStatus = status
    report(.link(status))
    guard case .waiting = status, !isAttached else { return }
    // The opening that these clients waited for has failed.
    lineWatch?.refuse("the link is waiting")
    runAll()
  }

  /// Returns whether the client's settings are applied again first; input must wait for that. Call `begin` after this.
  func attach(_ line: (any SerialLine)?) -> Bool {
    attachment += 1
    isAttached = true
    self.line = line
    base = line?.settings
    (setter, breaker, hadBreak) = (nil, nil, false)
    resets.reset(to: resets.recipe)
    if let line {
      report(.line(line.settings))
      if let outputs = outputs(of: line) { report(outputs) }
    }
    for (_, controlChannel) in sessions { controlChannel.abandon() }
    lineWatch?.attach(line)
    line?.observe { [weak self, attachment] in
      guard let self, attachment == self.attachment, let line = self.line else { return }
      report(.line(line.settings))
      if let outputs = outputs(of: line) { report(outputs) }
    }
    isRestoring = line != nil && wishes != nil
    return isRestoring
  }

  /// The endpoint is attached, and input is held back if `attach` has returned true.
  func begin() {
    guard isRestoring, let line, let wishes else { return runAll() }
    setter = wishes.line == ControlChannelRequest.LineChange() ? nil : wishes.session
    let settings = wishes.line.applied(to: line.settings)
    guard settings != line.settings else { return setAgain([.dtr, .rts], wishes, on: line) }
    line.apply(settings) { [weak self, attachment] _ in
      guard let self, attachment == self.attachment else { return }
      report(.line(line.settings))
      setAgain([.dtr, .rts], wishes, on: line)
    }
  }

  private func setAgain(_ outputs: ArraySlice<ModemOutput>, _ wishes: Wishes, on line: any SerialLine) {
    guard let output = outputs.first else {
      if let outputs = self.outputs(of: line) { report(outputs) }
      // The client has ended meanwhile.
      if setter == nil, line.settings != base { return applyBase(to: line) }
      return restored()
    }
    guard let isOn = wishes.outputs[output], isOn != line.outputStates[output] else {
      return setAgain(outputs.dropFirst(), wishes, on: line)
    }
    line.set(output, isOn) { [weak self, attachment] _ in
      guard let self, attachment == self.attachment else { return }
      setAgain(outputs.dropFirst(), wishes, on: line)
    }
  }

  private func restored() {
    isRestoring = false
    delegate.resume()
    runAll()
  }

  func detach() {
    attachment += 1
    isAttached = false
    line = nil
    delegate.lineChanged()
    lineWatch?.detach()
    isRestoring = false
    endedWithCommand = 0
    resets.reset(to: resets.recipe)
    resets.running = 0
    let answers = resetAnswers.values
    resetAnswers = [:]
    for answer in answers { answer(.failure(LinkRefusal("the link has closed"))) }
  }

  /// A reload has changed the settings of the line.
  func isSet(to settings: LineSettings) {
    base = settings
    setter = nil
    report(.line(settings))
  }

  /// The settings in force, or those to which the line returns because the session that set it is over. Nil without a
  /// line.
  var lastingSettings: LineSettings? {
    guard let line else { return nil }
    let isReturning = setter == nil ? isRestoring : !sessions.contains { $0.session.number == setter }
    return isReturning ? base : line.settings
  }

  /// The settings to restore on a detached endpoint, if a client has changed them or is about to.
  func settingsToRestore(of line: (any SerialLine)?) -> LineSettings? {
    guard let line, line.settings != base || setter != nil else { return nil }
    return base
  }

  // MARK: - Rights

  /// Why the client may not write, and so may not use the line; nil if it may.
  private func writeRefusal(_ session: Session) -> String? {
    if session.accepted.role == .monitor { return "a monitor may only read" }
    guard session.up.mayWrite else {
      return writers == .one ? "another client has the writer role" : "no client may write on this route"
    }
    return nil
  }

  /// Why the client may not use the line now; nil if it may. With `writers: all` the client then holds the line.
  private func refusal(of session: Session) -> String? {
    if let writeRefusal = writeRefusal(session) { return writeRefusal }
    guard line != nil else { return isAttached ? Self.notSupported : "the link is \(linkStatus.word)" }
    if let holder, holder != session.number { return "session \(holder) holds the line settings" }
    if writers == .all { holder = session.number }
    return nil
  }

  // MARK: - Commands

  /// Adds a request that keeps its position among the session's bytes: after all bytes read so far.
  func add(_ request: ControlChannelRequest, _ id: ControlChannelRequest.ID?, of session: Session) {
    let position = session.pump.moved &+ UInt64(session.pump.count)
    session.controlChannel?.add(ControlChannel.Mark(id: id, request: request, position: position))
    run(session)
  }

  /// Runs the commands that waited for the line.
  func runAll() {
    for (session, _) in sessions { goOn(session) }
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
    while !isComing, !isRestoring, endedWithCommand == 0,
      resets.mayTake(controlChannel.marks.first?.request, of: session.number),
      let (mark, turn) = controlChannel.begin(moved: session.pump.moved, isEmpty: session.pump.count == 0)
    {
      if mark.request == .query {
        controlChannel.end(turn)
        var reply = ControlChannelReply.done(mark.id, line?.settings)
        reply.isUnsupported = line == nil
        controlChannel.reply(reply)
        continue
      }
      if !isAttached, !controlChannel.hasTexts, remembers(mark.request, of: session) {
        controlChannel.end(turn)
        var reply = ControlChannelReply.done(mark.id)
        reply.isRemembered = true
        controlChannel.reply(reply)
        continue
      }
      if let refusal = refusal(of: session) {
        controlChannel.end(turn)
        if let line, isInForce(mark.request, on: line) {
          if case .line = mark.request {
            controlChannel.reply(.done(mark.id, line.settings))
          } else {
            controlChannel.reply(.done(mark.id))
          }
          continue
        }
        var reply = ControlChannelReply.failed(mark.id, refusal)
        reply.isUnsupported = isAttached && line == nil
        if !reply.isUnsupported { delegate.lineWasAsked(mark.request, refusal: refusal, by: session) }
        controlChannel.reply(reply)
        continue
      }
      guard let line else { return controlChannel.end(turn) }
      if isTakenByRecipe(mark, of: session, on: line) {
        controlChannel.reply(.done(mark.id))
        controlChannel.end(turn)
        continue
      }
      delegate.hold()
      note(mark.request, of: session)
      line.carryOut(mark.request, on: poller, while: { [weak self, attachment] in attachment == self?.attachment }) {
        [weak self, attachment] result in
        if let self, attachment == self.attachment { carriedOut(mark.request, result, on: line, by: session) }
        controlChannel.end(turn, ControlChannelReply(mark.id, result))
        guard let self, turn == controlChannel.turn || session.isOver else { return }
        // The endpoint has gone meanwhile. The commands that follow run on the next one, or are refused if there is
        // none.
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
      return
    }
  }

  /// Nothing would change, which needs no right: RFC 2217 programs set every value when they open a port.
  private func isInForce(_ request: ControlChannelRequest, on line: any SerialLine) -> Bool {
    switch request {
    case .line(let change): change.applied(to: line.settings) == line.settings
    case .output(let output, let isOn): line.outputStates[output] == isOn
    default: false
    }
  }

  private func carriedOut(
    _ request: ControlChannelRequest, _ result: Result<LineSettings?, ControlChannelReply.LineFault>,
    on line: any SerialLine, by session: Session
  ) {
    switch result {
    case .failure(let fault):
      if case .break(isOn: true) = request, breaker == session.number { breaker = nil }
      // A port without modem lines has refused nothing.
      if !fault.isUnsupported { delegate.lineWasAsked(request, refusal: fault.message, by: session) }
      switch request {
      case .break: break  // others may have been told that it is on
      case .output where !fault.isUnsupported: break  // a remote port answers with the state in force
      default: return
      }
      if let outputs = outputs(of: line) { report(outputs) }
    case .success:
      delegate.lineWasAsked(request, refusal: nil, by: session)
      switch request {
      case .break(let isOn): breaker = isOn ? session.number : nil
      case .breakFor: breaker = nil
      default: break
      }
      if !session.isOver { remember(request, of: session) }
      if case .line = request {
        setter = session.number  // a reload may have come between
        return
      }
      if let outputs = outputs(of: line) { report(outputs, except: session) }
    }
  }

  /// While the link is away, a client's settings are kept for its return: RFC 2217 has no answer for a failure. False if
  /// the client may not use the line.
  private func remembers(_ request: ControlChannelRequest, of session: Session) -> Bool {
    switch request {
    case .line, .output: break
    default: return false
    }
    guard writeRefusal(session) == nil, holder == nil || holder == session.number else { return false }
    if writers == .all { holder = session.number }
    remember(request, of: session)
    return true
  }

  private func remember(_ request: ControlChannelRequest, of session: Session) {
    var wishes = wishes.flatMap { $0.session == session.number ? $0 : nil } ?? Wishes(session: session.number)
    switch request {
    case .line(let change): wishes.line = wishes.line.merged(with: change)
    case .output(let output, let isOn): wishes.outputs[output] = isOn
    default: return
    }
    self.wishes = wishes
  }

  /// Remembers which session has changed the settings or has begun a break.
  private func note(_ request: ControlChannelRequest, of session: Session) {
    switch request {
    case .line: setter = session.number
    case .break(let isOn):
      if isOn && breaker == nil { breaker = session.number }
      hadBreak = true
    case .breakFor: if breaker == nil { breaker = session.number }
    default: break
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
    release(on: line)
    delegate.hold()
    if case .breakFor = request { hadBreak = true }
    line.carryOut(request, on: poller, while: { [weak self, attachment] in attachment == self?.attachment }) {
      [weak self, attachment] result in
      guard let self, attachment == self.attachment else {
        return done(.failure(LinkRefusal("the link has closed")))
      }
      switch result {
      case .success(let settings):
        if let settings { isSet(to: settings) } else if let outputs = outputs(of: line) { report(outputs) }
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
  private func isTakenByRecipe(_ mark: ControlChannel.Mark, of session: Session, on line: any SerialLine) -> Bool {
    let answer = resets.take(mark.request, of: session.number, line) {
      make($0, on: line)
    } expired: { [weak self, attachment] in
      if let self, attachment == self.attachment { release(on: line) }
    }
    switch answer {
    case .carryOut: return false
    case .answer: if session.pump.count > 0 { inputFollows(of: session) }
    case .replay(let recipe): replay(recipe, for: session.number, on: line) { _ in }
    }
    remember(mark.request, of: session)
    return true
  }

  /// The session's bytes wait while a change before them is held back.
  func keepsBytes(of session: Session) -> Bool { resets.isHolding(for: session.number) }

  /// Bytes of the session follow its requests. Those behind another request do not come next.
  func inputFollows(of session: Session) {
    guard let line, keepsBytes(of: session), session.controlChannel?.isNextRequest(behind: session.pump.moved) == false
    else { return }
    release(on: line)
  }

  /// Makes the change that was held back.
  private func release(on line: any SerialLine) {
    if let change = resets.release() { make(change, on: line) }
  }

  /// The request was answered before. Bytes wait for the port.
  private func make(_ change: ResetRecipe.Change, on line: any SerialLine) {
    delegate.hold()
    line.set(change.output, change.isOn) { [weak self, attachment] _ in
      if let self, attachment == self.attachment { delegate.resume() }
    }
  }

  /// Carries out the recipe for `baudway reset`.
  func reset(by recipe: ResetRecipe, then done: @escaping (Result<Void, LinkRefusal>) -> Void) {
    guard let line else { return done(.failure(.noLine)) }
    guard line.keepsTime else { return done(.failure(.elsewhere)) }
    if let change = resets.startOver(after: recipe) { line.set(change.output, change.isOn) { _ in } }
    replay(recipe, for: nil, on: line, then: done)
  }

  /// Other commands, and all input of clients, wait until it is done.
  private func replay(
    _ recipe: ResetRecipe, for session: UInt64?, on line: any SerialLine,
    then done: @escaping (Result<Void, LinkRefusal>) -> Void
  ) {
    lastReset += 1
    let number = lastReset
    resetAnswers[number] = done
    resets.running += 1
    delegate.hold()
    line.perform(recipe.lineSteps) { [weak self, attachment] result in
      guard let self, attachment == self.attachment else { return }
      resets.running -= 1
      delegate.lineWasReset(by: recipe, for: session, result)
      resetAnswers.removeValue(forKey: number)?(result.mapError { LinkRefusal($0) })
      delegate.resume()
      runAll()
    }
  }

  // MARK: - At once

  /// Why the client may not purge; nil if it may. While there is no endpoint, it may purge its own kept bytes.
  func refusalToPurge(of session: Session) -> String? { isAttached ? refusal(of: session) : writeRefusal(session) }

  /// Purges at once, not after the bytes before the request: the purge may have to drop them. Commands among the
  /// dropped bytes run now.
  func purge(_ what: Purge, _ id: ControlChannelRequest.ID?, of session: Session) {
    guard let controlChannel = session.controlChannel else { return }
    guard let line else { return controlChannel.reply(.done(id)) }
    controlChannel.atOnce += 1
    delegate.purge(what, of: line) { [weak self] result in
      controlChannel.atOnce -= 1
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
      lineWatch?.stop(controlChannel)
      controlChannel.reply(.done(id))
    } else if isAttached || isComing || !controlChannel.hasTexts {
      (lineWatch ?? startLineWatch()).start(controlChannel, id)
    } else {
      controlChannel.reply(.failed(id, "the link is \(linkStatus.word)"))
    }
  }

  private func startLineWatch() -> LineWatch {
    let watch = LineWatch(on: poller)
    if isAttached { watch.attach(line) }
    lineWatch = watch
    return watch
  }

  // MARK: - When a client ends

  /// A break blocks the line for all clients. So it ends with the session that began it, or when that session loses the
  /// right to write.
  func endBreak(of session: Session) {
    if let line, resets.isHolding(for: session.number) { release(on: line) }
    guard breaker == session.number else { return }
    breaker = nil
    guard let line else { return }
    line.setBreak(false) { [weak self, attachment] _ in
      guard let self, attachment == self.attachment, let outputs = outputs(of: line) else { return }
      report(outputs)
    }
  }

  /// Undoes what the session, which is over, has changed on the line. Other sessions' commands and bytes wait.
  private func restore(after session: Session) {
    endBreak(of: session)
    guard setter == session.number else { return }
    setter = nil
    guard let line, line.settings != base, !isRestoring else { return }
    isRestoring = true
    delegate.hold()
    line.whenSent(on: poller) { [weak self, attachment] in
      guard let self, attachment == self.attachment else { return }
      applyBase(to: line)
    }
  }

  private func applyBase(to line: any SerialLine) {
    guard let base else { return }
    line.apply(base) { [weak self, attachment] _ in
      guard let self, attachment == self.attachment else { return }
      // A reload has changed the settings meanwhile.
      guard self.base == base else { return applyBase(to: line) }
      report(.line(line.settings))
      restored()
    }
  }
}
