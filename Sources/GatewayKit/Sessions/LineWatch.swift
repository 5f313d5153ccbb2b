// Reports the modem lines and errors of a serial line to the clients that asked for them. The driver is watched only
// while there is such a client.

import ByteStreams

final class LineWatch {
  private let poller: Poller
  private var isAttached = false
  private var line: (any SerialLine)?
  private var isWatched = false
  private var isEnding = false
  /// The last state reported; nil before the first report.
  private var condition: LineCondition?
  /// Clients whose request waits for the first report.
  private var askers: [(controlChannel: ControlChannel, id: ControlChannelRequest.ID?)] = []
  /// Clients that get reports, and the errors since each one asked. They stay while the endpoint is away.
  private var watchers: [(controlChannel: ControlChannel, errors: LineCounts)] = []

  /// Gets each report, too, with the errors since the one before.
  private var recorder: CaptureTap?

  /// Waiting requests of one client: no client takes the places of others.
  private static let mostAsked = ControlChannel.mostMarks
  // Without this pause, a client that starts and stops in turn would start and end a thread each time.
  private static let linger = Duration.seconds(1)

  init(on poller: Poller) { self.poller = poller }

  private var isWanted: Bool { !askers.isEmpty || !watchers.isEmpty || recorder != nil }

  func record(to recorder: CaptureTap?) {
    self.recorder = recorder
    if let recorder, let inputs = condition?.inputs { recorder.report(.modem(inputs, changes: 0)) }
    if recorder == nil { endSoonIfUnwanted() } else if isAttached { watch() }
  }

  // MARK: - Clients

  func start(_ controlChannel: ControlChannel, _ id: ControlChannelRequest.ID?) {
    if let condition { return begin(controlChannel, id, condition) }
    let asked = askers.count { $0.controlChannel === controlChannel }
    // A client of RFC 2217 sends a mask each time it wants other reports. It gets no reply, so once is enough.
    guard asked == 0 || controlChannel.hasTexts else { return }
    guard asked < Self.mostAsked else {
      return controlChannel.reply(.failed(id, "\(Self.mostAsked) of your requests wait for this"))
    }
    askers.append((controlChannel, id))
    if isAttached { watch() }
  }

  func stop(_ controlChannel: ControlChannel) {
    watchers.removeAll { $0.controlChannel === controlChannel }
    askers.removeAll { asker in
      guard asker.controlChannel === controlChannel else { return false }
      controlChannel.reply(.failed(asker.id, "cancelled by a later request"))
      return true
    }
    endSoonIfUnwanted()
  }

  private func endSoonIfUnwanted() {
    guard isWatched, !isWanted, !isEnding else { return }
    isEnding = true
    poller.timers.after(Self.linger) { [weak self] in
      guard let self else { return }
      isEnding = false
      if !isWanted { endWatch() }
    }
  }

  /// A client of RFC 2217 gets no reply, and goes on waiting, unless there will never be a report.
  func refuse(_ reason: String, forGood: Bool = false) {
    let refused = askers
    askers = forGood ? [] : askers.filter { !$0.controlChannel.hasTexts }
    for (controlChannel, id) in refused {
      var reply = ControlChannelReply.failed(id, reason)
      reply.isUnsupported = forGood
      controlChannel.reply(reply)
    }
  }

  /// Repeats the last report of the modem lines, if the client gets reports.
  func reportStatus(to controlChannel: ControlChannel) {
    guard let inputs = condition?.inputs, watchers.contains(where: { $0.controlChannel === controlChannel }) else {
      return
    }
    controlChannel.report(.modem(inputs, changes: 0))
  }

  private func begin(_ controlChannel: ControlChannel, _ id: ControlChannelRequest.ID?, _ condition: LineCondition) {
    if !watchers.contains(where: { $0.controlChannel === controlChannel }) {
      watchers.append((controlChannel, LineCounts()))
    }
    controlChannel.reply(.done(id))
    if let inputs = condition.inputs { controlChannel.report(.modem(inputs, changes: 0)) }
  }

  // MARK: - The line

  func attach(_ line: (any SerialLine)?) {
    isAttached = true
    self.line = line
    if isWanted { watch() }
  }

  func detach() {
    endWatch()
    isAttached = false
    line = nil
  }

  private func endWatch() {
    if isWatched { line?.endWatch() }
    isWatched = false
    condition = nil
  }

  private func watch() {
    guard !isWatched else { return }
    guard let line else { return refuse(LineControl.notSupported, forGood: true) }
    isWatched = true
    line.watch { [weak self, weak line] result in
      guard let self, let line, line === self.line else { return }
      switch result {
      case .success(let condition): changed(to: condition)
      case .failure(let error):
        isWatched = false
        condition = nil
        refuse(error.isUnsupported ? LineControl.notSupported : error.text, forGood: true)
      }
    }
  }

  private func changed(to now: LineCondition) {
    let before = condition
    condition = now
    let changes = before.map { now.changes &- $0.changes } ?? 0
    var errors = LineCounts()
    if let counts = now.counts, let last = before?.counts { errors = counts.since(last) }
    if let recorder {
      if let inputs = now.inputs, inputs != before?.inputs || changes > 0 {
        recorder.report(.modem(inputs, changes: changes))
      }
      if errors != LineCounts() { recorder.report(.errors(errors)) }
    }
    for watcher in watchers {  // a copy: a report may end a session, which calls `stop`
      if let inputs = now.inputs, inputs != before?.inputs || changes > 0 {
        watcher.controlChannel.report(.modem(inputs, changes: changes))
      }
      guard errors != LineCounts(),
        let index = watchers.firstIndex(where: { $0.controlChannel === watcher.controlChannel })
      else { continue }
      watchers[index].errors = watchers[index].errors.adding(errors)
      watchers[index].controlChannel.report(.errors(watchers[index].errors))
    }
    let begun = askers
    askers = []
    for (controlChannel, id) in begun { begin(controlChannel, id, now) }
  }
}
