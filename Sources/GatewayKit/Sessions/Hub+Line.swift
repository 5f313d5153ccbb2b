// The line behind the endpoint, as far as several share it: what one of them has set goes back when he leaves, and what it tells
// by itself, modem lines and errors, reaches those who asked for it. Whoever comes by another door than `baudway.v1` uses the same.

import ByteStreams
import StreamBroker

/// What a hub knows of its endpoint's line.
struct LineKeeping {
  /// As the configuration has it.
  var base: LineSettings?
  /// Who has it otherwise now, and who began a break that is not ended.
  weak var setter: Session?
  weak var breaker: Session?
  /// What one had set is being taken back; commands wait.
  var isPuttingRight = false
  /// So many have left while a command of theirs is carried out; those of others wait.
  var busyLeavers = 0

  /// It is asked to tell of itself, and what it told last.
  var isWatched = false
  var isWatchEnding = false
  var condition: LineCondition?
  /// They asked to hear from it, and it has not answered yet.
  var askers: [(desk: Desk, id: DeskRequest.ID?)] = []
}

extension Hub {
  static let notSupported = "not supported by this endpoint"

  /// It is about to be opened, maybe behind the last words of the one before: what is asked of it waits, as bytes do.
  var isComing: Bool { endpoint == nil && [.opening, .closed, .draining].contains(linkStatus) }

  func lineIsAttached(_ line: (any SerialLine)?) {
    keeping.base = line?.settings
    keeping.setter = nil
    keeping.breaker = nil
    if let line { tellAll(.line(line.settings)) }
    if isWatchWanted { startWatching() }
  }

  /// Whoever waits for what is done to it need not wait on.
  func lineIsDetached(_ line: (any SerialLine)?) {
    endWatch(of: line)
    keeping.isPuttingRight = false
    keeping.busyLeavers = 0
  }

  /// It tells nothing from now on.
  private func endWatch(of line: (any SerialLine)?) {
    if keeping.isWatched { line?.endWatch() }
    keeping.isWatched = false
    keeping.condition = nil
  }

  /// A reload has put other settings in force: whoever leaves leaves these.
  func lineIsSet(to settings: LineSettings) {
    keeping.base = settings
    keeping.setter = nil
    tellAll(.line(settings))
  }

  // MARK: - What one leaves behind

  /// He is out of the list. While one of his commands is carried out, its end does this.
  func leavesLine(_ session: Session) {
    if lineHolder === session { lineHolder = nil }
    guard let desk = session.desk else { return }
    stopWatching(desk)
    guard desk.isBusy, endpoint != nil else { return putLineRight(behind: session) }
    keeping.busyLeavers += 1
  }

  func putLineRight(behind session: Session) {
    endBreak(of: session)
    guard keeping.setter === session else { return }
    keeping.setter = nil
    guard let endpoint, let line = endpoint.serialLine, line.settings != keeping.base, !keeping.isPuttingRight else {
      return
    }
    keeping.isPuttingRight = true
    holdInput()
    line.whenSent(on: poller) { [weak self, weak endpoint] in
      guard let self, let endpoint, endpoint === self.endpoint else { return }
      applyBase(to: line, of: endpoint)
    }
  }

  private func applyBase(to line: any SerialLine, of endpoint: any ByteStream) {
    guard let base = keeping.base else { return }
    line.apply(base) { [weak self, weak endpoint] _ in
      guard let self, let endpoint, endpoint === self.endpoint else { return }
      // A reload came in between.
      guard keeping.base == base else { return applyBase(to: line, of: endpoint) }
      keeping.isPuttingRight = false
      tellAll(.line(line.settings))
      resumeInput()
      carryOutAll()
    }
  }

  /// What an endpoint that was let go of has to be put back to, where somebody has set it otherwise or is about to.
  func settingsToRestore(of line: (any SerialLine)?) -> LineSettings? {
    guard let line, line.settings != keeping.base || keeping.setter != nil else { return nil }
    return keeping.base
  }

  /// A break holds the line for everybody: it ends with him who began it, or with his right to write.
  func endBreak(of session: Session) {
    guard keeping.breaker === session else { return }
    keeping.breaker = nil
    endpoint?.serialLine?.setBreak(false) { _ in }
  }

  // MARK: - What the line tells

  func watch(_ isOn: Bool, _ id: DeskRequest.ID?, _ desk: Desk) {
    guard isOn else {
      stopWatching(desk)
      return desk.reply(.done(id))
    }
    guard endpoint != nil || isComing else { return desk.reply(.failed(id, "the link is \(linkStatus.word)")) }
    if let condition = keeping.condition { return begin(desk, id, condition) }
    guard keeping.askers.count < Desk.mostMarks else { return desk.reply(.failed(id, "too many ask for it")) }
    keeping.askers.append((desk, id))
    if endpoint != nil { startWatching() }
  }

  private func begin(_ desk: Desk, _ id: DeskRequest.ID?, _ condition: LineCondition) {
    if !desk.watches { desk.errors = LineCounts() }
    desk.watches = true
    desk.reply(.done(id))
    if let inputs = condition.inputs { desk.tell(.modem(inputs, changes: 0)) }
  }

  private func stopWatching(_ desk: Desk) {
    desk.watches = false
    keeping.askers.removeAll { asker in
      guard asker.desk === desk else { return false }
      desk.reply(.failed(asker.id, "taken back"))
      return true
    }
    guard keeping.isWatched, !isWatchWanted, !keeping.isWatchEnding else { return }
    // Not at once: who asks and takes it back, again and again, would start and end a thread each time.
    keeping.isWatchEnding = true
    poller.timers.after(Self.watchLinger) { [weak self] in
      guard let self else { return }
      keeping.isWatchEnding = false
      guard !isWatchWanted else { return }
      endWatch(of: endpoint?.serialLine)
    }
  }

  private static let watchLinger = Duration.seconds(1)

  private var isWatchWanted: Bool {
    !keeping.askers.isEmpty || sessions.contains { $0.desk?.watches == true }
  }

  private func startWatching() {
    guard !keeping.isWatched else { return }
    guard let endpoint, let line = endpoint.serialLine else { return refuseAskers(Self.notSupported) }
    keeping.isWatched = true
    line.watch { [weak self, weak endpoint] result in
      guard let self, let endpoint, endpoint === self.endpoint else { return }
      switch result {
      case .success(let condition): lineTells(condition)
      case .failure(let error):
        keeping.isWatched = false
        keeping.condition = nil
        refuseAskers(error.meansNoSuchThing ? Self.notSupported : error.text)
      }
    }
  }

  func refuseAskers(_ reason: String) {
    let askers = keeping.askers
    keeping.askers = []
    for (desk, id) in askers { desk.reply(.failed(id, reason)) }
  }

  private func lineTells(_ now: LineCondition) {
    let before = keeping.condition
    keeping.condition = now
    let changes = before.map { now.changes &- $0.changes } ?? 0
    var errors = LineCounts()
    if let counts = now.counts, let last = before?.counts { errors = counts.since(last) }
    for case let desk? in sessions.map(\.desk) where desk.watches {
      if let inputs = now.inputs, inputs != before?.inputs || changes > 0 {
        desk.tell(.modem(inputs, changes: changes))
      }
      guard errors != LineCounts() else { continue }
      desk.errors = desk.errors.adding(errors)
      desk.tell(.errors(desk.errors))
    }
    let askers = keeping.askers
    keeping.askers = []
    for (desk, id) in askers { begin(desk, id, now) }
  }
}
