// Policies and timing of a route, together: clients that come, send, take and leave, a device that speaks, breaks and comes back,
// time that passes and reloads in between, all as the input says. A step is two bytes: what happens, and how.

import Glibc

final class PoliciesProperty {
  /// Tells each step before it is done.
  static let tells = getenv("FUZZ_TELL") != nil
  static func tell(_ line: String) {
    line.withCString { _ = write(STDERR_FILENO, $0, strlen($0)) + write(STDERR_FILENO, "\n", 1) }
  }
  private let world: PolicyWorld
  /// Of all inputs so far; the driver prints it.
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
