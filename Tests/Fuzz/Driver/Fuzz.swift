// libFuzzer's entry point: `Fuzz TARGET [-libfuzzer-options] [corpus or files]`. Tests/Fuzz/run builds and starts it.

import Glibc

private typealias Words = UnsafeMutablePointer<UnsafeMutablePointer<CChar>?>

@_silgen_name("LLVMFuzzerRunDriver")
private func runFuzzer(
  _ count: UnsafeMutablePointer<CInt>, _ words: UnsafeMutablePointer<Words>,
  _ body: @convention(c) (UnsafePointer<UInt8>?, Int) -> CInt
) -> CInt

// libFuzzer's callback has no context argument. Set once before libFuzzer starts, and used on its one thread.
nonisolated(unsafe) private var check: ([UInt8]) throws(Broken) -> Void = { _ in }

@main
enum Fuzz {
  static func main() {
    let words = CommandLine.arguments
    guard words.count > 1, let chosen = Property(rawValue: words[1]) else {
      say("usage: Fuzz \(Property.allCases.map(\.rawValue).joined(separator: "|")) [libFuzzer's words]")
      exit(64)
    }
    do throws(Broken) { check = try chosen.checker() } catch { exit(71) }
    // libFuzzer ends the process itself.
    atexit { if PoliciesProperty.steps > 0 { say("stat::steps: \(PoliciesProperty.steps)") } }
    exit(start([words[0]] + words.dropFirst(2)))
  }

  private static func start(_ words: [String]) -> CInt {
    let list = Words.allocate(capacity: words.count + 1)  // lives as long as the process
    for (index, word) in words.enumerated() { list[index] = strdup(word) }
    list[words.count] = nil
    var (count, start) = (CInt(words.count), list)
    return runFuzzer(&count, &start, one)
  }
}

private func one(_ start: UnsafePointer<UInt8>?, _ length: Int) -> CInt {
  do throws(Broken) {
    try check(Array(UnsafeBufferPointer(start: start, count: length)))
  } catch {
    say("BROKEN: \(error)")
    abort()
  }
  return 0
}

private func say(_ line: String) {
  let bytes = Array((line + "\n").utf8)
  _ = write(STDERR_FILENO, bytes, bytes.count)
}
