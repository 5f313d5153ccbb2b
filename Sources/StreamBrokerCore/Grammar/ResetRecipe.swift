// Reset recipes, `device.reset`: the sequence on DTR and RTS by which a programmer resets a board into its boot loader.
// The built-in ones are texts of the same grammar as `custom(…)`:
//
//     custom(dtr=off rts=on, 100ms, dtr=on rts=off !, 50ms, dtr=off)
//
// Commas separate the steps. A step sets one line, or both at once, or is a pause. A client's sequence is recognised
// when it completes the step that is marked with `!`, by default the last one that sets lines.

import ByteStreams

/// A recipe that was read and checked.
package struct ResetRecipe: Hashable, Sendable {
  /// A line and its new state.
  package struct Change: Hashable, Sendable {
    /// The line.
    package let output: ModemOutput
    /// Whether it is raised.
    package let isOn: Bool

    /// A line and its new state.
    package init(_ output: ModemOutput, _ isOn: Bool) {
      self.output = output
      self.isOn = isOn
    }
  }

  /// Changes that are made at once, and the pause after them.
  package struct Step: Hashable, Sendable {
    /// One or two, in the order of the text.
    package internal(set) var changes: [Change]
    /// The pause before the next step.
    package internal(set) var pause = Duration.zero
  }

  /// A built-in recipe's name, or the whole text of another.
  package let text: String
  /// At least one.
  package private(set) var steps: [Step] = []
  /// The step that completes what a client must send: an index of `steps`.
  package private(set) var mark = 0

  /// A built-in recipe's name, or `custom`.
  package var name: String { text.prefix { $0 != "(" }.description }

  /// The sequence for the port.
  package var lineSteps: [LineStep] {
    steps.flatMap { step in
      let set = LineStep.set(dtr: step.state(of: .dtr), rts: step.state(of: .rts))
      return step.pause > .zero ? [set, .pause(step.pause)] : [set]
    }
  }

  /// Texts of the built-in recipes. ESP32 and ESP8266: esptool's ClassicReset, in which RTS holds the chip in reset and
  /// DTR selects its boot loader. With a native USB port (esptool's USBJTAGSerialReset) both lines must never be off
  /// between the third and the fourth step. AVR: avrdude since 7.1. STM32: stm32loader, DTR resets, RTS drives BOOT0.
  package static let builtIn: [(name: String, text: String)] = [
    ("esp32", "custom(dtr=off rts=on, 100ms, dtr=on rts=off !, 50ms, dtr=off)"),
    ("esp32-usbjtag", "custom(dtr=off rts=off, 100ms, dtr=on, 100ms, rts=on, dtr=off !, 100ms, rts=off)"),
    ("esp8266", "custom(dtr=off rts=on, 100ms, dtr=on rts=off !, 50ms, dtr=off)"),
    ("avr", "custom(dtr=off rts=off, 250ms, dtr=on rts=on, 100us, dtr=off rts=off !)"),
    ("stm32", "custom(dtr=on rts=off, 100ms, dtr=off !)"),
  ]

  package static let names = builtIn.map(\.name)

  /// The most steps, pauses included.
  static let mostSteps = 32
  /// The longest recipe.
  static let longest = Duration.seconds(5)
  package static let expected = "\(names.joined(separator: ", ")) or custom(…), such as custom(dtr=off, 250ms, dtr=on)"

  /// Reads a name or `custom(…)`.
  package init(_ text: String) throws(ValueFault) {
    self.text = text
    let known = Self.builtIn.first { $0.name == text }
    guard known != nil || text.hasPrefix("custom") else {
      throw ValueFault(
        "expected \(Self.expected), not \(Suggestion.quote(text))",
        suggestion: Suggestion.nearest(to: text, in: Self.names))
    }
    try read(known?.text ?? text)
  }

  private mutating func read(_ text: String) throws(ValueFault) {
    let inner = text.dropFirst("custom".count).drop { $0 == " " }
    guard inner.first == "(" else {
      throw ValueFault("'custom' needs its steps in parentheses, such as custom(dtr=off, 250ms, dtr=on)")
    }
    // In a flow mapping of YAML the first comma ends the value.
    guard inner.last == ")" else {
      throw ValueFault("'custom(' has no ')' at its end; within { } the value needs quotes")
    }
    let texts = inner.dropFirst().dropLast().split(separator: ",", omittingEmptySubsequences: false)
    guard texts.count <= Self.mostSteps else {
      throw ValueFault("a reset recipe has at most \(Self.mostSteps) steps, not \(texts.count)")
    }
    var marked: Int?
    for (index, text) in texts.enumerated() {
      let reader = StepReader(number: index + 1, text: text)
      switch try reader.read() {
      case .pause(let pause):
        guard !steps.isEmpty else { throw reader.fault("a recipe must begin with a step that sets lines") }
        steps[steps.count - 1].pause += pause
      case .set(let changes, let isMarked):
        if isMarked && marked != nil { throw reader.fault("only one step can have a '!'") }
        steps.append(Step(changes: changes))
        if isMarked { marked = steps.count - 1 }
      }
    }
    let total = steps.reduce(Duration.zero) { $0 + $1.pause }
    guard total <= Self.longest else {
      throw ValueFault("a reset recipe takes at most \(Units.text(Self.longest)), not \(Units.text(total))")
    }
    mark = marked ?? steps.count - 1
  }

  /// For the schema: an approximation that accepts every valid text.
  package static let pattern: String = {
    let pause = "[0-9]+(?:\(StepReader.units.map(\.unit).joined(separator: "|")))"
    let change = "(?:dtr|rts)=(?:on|off)"
    let step = " *(?:\(pause)|\(change)(?: +\(change))? *!?) *"
    return #"custom *\(\#(step)(?:,\#(step))*\)"#
  }()
}

