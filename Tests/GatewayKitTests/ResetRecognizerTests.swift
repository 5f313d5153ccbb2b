// The recogniser of reset recipes, with the sequences of real programs as they arrive over RFC 2217: one line at a
// time, repeated requests included.

import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A recogniser of reset recipes")
struct ResetRecognizerTests {
  typealias Change = ResetRecipe.Change

  enum Event: CustomStringConvertible {
    case dtr(Bool)
    case rts(Bool)
    case pause(Int)  // milliseconds

    var description: String {
      switch self {
      case .dtr(let isOn): "dtr=\(isOn)"
      case .rts(let isOn): "rts=\(isOn)"
      case .pause(let time): "\(time) ms"
      }
    }
  }

  /// A recogniser and the port that gets its changes.
  struct Player {
    var recognizer: ResetRecognizer
    var now: UInt64 = 0
    var port: [ModemOutput: Bool] = [:]
    /// The states at the port, with repetitions: "DTR RTS".
    var states: [String] = []
    var replays = 0
    private var releaseAt: UInt64?

    init(_ recipe: String, dtr: Bool? = nil, rts: Bool? = nil) throws {
      recognizer = ResetRecognizer(try ResetRecipe(recipe), ModemOutputStates(dtr: dtr, rts: rts))
      if let dtr { port[.dtr] = dtr }
      if let rts { port[.rts] = rts }
    }

    mutating func play(_ events: [Event]) {
      for event in events {
        switch event {
        case .dtr(let isOn): request(.init(.dtr, isOn))
        case .rts(let isOn): request(.init(.rts, isOn))
        case .pause(let time): advance(to: now + UInt64(time) * 1_000_000)
        }
      }
    }

    mutating func advance(to time: UInt64) {
      if let deadline = recognizer.deadline, deadline <= time {
        now = deadline
        if let change = recognizer.interrupt() { make([change]) }
      }
      now = time
    }

    private mutating func request(_ change: Change) {
      switch recognizer.handle(change, at: now) {
      case .make(let changes): make(changes)
      case .replay:
        replays += 1
        states.append("replay")
        for change in recognizer.recipe.steps.flatMap(\.changes) { port[change.output] = change.isOn }
      }
    }

    mutating func make(_ changes: [Change]) {
      for change in changes {
        port[change.output] = change.isOn
        states.append(state)
      }
    }

    var state: String {
      let text = { (isOn: Bool?) in isOn.map { $0 ? "on" : "off" } ?? "?" }
      return "\(text(port[.dtr])) \(text(port[.rts]))"
    }

    /// Without repetitions.
    var changes: [String] { states.reduce(into: []) { if $0.last != $1 { $0.append($1) } } }
  }

  // MARK: - Real programs

  // pyserial sends both lines when it opens the port.
  static let opening: [Event] = [.dtr(true), .rts(true)]
  // esptool repeats DTR after each RTS.
  static let classicReset: [Event] = [
    .dtr(false), .rts(true), .dtr(false), .pause(100), .dtr(true), .rts(false), .dtr(true), .pause(50), .dtr(false),
  ]
  static let slowClassicReset: [Event] = [
    .dtr(false), .rts(true), .dtr(false), .pause(100), .dtr(true), .rts(false), .dtr(true), .pause(550), .dtr(false),
  ]
  static let usbReset: [Event] = [
    .rts(false), .dtr(true), .dtr(false), .pause(100), .dtr(true), .rts(false), .dtr(true), .pause(100), .rts(true),
    .dtr(true), .dtr(false), .rts(true), .dtr(false), .pause(100), .dtr(false), .rts(false), .dtr(false),
  ]
  // esptool-js and esptool before 4.5 do not repeat requests.
  static let plainClassicReset: [Event] = [
    .dtr(false), .rts(true), .pause(100), .dtr(true), .rts(false), .pause(50), .dtr(false),
  ]
  static let plainUSBReset: [Event] = [
    .rts(false), .dtr(false), .pause(100), .dtr(true), .rts(false), .pause(100), .rts(true), .dtr(false), .rts(true),
    .pause(100), .dtr(false), .rts(false),
  ]
  static let hardReset: [Event] = [.rts(true), .dtr(false), .pause(100), .rts(false), .dtr(false)]
  static let avrdude: [Event] = [
    .dtr(false), .rts(false), .pause(250), .dtr(true), .rts(true), .dtr(false), .rts(false), .pause(100),
  ]
  static let oldAVRDude: [Event] = [.dtr(false), .rts(false), .pause(250), .dtr(true), .rts(true), .pause(50)]
  static let stm32loader: [Event] = [.rts(false), .dtr(true), .pause(100), .dtr(false), .pause(500)]
  static let stm32FromFlash: [Event] = [.rts(true), .dtr(true), .pause(100), .dtr(false), .pause(500)]

