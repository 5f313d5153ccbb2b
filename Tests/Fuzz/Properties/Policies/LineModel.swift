// Model of one link's serial line: for each change of the port there is a reason, and each request is answered with the
// value in force. A reason is a client's request, which may come only after the bytes before it, the end of a client
// that has changed the line, a reload, or an endpoint that is new or closes.

import Glibc
import StreamBroker
import StreamTelnet

@testable import ByteStreams
@testable import GatewayKit

final class LineModel: LineAccount {
  private unowned let run: PolicyRun
  private unowned let link: LinkModel
  init(_ run: PolicyRun, _ link: LinkModel) { (self.run, self.link) = (run, link) }

  /// The open line, as far as the hub knows.
  private var line: PlayedLine? { link.isAttached ? link.device?.line : nil }
  /// The configuration's settings.
  private var base = LineSettings()
  /// All settings that were in force, oldest first.
  private var versions: [LineSettings] = []
  var version: Int { max(0, versions.count - 1) }
  /// The port has refused a change, and had these settings before.
  private var revert: LineSettings?
  /// Settings of reloads that the port has not got yet.
  private var reloads: [LineSettings] = []
  /// A reload has changed `base`, perhaps while the line was returning to it.
  private var wasReloaded = false
  /// Whether each change under way comes from a reload, oldest first.
  private var areReloads: [Bool] = []
  /// The endpoint is new: what a client has set before may be set again.
  private var setsAgain = false
  /// With `writers: all`, the client that has changed the line.
  private weak var holder: ClientModel?
  private var policyChangedIn = 0
  private var breaksMayBe = 0

  func opened(_ line: PlayedLine) {
    (requested, mayBeRefused, wasInterrupted) = ([], false, false)
    mayBeBase = []
    performed = 0
    commands = []
    attachment += 1
    base = line.settings
    versions.append(base)
    reloads = []
    wereReloads = []
    revert = nil
    areReloads = []
    wasReloaded = false
    setsAgain = true
    line.account = self
  }

  /// A reload has changed the endpoint's settings, and only these.
  func isReloaded(to settings: LineSettings) {
    guard line != nil else { return }
    reloads.append(settings)
    wereReloads.insert(settings)
  }
  /// All of them on this endpoint.
  private var wereReloads: Set<LineSettings> = []

  /// The first byte of a client goes to the endpoint.
  func bytesGo() {
    setsAgain = false
    guard let line else { return }
    if line.isChanging { run.fail("a client's bytes go while the line is changed") }
    line.bytesGo()
  }

  // MARK: - Calls of the port

  func line(_ line: PlayedLine, isAsked call: PlayedLine.Call) {
    if run.tells { PoliciesProperty.report("     the port, at \(line.settings), is asked: \(call)") }
    if line.isClosed { return }  // it refuses that
    if line !== link.device?.line { return run.fail("a line is used that is not open: \(call)") }
    for case let client? in run.clients where client.link === link { client.follow() }
    switch call {
    case .apply(let settings):
      areReloads.append(false)
      check(settings, on: line)
    case .set(let output, let isOn): check(output, isOn)
    case .setBreak(let isOn):
      // A break ends with its client, too, which then holds the line no longer.
      guard isOn else { break }
      if let client = writer(where: { $0.asks(forBreak: true) != nil }) {
        takes(client, by: client.telnet?.asks(forBreak: true))
      } else {
        run.fail("a break begins, and no client that may has asked for it")
      }
    case .purge(let what):
      purges[what == .input ? 1 : what == .output ? 2 : 3] += 1
      if writer(where: { $0.asksToPurge(what) }) == nil, !run.mayFlush, line === self.line {
        run.fail("the port's \(what) is dropped, and no client that may has asked for it")
      }
    case .perform(let steps): check(steps)
    case .unsent, .watch: break
    }
  }

  /// A client of which this holds. If there are several, the one whose request is being carried out.
  private func writer(where fits: (TelnetModel) -> Bool) -> ClientModel? {
    var found: ClientModel?
    // The request of a client that is over may be carried out still.
    for client in run.telnetClients(of: link) {
      guard let telnet = client.telnet, fits(telnet), !client.isOver || found == nil else { continue }
      if found == nil || client.session?.controlChannel?.isBusy == true { found = client }
    }
    return found
  }

