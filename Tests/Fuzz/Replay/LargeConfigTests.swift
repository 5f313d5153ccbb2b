// Files made to take long: a fuzzer's inputs are too small to show quadratic growth.

import Glibc
import StreamTestKit
import Testing

@testable import GatewayKit

@Suite("A large config file", .timeLimit(.minutes(5)))
struct LargeConfigTests {
  /// The repeated content of a file.
  struct Shape: CustomTestStringConvertible {
    let testDescription: String
    let before: String
    let after: String
    let item: @Sendable (Int) -> String

    init(_ name: String, before: String = "", after: String = "", item: @escaping @Sendable (Int) -> String) {
      (testDescription, self.before, self.after, self.item) = (name, before, after, item)
    }

    /// A file of about `count` bytes.
    func bytes(_ count: Int) -> [UInt8] {
      var bytes = Array(before.utf8)
      let start = bytes.count
      var number = 0
      while bytes.count - start < count {
        bytes += item(number).utf8
        number += 1
      }
      return bytes + after.utf8
    }
  }

  private static let route = "routes: { a: { listen: 'tcp://:1', endpoint: "
  private static let marks = String(String.UnicodeScalarView((0..<1000).map { $0 % 2 == 0 ? "\u{301}" : "\u{323}" }))
  private static let longText = String(repeating: "x", count: 4000)

  static let shapes = [
    Shape("unknown keys") { "kee\($0):\n" },
    Shape("one key again and again") { _ in "log:\n" },
    Shape(
      "listeners on one port", before: "routes: { a: { endpoint: 'tcp://h:1', listen: [",
      after: "] } }"
    ) {
      "'tcp://h\($0):1',"
    },
    Shape("routes", before: "routes:\n") {
      "  r\($0): { listen: 'tcp://:\($0 % 65000)', endpoint: 'sim://echo' }\n"
    },
    Shape("arguments of a program", before: "\(route){ url: 'exec:/x', arg: [", after: "] } } }") {
      _ in "a,"
    },
    Shape(
      "parameters that are said again",
      before: "\(route){ url: 'exec:/x', arg: [\(String(repeating: "a,", count: 8000))], pty: [", after: "] } } }"
    ) { _ in "1," },
    Shape(
      "URLs of unknown parameters", before: "routes: { a: { endpoint: 'tcp://h:1', listen: [",
      after: "] } }"
    ) { _ in
      "'unix:///x?\(String(repeating: "oner=1&", count: 550))',"
    },
    Shape(
      "aliases of a long text", before: "\(route){ url: 'exec:/x', arg: [ &a \(longText)",
      after: "] } } }"
    ) { _ in ",*a" },
    Shape(
      "marks that have no order", before: "\(route)'sim://echo', clients: { allow: [", after: "] } } }"
    ) { _ in "\(marks)," },
    Shape(
      "a single text of such marks", before: "\(route)'sim://echo', clients: { banner: \"",
      after: "\" } } }"
    ) { _ in marks },
    Shape("tag directives", after: "---\nroutes: 1\n") { "%TAG !t\($0)! tag:x\n" },
    Shape("open brackets") { _ in "[" },
    Shape("anchors", before: "\(route)'sim://echo', clients: { deny: [", after: "] } } }") {
      "&a\($0) x,"
    },
    Shape("merges", before: "x: &x { a: 1 }\nlog:\n", after: "") { _ in "  <<: *x\n" },
    Shape("variables", before: "\(route)'sim://echo', clients: { deny: [", after: "] } } }") {
      "${A\($0):-b}$${,"
    },
    Shape("blanks") { _ in " " },
    Shape("comments") { _ in "#\n" },
    Shape("long keys") { "? \"\(marks)\($0)\"\n" },
  ]

  @Test("takes time linear in its length, whatever it contains", .timed, arguments: shapes)
  func growth(shape: Shape) {
    let (small, large) = (time(shape.bytes(16 << 10)), time(shape.bytes(64 << 10)))
    // Too short to measure; even with quadratic growth such a file is read in seconds.
    if large < 100_000_000 { return }
    #expect(large < 9 * small)
  }

  @Test("is read in seconds")
  func whole() {
    let text = String(repeating: "# nothing but comments, and one route\n", count: 26_000)
    #expect(
      time(Array((text + "routes: { a: { listen: 'tcp://:1', endpoint: 'sim://echo' } }\n").utf8)) < 10_000_000_000)
  }

  /// This thread's CPU time in nanoseconds, which other threads do not lengthen.
  private func time(_ bytes: [UInt8]) -> UInt64 {
    func now() -> UInt64 {
      var time = timespec()
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time)
      return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
    }
    let before = now()
    _ = try? ConfigFile.read(bytes)
    return now() - before
  }
}
