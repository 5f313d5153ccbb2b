// A serial line that writes down what it is asked for, and answers when the test says so, in order, as a port's queue does.

import ByteStreams

public final class ScriptedLine: SerialLine {
  public private(set) var applied: [LineSettings] = []
  public private(set) var outputs: [(line: ModemOutput, isOn: Bool)] = []
  public private(set) var breaks: [Bool] = []
  public private(set) var purges: [Purge] = []
  public var settings = LineSettings()
  /// What `apply` answers; nil: what was asked for.
  public var takes: ((LineSettings) -> Result<LineSettings, SystemError>)?

  private var unsent: [Int]
  private var answers: [() -> Void] = []

  /// `unsent` are the answers to how much is not sent yet; past its list, 0.
  public init(unsent: [Int] = []) { self.unsent = unsent }

  /// Calls that were not answered yet.
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

  public func set(_ line: ModemOutput, _ isOn: Bool, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    outputs.append((line, isOn))
    answers.append { done(.success(())) }
  }

  public func setBreak(_ isOn: Bool, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    breaks.append(isOn)
    answers.append { done(.success(())) }
  }

  public func unsent(_ done: @escaping (Result<Int, SystemError>) -> Void) {
    answers.append { [self] in done(.success(unsent.isEmpty ? 0 : unsent.removeFirst())) }
  }

  public func purge(_ what: Purge, _ done: @escaping (Result<Void, SystemError>) -> Void) {
    purges.append(what)
    answers.append { done(.success(())) }
  }

  /// Who watches; the test tells him. Not in the queue of calls.
  public private(set) var watcher: ((Result<LineCondition, SystemError>) -> Void)?
  public func watch(_ told: @escaping (Result<LineCondition, SystemError>) -> Void) { watcher = told }
  public func endWatch() { watcher = nil }
}