  /// Programs that use the built-in recipes.
  static let clients: [(String, [Event])] = [
    ("esp32", classicReset), ("esp32", slowClassicReset), ("esp32", plainClassicReset), ("esp8266", classicReset),
    ("esp32-usbjtag", usbReset), ("esp32-usbjtag", plainUSBReset), ("avr", avrdude), ("stm32", stm32loader),
  ]

  /// Each pause with the round trips of a slow network.
  private func slowly(_ events: [Event]) -> [Event] {
    events.flatMap { event -> [Event] in
      switch event {
      case .pause(let time): [.pause(time + 190)]
      default: [event, .pause(160)]
      }
    }
  }

  @Test(
    "replays each built-in recipe once for its client's sequence, at any speed, and leaves the lines as the client",
    arguments: clients)
  func recognises(recipe: String, events: [Event]) throws {
    let instant = events.filter { if case .pause = $0 { false } else { true } }
    let runs: [([Event], [Event])] = [
      ([], events), ([], slowly(events)), (Self.opening, events), (Self.opening, slowly(events)),
      (Self.opening, instant),
    ]
    for (start, sequence) in runs {
      var player = try Player(recipe)
      player.play(start + sequence)
      #expect(player.replays == 1, "\(start) \(sequence)")
      let wanted = sequence.reduce(into: [ModemOutput: Bool]()) { lines, event in
        if case .dtr(let isOn) = event { lines[.dtr] = isOn }
        if case .rts(let isOn) = event { lines[.rts] = isOn }
      }
      #expect(player.port == wanted, "\(start) \(sequence)")
      // The client tries again.
      player.play([.pause(3000)] + sequence)
      #expect(player.replays == 2 && player.port == wanted, "\(start) \(sequence)")
    }
  }

  @Test("makes no state of a client's first attempt that would start the chip before the replay")
  func quiet() throws {
    var player = try Player("esp32")
    player.play(Self.opening + slowly(Self.classicReset))
    #expect(player.changes == ["on ?", "on on", "off on", "replay"])
    var usb = try Player("esp32-usbjtag")
    usb.play(Self.opening + slowly(Self.usbReset))
    // RTS on with DTR off is the reset: only the replay makes it.
    #expect(!usb.changes.contains("off on"))
  }

  @Test("recognises the lines of a step in any order")
  func anyOrder() throws {
    var player = try Player("esp32", dtr: false, rts: false)
    player.play([.rts(true), .dtr(false), .pause(100), .rts(false), .pause(160), .dtr(true), .pause(50), .dtr(false)])
    #expect(player.replays == 1 && player.state == "off off")
    var both = try Player("avr", dtr: true, rts: true)
    both.play([.rts(false), .dtr(false), .pause(250), .rts(true), .dtr(true), .rts(false), .dtr(false)])
    #expect(both.replays == 1 && both.state == "off off")
  }

  /// Sequences that begin like a recipe.
  static let others: [(String, [Event])] = {
    let closing: [Event] = opening + [.pause(60_000), .dtr(false), .rts(false)]
    let pulse: [Event] = [.dtr(true), .pause(5), .dtr(false), .rts(true), .pause(5), .rts(false)]
    let nextProgram: [Event] = hardReset + [.pause(1500)] + opening
    let hard = ["esp32", "esp8266", "esp32-usbjtag"].map { ($0, hardReset) }
    let opened = ["esp32", "esp32-usbjtag", "avr", "stm32"].flatMap { [($0, opening), ($0, closing)] }
    return hard + opened + [
      ("avr", oldAVRDude), ("stm32", stm32FromFlash), ("esp32", pulse), ("esp32", nextProgram),
    ]
  }()

