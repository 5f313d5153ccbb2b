// A serial line that records requests, and answers when the test says so, in order, as a port's queue does.

import ByteStreams

public final class ScriptedLine: SerialLine {
  public private(set) var applied: [LineSettings] = []
  public private(set) var outputs: [(line: ModemOutput, isOn: Bool)] = []
  public private(set) var breaks: [Bool] = []
  public private(set) var purges: [Purge] = []
  public var settings = LineSettings()
  public var outputStates = ModemOutputStates()
  /// The result of `apply`; nil: the requested settings.
  public var takes: ((LineSettings) -> Result<LineSettings, SystemError>)?

  private var unsent: [Int]
  /// Why the number of unsent bytes is unknown.
  public var unsentFails: SystemError?
  private var answers: [() -> Void] = []

  /// `unsent`: the answers for the number of unsent bytes; after the list's end, 0.
  public init(unsent: [Int] = []) { self.unsent = unsent }

  /// Number of unanswered calls.
  public var asked: Int { answers.count }

  /// Answers the oldest call.
  public func answer() { if !answers.isEmpty { answers.removeFirst()() } }

  public func apply(_ settings: LineSettings, _ done: @escaping (Result<LineSettings, SystemError>) -> Void) {
    applied.append(settings)
    answers.append { [self] in
      let result = takes?(settings) ?? .success(settings)
      if case .success(let inForce) = result { self.settings = inForce }
      done(result)
    }
  }

  /// The result of `set` and `setBreak`.
  public var sets: Result<Void, SystemError> = .success(())

  public func set(_ line: ModemOutput, _ isOn: Bool, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    outputs.append((line, isOn))
    answers.append { [self] in
      if case .success = sets { outputStates[line] = isOn }
      done(sets)
    }
  }

  /// The answer to `condition`.
  public var conditionNow: Result<LineCondition, SystemError> = .success(LineCondition())

  public func condition(_ done: @escaping (Result<LineCondition, SystemError>) -> Void) {
    answers.append { [self] in done(conditionNow) }
  }

  /// The sequences to perform. With `keepsTime` false, the line does not perform any.
  public private(set) var performed: [[LineStep]] = []
  public var keepsTime = true
  /// The result of `perform`.
  public var performs: Result<Void, SystemError> = .success(())

  public func perform(_ steps: [LineStep], _ done: @escaping (Result<Void, SystemError>) -> Void) {
    performed.append(steps)
    answers.append { [self] in
      if case .success = performs {
        for case .set(let dtr, let rts) in steps {
          outputStates = ModemOutputStates(dtr: dtr ?? outputStates.dtr, rts: rts ?? outputStates.rts)
        }
      }
      done(performs)
    }
  }

  public func setBreak(_ isOn: Bool, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    breaks.append(isOn)
    answers.append { [self] in done(sets) }
  }

  public func unsent(_ done: @escaping (Result<Int, SystemError>) -> Void) {
    answers.append { [self] in
      if let unsentFails { return done(.failure(unsentFails)) }
      done(.success(unsent.isEmpty ? 0 : unsent.removeFirst()))
    }
  }

  public func purge(_ what: Purge, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    purges.append(what)
    answers.append { done(.success(())) }
  }

  /// How often stopped output was started.
  public private(set) var starts = 0
  public func startOutput(_ done: @escaping (Result<Void, SystemError>) -> Void) {
    starts += 1
    answers.append { done(.success(())) }
  }

  /// The watcher's callback; the test calls it. Not in the queue of calls.
  public private(set) var watcher: ((Result<LineCondition, SystemError>) -> Void)?
  public func watch(_ reported: @escaping (Result<LineCondition, SystemError>) -> Void) { watcher = reported }
  public func endWatch() { watcher = nil }

  /// Reports a change by somebody else; the test calls it.
  public private(set) var observer: (() -> Void)?
  public func observe(_ changed: @escaping () -> Void) { observer = changed }
}
