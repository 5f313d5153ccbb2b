// What clients have changed on the line. Settings and a break are undone when their client ends, and its settings are
// made again on the next endpoint. LineControl owns it, and reports each command.

import ByteStreams
import StreamBroker

/// The LineControl, as its parts use it.
protocol LinePartOwner: AnyObject {
  /// Keeps clients' input back. Each call needs its own `resume`.
  func hold()
  func resume()
  func report(_ event: ControlChannelEvent)
  /// Reports DTR, RTS and break to all but the session with this number, which knows of its own change.
  func reportOutputs(except session: UInt64?)
  /// Runs the commands that waited for the line.
  func runAll()
  /// `recipe` was replayed for the session, or for `baudway reset`.
  func lineWasReset(by recipe: ResetRecipe, for session: UInt64?, _ result: Result<Void, SystemError>)
}

final class LineChanges {
  unowned var owner: (any LinePartOwner)!  // set once
  private let poller: Poller
  private var line: (any SerialLine)?
  /// Counts attached and detached lines, to recognise and ignore a late result of one that is gone.
  private var attachment = 0

  /// The configuration's settings: the line returns to these.
  private var base: LineSettings?
  /// The line is returning to `base`, or the settings of the line before are made again. Commands wait.
  private(set) var isRestoring = false
  /// That was not over when the line was detached.
  private var wasRestoring = false
  // Numbers of sessions.
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

  init(on poller: Poller) { self.poller = poller }

  /// DTR, RTS and break; nil where nothing is known of them.
  var outputs: ControlChannelEvent? {
    guard let line, line.outputStates != ModemOutputStates() || hadBreak else { return nil }
    return .outputs(line.outputStates, isBreak: breaker != nil)
  }

  // MARK: - The endpoint

  func attach(_ line: (any SerialLine)?) {
    attachment += 1
    self.line = line
    base = line?.settings
    (setter, breaker, hadBreak, wasRestoring) = (nil, nil, false, false)
  }

  /// Returns whether a client's settings are made again first, by `makeAgain`. Until then, commands wait.
  func mustMakeAgain() -> Bool {
    isRestoring = line != nil && wishes != nil
    return isRestoring
  }

  func detach() {
    attachment += 1
    line = nil
    wasRestoring = isRestoring
    isRestoring = false
  }

  /// A reload has changed the settings of the line.
  func isSet(to settings: LineSettings) {
    base = settings
    setter = nil
  }

  /// The settings in force, or those to which the line returns because the session that set it is over. Nil without a
  /// line.
  func lastingSettings(isHere: (UInt64) -> Bool) -> LineSettings? {
    guard let line else { return nil }
    let isReturning = setter.map { !isHere($0) } ?? isRestoring
    return isReturning ? base : line.settings
  }

  /// The settings to restore on a detached line, if a client has changed them or is about to.
  func settingsToRestore(of line: (any SerialLine)?) -> LineSettings? {
    guard let line, line.settings != base || setter != nil || wasRestoring else { return nil }
    return base
  }

  // MARK: - Commands

  /// The session's request begins. Remembers which session has changed the settings or has begun a break.
  func begin(_ request: ControlChannelRequest, by session: UInt64) {
    switch request {
    case .line: setter = session
    case .break(let isOn):
      if isOn && breaker == nil { breaker = session }
      hadBreak = true
    case .breakFor: if breaker == nil { breaker = session }
    default: break
    }
  }

  /// A break that is no client's begins, and ends by itself: clients know of the state from now on.
  func beginBreak() { hadBreak = true }

  func refused(_ request: ControlChannelRequest, by session: UInt64) {
    if case .break(isOn: true) = request, breaker == session { breaker = nil }
  }

  /// The request was carried out. With `isOver` its session has ended meanwhile.
  func carriedOut(_ request: ControlChannelRequest, by session: UInt64, isOver: Bool) {
    switch request {
    case .break(let isOn): breaker = isOn ? session : nil
    case .breakFor: breaker = nil
    case .line: setter = session  // a reload may have come between
    default: break
    }
    if !isOver { remember(request, of: session) }
  }

  /// Keeps what the session has set, or would have set if the link were not away, for the next endpoint.
  func remember(_ request: ControlChannelRequest, of session: UInt64) {
    var wishes = wishes.flatMap { $0.session == session ? $0 : nil } ?? Wishes(session: session)
    switch request {
    case .line(let change): wishes.line = wishes.line.merged(with: change)
    case .output(let output, let isOn): wishes.outputs[output] = isOn
    default: return
    }
    self.wishes = wishes
  }

  /// The session needs its settings on no further endpoint.
  func forget(_ session: UInt64) { if wishes?.session == session { wishes = nil } }

  func isSetter(_ session: UInt64) -> Bool { setter == session }

  // MARK: - Made again

  /// The endpoint is attached, and input is held back if `mustMakeAgain` has returned true.
  func makeAgain() {
    guard isRestoring, let line, let wishes else { return owner.runAll() }
    setter = wishes.line == ControlChannelRequest.LineChange() ? nil : wishes.session
    let settings = wishes.line.applied(to: line.settings)
    guard settings != line.settings else { return makeAgain([.dtr, .rts], wishes, on: line) }
    line.apply(settings) { [weak self, attachment] _ in
      guard let self, attachment == self.attachment else { return }
      owner.report(.line(line.settings))
      makeAgain([.dtr, .rts], wishes, on: line)
    }
  }

  private func makeAgain(_ outputs: ArraySlice<ModemOutput>, _ wishes: Wishes, on line: any SerialLine) {
    guard let output = outputs.first else {
      owner.reportOutputs(except: nil)
      // The client has ended meanwhile.
      if setter == nil, line.settings != base { return applyBase(to: line) }
      return restored()
    }
    guard let isOn = wishes.outputs[output], isOn != line.outputStates[output] else {
      return makeAgain(outputs.dropFirst(), wishes, on: line)
    }
    line.set(output, isOn) { [weak self, attachment] _ in
      guard let self, attachment == self.attachment else { return }
      makeAgain(outputs.dropFirst(), wishes, on: line)
    }
  }

  private func restored() {
    // The last session that ends may free it.
    guard let owner else { return }
    isRestoring = false
    owner.resume()
    owner.runAll()
  }

  // MARK: - Undone

  func endBreak(of session: UInt64) {
    guard breaker == session else { return }
    breaker = nil
    line?.setBreak(false) { [weak self, attachment] _ in
      if let self, attachment == self.attachment { owner.reportOutputs(except: nil) }
    }
  }

  /// Undoes what the session, which is over, has set. Other sessions' commands and bytes wait.
  func restore(after session: UInt64) {
    guard setter == session else { return }
    setter = nil
    guard let line, line.settings != base, !isRestoring else { return }
    isRestoring = true
    owner.hold()
    line.whenSent(on: poller) { [weak self, attachment] in
      if let self, attachment == self.attachment { applyBase(to: line) }
    }
  }

  private func applyBase(to line: any SerialLine) {
    guard let base else { return }
    line.apply(base) { [weak self, attachment] _ in
      guard let self, attachment == self.attachment else { return }
      // A reload has changed the settings meanwhile.
      guard self.base == base else { return applyBase(to: line) }
      owner.report(.line(line.settings))
      restored()
    }
  }
}