  /// A change may have been a reload's or a client's, so these may be the configuration's settings: as before the reload
  /// and after it. Until all is at rest, the line may be set to each of them.
  private var mayBeBase: [LineSettings] = []

  private func check(_ settings: LineSettings, on line: PlayedLine) {
    guard line === self.line else {
      if settings != base, !mayBeBase.contains(settings) {
        run.fail("a line that closes is set to \(settings), not \(base)")
      }
      return
    }
    if let before = revert {
      revert = nil
      if settings == before { return }
    }
    if let index = reloads.firstIndex(of: settings) {
      reloads.removeFirst(index + 1)
      wasReloaded = true
      areReloads[areReloads.count - 1] = true
      if writer(where: { $0.asks(for: settings, on: line) != nil }) != nil { mayBeBase += [base, settings] }
      return
    }
    if mayBeBase.contains(settings) { return }
    // Reloads that overlap set what the newest one wants.
    if wasReloaded, settings == LineSettings(run.route.endpoint) { return }
    if settings == line.settings, settings != base || !wasReloaded {
      run.fail("the port is set to \(settings), which it has already")
    }
    if setsAgain,
      run.telnetClients(of: link).contains(where: { client in
        client.telnet?.hasAskedFor(settings, insteadOf: line.settings) == true && client.everCouldWrite
      })
    {
      return
    }
    if let client = writer(where: { $0.asks(for: settings, on: line) != nil }) {
      if !line.isWaitedFor { run.fail("the line changes before the bytes ahead of that are sent") }
      let request = client.telnet?.asks(for: settings, on: line)
      if let request { checkPlace(request, of: client) }
      return takes(client, by: request)
    }
    if settings == base, run.telnetClients(of: link).contains(where: { $0.telnet?.mayHaveSet == true && $0.mayBeOver })
    {
      if !line.isWaitedFor, !setsAgain, !wasReloaded {
        run.fail("the line's settings return before the bytes of the last client are sent")
      }
      return
    }
    run.fail("the line is set to \(settings), and no client that may has asked for it")
  }

  private func check(_ output: ModemOutput, _ isOn: Bool) {
    // It may be set again; and a change of a recipe may have been held back, even beyond the end of its client.
    if setsAgain || !run.recipes.isEmpty || wasCommanded {
      if run.telnetClients(of: link).contains(where: {
        $0.telnet?.hasAskedFor(output, isOn) == true && $0.everCouldWrite
      }) {
        return
      }
    }
    if let client = writer(where: { $0.asks(for: output, isOn) != nil }) {
      let request = client.telnet?.asks(for: output, isOn)
      if let request { checkPlace(request, of: client) }
      return takes(client, by: request)
    }
    run.fail("\(output) is set to \(isOn), and no client that may has asked for it")
  }

  // MARK: - Reset recipes

  /// What clients have requested of DTR and RTS on this endpoint, in the order in which it was read.
  private(set) var requested: [(client: ObjectIdentifier, change: ResetRecipe.Change, at: UInt64, place: Int)] = []
  /// Another client may have held the line at one of these requests, which was refused then.
  private var mayBeRefused = false
  private var wasInterrupted = false
  /// The same from the beginning: requests wait for an endpoint.
  private var everRequested: [ResetRecipe.Change] = []
  private var performed = 0
  private var commands: [ResetRecipe] = []
  private var answersDue = 0
  private var wasCommanded = false

  func isRequested(_ output: ModemOutput, _ isOn: Bool, by client: ClientModel, behind place: Int) {
    everRequested.append(ResetRecipe.Change(output, isOn))
    mayBeRefused = mayBeRefused || !isAlone(client)
    requested.append((ObjectIdentifier(client), ResetRecipe.Change(output, isOn), run.now, place))
  }

  /// Something else was requested, so no recipe goes on behind it.
  func isInterrupted() { wasInterrupted = wasInterrupted || !requested.isEmpty }

  /// `baudway reset`
  func isCommanded(_ recipe: ResetRecipe) {
    wasCommanded = true
    commands.append(recipe)
    answersDue += 1
  }