  @Test(
    "passes sequences that begin alike, at once and unchanged",
    arguments: others)
  func passes(recipe: String, events: [Event]) throws {
    var player = try Player(recipe, dtr: false, rts: false)
    var plain = player
    for event in events {
      player.play([event])
      switch event {
      case .dtr(let isOn): plain.make([.init(.dtr, isOn)])
      case .rts(let isOn): plain.make([.init(.rts, isOn)])
      case .pause: break
      }
      // avrdude's first line is held until the second one comes.
      if player.recognizer.held == nil { #expect(player.state == plain.state, "after \(event)") }
    }
    #expect(player.replays == 0 && player.changes == plain.changes && player.recognizer.held == nil)
  }

  // MARK: - Held back

  private func halfDone() throws -> Player {
    var player = try Player("esp32", dtr: false, rts: false)
    player.play([.rts(true), .pause(100), .dtr(true)])
    #expect(player.state == "off on" && player.recognizer.held == Change(.dtr, true))
    return player
  }

  @Test("makes a change that was held back when the client deviates, in its order")
  func deviates() throws {
    var player = try halfDone()
    player.play([.dtr(false)])
    #expect(player.changes == ["off on", "on on", "off on"] && player.recognizer.held == nil)
    // That is the first step again.
    player.play([.dtr(true), .rts(false)])
    #expect(player.replays == 1)
  }

  @Test("makes a change that was held back after two seconds")
  func timeOut() throws {
    var player = try halfDone()
    player.play([.pause(1999)])
    #expect(player.state == "off on")
    player.play([.pause(1)])
    #expect(player.state == "on on")
    player.play([.rts(false)])
    #expect(player.state == "on off" && player.replays == 0)
  }

  @Test("makes a change that was held back when the client does something else, or another client comes")
  func interrupted() throws {
    var player = try halfDone()
    #expect(player.recognizer.interrupt() == Change(.dtr, true) && player.recognizer.held == nil)
    var other = try halfDone()
    #expect(other.recognizer.startOver() == Change(.dtr, true) && other.recognizer.held == nil)
  }

  // MARK: - After the replay

  @Test("gives a client that deviates after the replay the lines that it requested")
  func deviatesLater() throws {
    var player = try Player("esp32")
    player.play(Array(Self.plainClassicReset.prefix(5)))
    #expect(player.replays == 1 && player.state == "off off")
    // The client has not yet dropped DTR.
    player.play([.rts(true)])
    #expect(player.state == "on on")
  }

  @Test("takes the lines as the replay left them when the client sends no more of the recipe")
  func restMissing() throws {
    var player = try Player("esp32")
    player.play(Array(Self.plainClassicReset.prefix(5)) + [.pause(2100), .dtr(true)])
    #expect(player.state == "on off")
  }

  @Test("knows the lines after another recipe was carried out by command")
  func afterCommand() throws {
    var player = try Player("custom(dtr=off rts=off, 1ms, dtr=on rts=on !)")
    #expect(player.recognizer.startOver(after: try ResetRecipe("esp32")) == nil)
    player.play([.dtr(true), .rts(true)])
    #expect(player.replays == 1)
  }

  // MARK: - Any sequence

  @Test("changes nothing without a complete recipe, whatever the client does", arguments: ResetRecipe.names)
  func anySequence(recipe: String) throws {
    for seed in 0..<UInt64(400) {
      var random = SeededRandom(seed: seed)
      var player = try Player(recipe, dtr: .random(using: &random), rts: .random(using: &random))
      var plain = player
      var events: [Event] = []
      for _ in 0..<40 {
        let event: Event =
          switch Int.random(in: 0..<8, using: &random) {
          case 0..<3: .dtr(.random(using: &random))
          case 3..<6: .rts(.random(using: &random))
          case 6: .pause(.random(in: 1...400, using: &random))
          default: .pause(.random(in: 1000...4000, using: &random))
          }
        events.append(event)
        player.play([event])
        switch event {
        case .dtr(let isOn): plain.make([.init(.dtr, isOn)])
        case .rts(let isOn): plain.make([.init(.rts, isOn)])
        case .pause: break
        }
        if player.replays > 0 {
          // From a replay on, the lines agree again once the client deviates: it has requested both states.
          player.play([
            .pause(10_000), .dtr(false), .rts(false), .pause(10_000), .dtr(true), .rts(true), .pause(10_000),
          ])
          #expect(player.state == "on on", "seed \(seed): \(events)")
          break
        }
        if player.recognizer.held == nil {
          #expect(player.changes == plain.changes, "seed \(seed): \(events)")
        } else {
          #expect(plain.changes.starts(with: player.changes), "seed \(seed): \(events)")
        }
      }
    }
  }
}
