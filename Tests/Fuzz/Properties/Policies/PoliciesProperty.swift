// A route's policies and timing together: clients connect, send, take output and leave; a device sends, breaks and
// returns; time passes; reloads happen, all as the input says. A step is two bytes: what happens, and how.

import Glibc

final class PoliciesProperty {
  /// Whether each step is printed before it is done.
  static let tells = getenv("FUZZ_TELL") != nil
  static func report(_ line: String) {
    line.withCString { _ = write(STDERR_FILENO, $0, strlen($0)) + write(STDERR_FILENO, "\n", 1) }
  }
  private let world: PolicyWorld
  /// Number of steps of all inputs so far; the driver prints it.
  nonisolated(unsafe) static var steps = 0

  init() throws(Broken) { world = try PolicyWorld() }

  func check(_ input: [UInt8]) throws(Broken) {
    var rest = input[...]
    let run = PolicyRun(world, &rest)
    while run.play(&rest) {}
    Self.steps += run.step
    if run.broken == nil { run.conclude() }
    run.end()
    if let broken = run.broken { throw Broken(broken) }
  }
}