  func commandIsAnswered() {
    answersDue -= 1
    if answersDue < 0 { run.fail("a reset by command is answered twice") }
  }

  private func check(_ steps: [LineStep]) {
    performed += 1
    if let index = commands.firstIndex(where: { $0.lineSteps == steps }) {
      everRequested += commands.remove(at: index).steps.flatMap(\.changes)
      return
    }
    guard let recipe = run.recipes.first(where: { $0.lineSteps == steps }) else {
      return run.fail("the port gets a sequence that is no recipe")
    }
    // All steps up to the marked one were requested, one after the other.
    var states = ModemOutputStates()
    var next = 0
    for change in everRequested {
      states[change.output] = change.isOn
      while next <= recipe.mark, recipe.steps[next].changes.allSatisfy({ states[$0.output] == $0.isOn }) { next += 1 }
    }
    everRequested += recipe.steps.flatMap(\.changes)
    if next <= recipe.mark { run.fail("\(recipe) is replayed, and no client has requested it") }
    if !run.telnetClients(of: link).contains(where: { $0.everCouldWrite }) {
      run.fail("\(recipe) is replayed, and no client may use the line")
    }
  }

  /// The only client has requested exactly the recipe, up to its marked step, without delay and without bytes between.
  private var mustBeReplayed: Bool {
    guard let recipe = run.recipes.first, !run.recipeHasChanged, !wasCommanded, performed == 0, !mayBeRefused,
      !wasInterrupted
    else { return false }
    let changes = recipe.steps[...recipe.mark].flatMap(\.changes)
    guard requested.map(\.change) == changes, Set(requested.map(\.client)).count == 1,
      Set(requested.map(\.place)).count == 1
    else { return false }
    return zip(requested, requested.dropFirst()).allSatisfy { $1.at - $0.at < Duration.seconds(1).nanoseconds }
  }

  /// A client's byte goes to the endpoint: what it has requested before of DTR and RTS is carried out.
  func mustHave(_ asked: ModemOutputStates, before client: ClientModel) {
    guard let line, !line.hasRefused, isAlone(client), !mayBeRefused, !requested.isEmpty, !run.recipeHasChanged else {
      return
    }
    // After a replay, the rest of the client's sequence is not carried out.
    guard performed == 0 else { return }
    for output in [ModemOutput.dtr, .rts] {
      if let isOn = asked[output], line.outputsAsked[output] != isOn {
        client.fail("sends bytes, and \(output) before them is not \(isOn)")
      }
    }
  }

  private func checkPlace(_ request: TelnetModel.Request, of client: ClientModel) {
    // Or else it is a request of a client that has gone.
    guard client.session?.controlChannel?.isBusy == true else { return }
    if client.keepsBytes(before: request.place) {
      run.fail("the line changes before bytes of client \(client.number) ahead of that")
    }
  }

  /// With `writers: all`, one client uses the line until it ends. What it has requested before the policy changed, and
  /// waits for bytes to be sent, takes the line from nobody.
  private func takes(_ client: ClientModel, by request: TelnetModel.Request?) {
    guard run.route.clients.writers == .all, link.isShared else { return holder = nil }
    if let step = request?.readIn, step <= policyChangedIn { return }
    if let holder, holder !== client, !holder.mayBeOver, run.step != run.reloadedIn {
      run.fail("client \(client.number) uses the line, which client \(holder.number) holds")
    }
    if run.tells { PoliciesProperty.report("     client \(client.number) uses the line") }
    holder = client
  }

  /// With other `writers`, a client loses the right to write for a moment: what it has begun of a recipe is over.
  func policyChanged(writers: Bool) {
    holder = nil
    policyChangedIn = run.step
    if writers { requested = [] }
  }

  func line(_ line: PlayedLine, answers call: PlayedLine.Call, from before: LineSettings) {
    if run.tells { PoliciesProperty.report("     the port, now at \(line.settings), answers: \(call)") }
    guard line === link.device?.line, case .apply(let asked) = call, !areReloads.isEmpty else { return }
    let isReload = areReloads.removeFirst()
    guard line === self.line else { return }
    if versions.last != line.settings { versions.append(line.settings) }
    if isReload {
      if line.refuses != .everything { base = line.settings }
    } else if line.settings != asked {
      revert = before
    }
  }