extension ResetRecipe: CustomStringConvertible {
  /// As it was written.
  package var description: String { text }
}

extension ResetRecipe.Step {
  /// Nil: the step leaves the line alone.
  package func state(of output: ModemOutput) -> Bool? { changes.first { $0.output == output }?.isOn }
}

/// One step of the text.
private struct StepReader {
  enum Part {
    case pause(Duration)
    case set([ResetRecipe.Change], isMarked: Bool)
  }

  let number: Int
  let text: Substring

  static let units: [(unit: String, microseconds: Int)] = [("us", 1), ("ms", 1000), ("s", 1_000_000)]

  func fault(_ message: String, suggestion: String? = nil) -> ValueFault {
    let step = text.split(separator: " ").joined(separator: " ")
    return ValueFault("step \(number), \(Suggestion.quote(step)): \(message)", suggestion: suggestion)
  }

  func read() throws(ValueFault) -> Part {
    var words = text.split(separator: " ").map(String.init)
    guard let first = words.first else {
      throw fault("expected lines such as dtr=off rts=on, or a pause such as 100ms")
    }
    let isMarked = words.last?.last == "!"
    if isMarked {
      words[words.count - 1].removeLast()
      if words.last?.isEmpty == true { words.removeLast() }
    }
    if first.first?.isNumber == true { return .pause(try pause(words, isMarked)) }
    guard !words.isEmpty else { throw fault("a '!' must follow a step that sets lines") }
    var changes: [ResetRecipe.Change] = []
    for word in words {
      let change = try change(word)
      if changes.contains(where: { $0.output == change.output }) { throw fault("a step sets each line once") }
      changes.append(change)
    }
    return .set(changes, isMarked: isMarked)
  }

  private func pause(_ words: [String], _ isMarked: Bool) throws(ValueFault) -> Duration {
    if isMarked { throw fault("a '!' must follow a step that sets lines") }
    let digits = words[0].prefix { $0.isASCII && $0.isNumber }
    let unit = words[0].dropFirst(digits.count)
    let range = "a pause must be alone and from 1us to \(Units.text(ResetRecipe.longest)), such as 100ms"
    guard words.count == 1, let count = Int(digits), count > 0 else { throw fault(range) }
    guard let factor = Self.units.first(where: { $0.unit == unit })?.microseconds else {
      throw fault("a pause has the unit us, ms or s", suggestion: "\(count)ms")
    }
    let (time, overflow) = count.multipliedReportingOverflow(by: factor)
    guard !overflow, .microseconds(time) <= ResetRecipe.longest else { throw fault(range) }
    return .microseconds(time)
  }

  private func change(_ word: String) throws(ValueFault) -> ResetRecipe.Change {
    let states = ["on": true, "off": false]
    let parts = word.split(separator: "=", omittingEmptySubsequences: false).map(String.init)
    let lines: [String: ModemOutput] = ["dtr": .dtr, "rts": .rts]
    if parts.count == 2, let output = lines[parts[0]], let isOn = states[parts[1]] { return .init(output, isOn) }
    let all = ["dtr=on", "dtr=off", "rts=on", "rts=off"]
    throw fault(
      "expected \(Suggestion.list(all)), or a pause such as 100ms", suggestion: Suggestion.nearest(to: word, in: all))
  }
}
