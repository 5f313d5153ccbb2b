// A port's line, as the fuzzer plays it: it answers calls in their order when the fuzzer says so, and refuses what the
// fuzzer says. Each call is reported to an account, which checks that there is a reason for it.

import Glibc

@testable import ByteStreams

/// Checks the calls of a line. Called in the middle of a turn, so it must not change the gateway.
protocol LineAccount: AnyObject {
  func line(_ line: PlayedLine, isAsked call: PlayedLine.Call)
  /// The call is carried out, or refused. The gateway gets the answer next.
  func line(_ line: PlayedLine, answers call: PlayedLine.Call, from before: LineSettings)
}

final class PlayedLine: SerialLine {
  enum Call: Equatable {
    case apply(LineSettings)
    case set(ModemOutput, Bool)
    case setBreak(Bool)
    case perform([LineStep])
    case unsent
    case purge(Purge)
    case watch

    var changesLine: Bool {
      switch self {
      case .apply, .set, .perform: true
      case .setBreak, .unsent, .purge, .watch: false
      }
    }
  }

  /// What the driver refuses.
  enum Refusal: Int {
    case nothing
    /// It has no parity bit.
    case parity
    /// Every change fails.
    case everything
  }

  weak var account: (any LineAccount)?
  private let clock: () -> UInt64
  private(set) var settings: LineSettings
  private(set) var outputStates: ModemOutputStates
  /// The same after the calls that are not carried out yet.
  private(set) var outputsAsked: ModemOutputStates
  private(set) var isBreak = false
  var refuses = Refusal.nothing { didSet { if refuses != .nothing { hasRefused = true } } }
  private(set) var hasRefused = false
  /// The unsent bytes that the driver reports.
  var unsentCount = 0
  /// When what the driver has reported is sent, at the bit rate.
  private(set) var sendsUntil: UInt64 = 0
  /// How often the driver has said that it holds some.
  private(set) var holdings = 0
  private var calls: [(call: Call, answer: () -> Void)] = []
  /// The stream is closed: later calls fail.
  var isClosed = false

  // What the driver reports by itself.
  private var watcher: ((Result<LineCondition, SystemError>) -> Void)?
  private(set) var condition = LineCondition(inputs: [.cts], counts: LineCounts())
  var isWatched: Bool { watcher != nil }

  /// The last report of unsent bytes, and since when reports were asked for; since bytes were written.
  private(set) var lastUnsent: Int?
  private var asksSince: UInt64?
  private var askedAt: UInt64?

  init(_ settings: LineSettings = LineSettings(), outputs: ModemOutputStates = .init(), clock: @escaping () -> UInt64) {
    self.settings = settings
    outputStates = outputs
    outputsAsked = outputs
    self.clock = clock
  }

  /// All bytes are sent as far as the gateway knows, or it has waited as long as it may.
  var isWaitedFor: Bool {
    lastUnsent == 0 || asksSince.map { clock() - $0 >= Duration.seconds(1).nanoseconds } ?? false
  }

  /// The gateway waits for bytes to be sent, and looks again a moment later.
  var isSending: Bool { asksSince != nil && !isWaitedFor }

  func bytesGo() { (asksSince, lastUnsent) = (nil, nil) }

  var isAsked: Bool { !calls.isEmpty }
  var isChanging: Bool { calls.contains { $0.call.changesLine } }
  func answer() { if !calls.isEmpty { calls.removeFirst().answer() } }
  func answerAll() { for _ in 0..<1000 where isAsked { answer() } }
  func forget() {
    calls = []
    watcher = nil
  }

  private func ask(_ call: Call, _ carryOut: @escaping () -> Void) {
    account?.line(self, isAsked: call)
    if call == .unsent {
      // A wait for the bytes looks every 10 ms until there are none, or later where answers or the lane are late. After
      // a longer pause, another one begins.
      let isLater = askedAt.map { clock() - $0 > Duration.milliseconds(100).nanoseconds } ?? false
      let goesOn = lastUnsent ?? 0 > 0 || calls.contains { $0.call == .unsent }
      if asksSince == nil || isLater && !goesOn { asksSince = clock() }
      askedAt = clock()
    }
    calls.append((call, carryOut))
  }

  /// Carries out a change, and returns its result.
  private func change<Value>(_ call: Call, _ result: () -> Value) -> Result<Value, SystemError> {
    let (before, isDone) = (settings, refuses != .everything && !isClosed)
    let value = isDone ? result() : nil
    account?.line(self, answers: call, from: before)
    return value.map { .success($0) } ?? .failure(SystemError("ioctl", isClosed ? EBADF : EIO))
  }

  func apply(_ settings: LineSettings, _ done: @escaping (Result<LineSettings, SystemError>) -> Void) {
    ask(.apply(settings)) { [self] in
      done(
        change(.apply(settings)) {
          self.settings = settings
          if refuses == .parity { self.settings.parity = .none }
          return self.settings
        })
    }
  }

  /// Only lines that are watched keep times: they answer a whole sequence at once.
  var keepsTime: Bool { account != nil }

  func perform(_ steps: [LineStep], _ done: @escaping (Result<Void, SystemError>) -> Void) {
    func end(of states: ModemOutputStates) -> ModemOutputStates {
      steps.reduce(states) { states, step in
        guard case .set(let dtr, let rts) = step else { return states }
        return ModemOutputStates(dtr: dtr ?? states.dtr, rts: rts ?? states.rts)
      }
    }
    outputsAsked = end(of: outputsAsked)
    ask(.perform(steps)) { [self] in done(change(.perform(steps)) { outputStates = end(of: outputStates) }) }
  }

  func set(_ line: ModemOutput, _ isOn: Bool, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    outputsAsked[line] = isOn
    ask(.set(line, isOn)) { [self] in done(change(.set(line, isOn)) { outputStates[line] = isOn }) }
  }

  func setBreak(_ isOn: Bool, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    ask(.setBreak(isOn)) { [self] in done(change(.setBreak(isOn)) { isBreak = isOn }) }
  }

  func unsent(_ done: @escaping (Result<Int, SystemError>) -> Void) {
    ask(.unsent) { [self] in
      lastUnsent = unsentCount
      let count = unsentCount
      unsentCount /= 2
      sendsUntil = max(sendsUntil, clock() &+ UInt64(count) &* settings.characterTime.nanoseconds)
      if count > 0 { holdings += 1 }
      done(isClosed ? .failure(SystemError("ioctl", EBADF)) : .success(count))
    }
  }

  func purge(_ what: Purge, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    ask(.purge(what)) { [self] in
      if what != .input { unsentCount = 0 }
      done(isClosed ? .failure(SystemError("ioctl", EBADF)) : .success(()))
    }
  }

  func watch(_ reported: @escaping (Result<LineCondition, SystemError>) -> Void) {
    watcher = reported
    ask(.watch) { [self] in if !isClosed { watcher?(.success(condition)) } }
  }

  func endWatch() { watcher = nil }

  /// The device changes its modem lines, or errors occur on the wire.
  func changes(_ change: (inout LineCondition) -> Void) {
    change(&condition)
    // The report to a new watcher comes first.
    if !isClosed, !calls.contains(where: { $0.call == .watch }) { watcher?(.success(condition)) }
  }
}