  // MARK: - Answers

  /// `own`: the value that the client asked for, or has asked for before.
  func isAnswered(
    _ answer: ComPortMessage, own: ComPortMessage?, by request: TelnetModel.Request, to client: ClientModel,
    isExact: Bool,
    _ number: (LineSettings) -> ComPortMessage?
  ) {
    guard run.isLine else {
      if answer != own { client.fail("is answered \(answer), and has asked for \(own.map { "\($0)" } ?? "nothing")") }
      return
    }
    // What the last endpoint was asked for when it went is set on this one next.
    if line != nil, request.attachment != attachment, answer == own { return }
    if let line, isExact {
      if answer != number(line.settings) { client.fail("is answered \(answer), and the line has \(line.settings)") }
      if request.change != .init(), mustBeDone(request, of: client), answer != own {
        client.fail("has set the line, and \(answer) is in force")
      }
      return
    }
    if line == nil, isExact, request.wasAway, request.attachment == attachment, link.isAway, request.change != .init(),
      isAlone(client),
      client.canWriteNow
    {
      if answer != own {
        client.fail("is answered \(answer) while the device is away, and has asked for \(own.map { "\($0)" } ?? "")")
      }
      return
    }
    if answer == own || versions[min(request.version, versions.count)...].contains(where: { number($0) == answer }) {
      return
    }
    if line == nil || !isExact, versions.contains(where: { number($0) == answer }) { return }
    client.fail("is answered \(answer), which was never in force")
  }

  func isAnswered(
    _ output: ModemOutput, _ isOn: Bool?, _ answer: ComPortMessage, by request: TelnetModel.Request,
    to client: ClientModel,
    isExact: Bool
  ) {
    if answer != output.message(true), answer != output.message(false) { return client.fail("is answered \(answer)") }
    guard isExact else { return }
    if line != nil, request.attachment != attachment, answer == isOn.map({ output.message($0) }) { return }
    guard run.isLine else {
      if let isOn, link.isAttached, answer != output.message(isOn) { client.fail("is answered \(answer), the other") }
      return
    }
    if line != nil, !run.recipes.isEmpty || wasCommanded {
      guard let isOn, mustBeDone(request, of: client) else { return }
      if answer != output.message(isOn) { client.fail("has set \(output), and is answered \(answer)") }
      if client.telnet?.isAnswered == true, mustBeReplayed {
        client.fail("has requested the recipe, which is not replayed")
      }
    } else if let line {
      let now = line.outputStates[output] ?? true
      if answer != output.message(now) { client.fail("is answered \(answer), and \(output) is \(now)") }
      if let isOn, isOn != now, mustBeDone(request, of: client) { client.fail("has set \(output), which is \(now)") }
    } else if let isOn, request.wasAway, request.attachment == attachment, link.isAway, client.canWriteNow,
      isAlone(client),
      answer != output.message(isOn)
    {
      client.fail("is answered \(answer) while the device is away, and has asked for the other")
    }
  }

  func isAnsweredAboutBreak(
    _ isOn: Bool?, _ answer: ComPortMessage, by request: TelnetModel.Request, to client: ClientModel, isExact: Bool
  ) {
    if answer != .control(5), answer != .control(6) { return client.fail("is answered \(answer)") }
    guard isExact, let isOn, let line, mustBeDone(request, of: client) else { return }
    if answer != .control(isOn ? 5 : 6) || line.isBreak != isOn { client.fail("is answered \(answer) about the break") }
  }

  func isPurged(_ what: UInt8, by request: TelnetModel.Request, of client: ClientModel, isExact: Bool) {
    guard isExact, line != nil, mustBeDone(request, of: client), purges[Int(what)] == request.purges[Int(what)] else {
      return
    }
    client.fail("is answered that \(what) is dropped, and the port was not asked for that")
  }
  /// How often the port was asked to drop what these numbers of RFC 2217 say.
  private(set) var purges = [0, 0, 0, 0]
  private(set) var attachment = 0

