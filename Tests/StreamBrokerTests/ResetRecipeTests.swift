// The grammar of reset recipes: what is read, and how mistakes are explained.

import ByteStreams
import Synchronization
import Testing

@testable import StreamBrokerCore

@Suite("A reset recipe")
struct ResetRecipeTests {
  @Test("reads lines, pauses and the mark")
  func reads() throws {
    let recipe = try ResetRecipe("custom( dtr=off  rts=on ,100ms,dtr=on rts=off!, 2s, 100us, dtr=off )")
    #expect(
      recipe.lineSteps == [
        .set(dtr: false, rts: true), .pause(.milliseconds(100)), .set(dtr: true, rts: false),
        .pause(.microseconds(2_000_100)), .set(dtr: false),
      ])
    #expect(recipe.mark == 1 && recipe.name == "custom")
    #expect(try ResetRecipe("custom(dtr=off, 1ms, dtr=on, 1ms)").mark == 1)
    #expect(recipe.steps[0].changes == [.init(.dtr, false), .init(.rts, true)])
  }

  @Test("has built-in ones in the same grammar", arguments: ResetRecipe.builtIn.map(\.name))
  func builtIn(name: String) throws {
    let text = try #require(ResetRecipe.builtIn.first { $0.name == name }).text
    let recipe = try ResetRecipe(name)
    #expect(recipe.lineSteps == (try ResetRecipe(text)).lineSteps && recipe.name == name && recipe.text == name)
  }

  private static let steps = Array(repeating: "dtr=on", count: 33).joined(separator: ", ")

  @Test(
    "explains a mistake by its step, with what was probably meant",
    arguments: [
      ("esp23", "expected \(ResetRecipe.expected), not 'esp23'", "esp32"),
      ("custom", "'custom' needs its steps in parentheses, such as custom(dtr=off, 250ms, dtr=on)", nil),
      ("custom(dtr=off rts=on", "'custom(' has no ')' at its end; within { } the value needs quotes", nil),
      ("custom()", "step 1, '': expected lines such as dtr=off rts=on, or a pause such as 100ms", nil),
      ("custom(dtr=off,,dtr=on)", "step 2, '': expected lines such as dtr=off rts=on, or a pause such as 100ms", nil),
      (
        "custom(dtr=off, dtr=om rts=off)",
        "step 2, 'dtr=om rts=off': expected dtr=on, dtr=off, rts=on or rts=off, or a pause such as 100ms", "dtr=on"
      ),
      ("custom(dtr=off, 100)", "step 2, '100': a pause has the unit us, ms or s", "100ms"),
      (
        "custom(dtr=off, 6s)", "step 2, '6s': a pause must be alone and from 1us to 5s, such as 100ms", nil
      ),
      (
        "custom(dtr=off, 0ms)", "step 2, '0ms': a pause must be alone and from 1us to 5s, such as 100ms", nil
      ),
      (
        "custom(dtr=off, 1ms rts=on)",
        "step 2, '1ms rts=on': a pause must be alone and from 1us to 5s, such as 100ms", nil
      ),
      ("custom(dtr=off, 1ms !)", "step 2, '1ms !': a '!' must follow a step that sets lines", nil),
      ("custom(dtr=off, !)", "step 2, '!': a '!' must follow a step that sets lines", nil),
      ("custom(1ms, dtr=off)", "step 1, '1ms': a recipe must begin with a step that sets lines", nil),
      ("custom(dtr=off !, rts=on !)", "step 2, 'rts=on !': only one step can have a '!'", nil),
      ("custom(dtr=off dtr=on)", "step 1, 'dtr=off dtr=on': a step sets each line once", nil),
      ("custom(dtr=off, 3s, dtr=on, 3s)", "a reset recipe takes at most 5s, not 6s", nil),
      ("custom(\(steps))", "a reset recipe has at most 32 steps, not 33", nil),
      (
        "custom(dtr=off, 99999999999999999999ms)",
        "step 2, '99999999999999999999ms': a pause must be alone and from 1us to 5s, such as 100ms", nil
      ),
    ] as [(String, String, String?)])
  func mistakes(text: String, message: String, suggestion: String?) {
    #expect(throws: ValueFault(message, suggestion: suggestion)) { try ResetRecipe(text) }
  }

  @Test("is performed with exact pauses, and both lines of a step change in one call")
  func performs() throws {
    let calls = try RecordedTTY()
    calls.state.withLock { $0.setTakes = 1_000_000 }
    let port = TTYPort("/dev/ttyX", TTYSettings(), calls: calls, locks: nil)
    try port.perform(ResetRecipe("custom(dtr=off rts=on, 100ms, 1ms, dtr=on rts=on, 100us, rts=off)").lineSteps, on: 0)
    #expect(
      calls.log == [
        // A pause begins when the driver has set the lines.
        "ioctl TIOCMSET on RTS off DTR", "sleep 101000 us", "ioctl TIOCMBIS DTR RTS", "sleep 100 us",
        "ioctl TIOCMBIC RTS",
      ])
  }

  @Test("ends at the first step that the port refuses")
  func refused() throws {
    let calls = try RecordedTTY()
    calls.state.withLock { $0.failing = (0, 25) }
    let port = TTYPort("/dev/ttyX", TTYSettings(), calls: calls, locks: nil)
    #expect(throws: SystemError("ioctl TIOCMSET", 25)) {
      try port.perform(ResetRecipe("esp32").lineSteps, on: 0)
    }
    #expect(calls.log.count == 1)
  }
}