  /// Nothing may prevent the request: no policy, no other client, and not the port.
  private func mustBeDone(_ request: TelnetModel.Request, of client: ClientModel) -> Bool {
    guard let line, !line.hasRefused, request.attachment == attachment, !request.wasDetached, client.canWriteNow,
      !wasReloaded, reloads.isEmpty
    else {
      return false
    }
    return isAlone(client)
  }

  /// No other client has used the line, or may hold it.
  private func isAlone(_ client: ClientModel) -> Bool {
    run.telnetClients(of: link).allSatisfy { $0 === client || $0.isOver || $0.telnet?.hasAskedAnything != true }
      && requested.allSatisfy { $0.client == ObjectIdentifier(client) }
  }

  /// A gateway is told what others have changed.
  func isReported(_ message: ComPortMessage) {
    let isTrue = versions.contains { $0.messages.contains(message) } || message.kind == .dtr || message.kind == .rts
    if !isTrue { run.fail("a client is told \(message), which was never in force") }
  }

  /// A line that closes in order has the configuration's settings again.
  func isClosed(_ line: PlayedLine, of device: PlayedStream) {
    guard !line.isAsked, !line.hasRefused, !device.isBroken, !device.hasEnded, device.takesBytes, !run.hasShortDrains,
      run.telnetClients(of: link).contains(where: { $0.telnet?.mayHaveSet == true })
    else { return }
    // A reload may have been on its way to the port when it was released, and later ones did not reach it.
    if run.isReleased, wereReloads.contains(line.settings) { return }
    if line.settings != base, !mayBeBase.contains(line.settings), line.settings != LineSettings(run.route.endpoint) {
      run.fail("the line closes with \(line.settings), and the configuration says \(base)")
    }
  }

  // MARK: - Quiet

  func mustBeAtRest() {
    setsAgain = false
    guard let line, !line.isAsked else { return }
    mayBeBase = []
    let clients = run.telnetClients(of: link)
    if line.settings != base, line.refuses != .everything,
      !clients.contains(where: { $0.telnet?.mayHaveSet == true && !$0.isOver })
    {
      run.fail("the line has \(line.settings), and no client is left that has set it; the configuration says \(base)")
    }
    if line.isBreak, !line.hasRefused, !clients.contains(where: { $0.telnet?.mayHaveHadBreak == true && !$0.isOver }) {
      run.fail("the break does not end")
    }
    let isSimple = run.recipes.isEmpty && !wasCommanded
    for client in clients where !client.mayBeOver {
      client.telnet?.mustKnow(line.settings, isSimple ? line.outputStates : ModemOutputStates())
    }
    if answersDue > 0 { run.fail("a reset by command gets no answer") }
    mustHaveOutputs(line)
    if let inputs = line.condition.inputs { mustKnow(inputs) }
  }

  /// No change is held back any more.
  private func mustHaveOutputs(_ line: PlayedLine) {
    guard !line.hasRefused, !run.recipeHasChanged, performed == 0, !mayBeRefused,
      let client = run.telnetClients(of: link).first(where: { ObjectIdentifier($0) == requested.first?.client }),
      client.couldAlwaysWrite, !client.mayBeOver, isAlone(client)
    else { return }
    for output in [ModemOutput.dtr, .rts] {
      guard let last = requested.last(where: { $0.change.output == output })?.change.isOn else { continue }
      if line.outputStates[output] != last { client.fail("has set \(output) to \(last), and the port has not") }
    }
  }

  func mustKnow(_ inputs: ModemInputs) {
    var now: UInt8 = 0
    if inputs.contains(.cts) { now |= 0x10 }
    if inputs.contains(.dsr) { now |= 0x20 }
    if inputs.contains(.ri) { now |= 0x40 }
    if inputs.contains(.dcd) { now |= 0x80 }
    for client in run.telnetClients(of: link) where !client.mayBeOver {
      guard let telnet = client.telnet, telnet.isNotifiedOfAll else { continue }
      if telnet.lastModemState.map({ $0 & 0xF0 == now }) != true {
        client.fail("was last notified of modem state \(telnet.lastModemState ?? 0), and it is \(now)")
      }
    }
  }
}
