// Programs of a library user, for tests on real devices: Tests/Guest and Tests/Bluetooth run it in the emulated machine.
//   library-probe ask URL TEXT      the program of README: sends TEXT and a line feed, prints what comes back
//   library-probe cancel URL COUNT  opens COUNT times and cancels each after a random time, within that of an opening
//   library-probe log URL           prints each line; the link is opened again when it is lost, and events go to
//                                   standard error

@preconcurrency import Glibc  // stdout and stderr are variables there
import StreamBroker
import StreamBrokerBluetooth

@main
struct Probe {
  static let broker = Broker(Schemes.standard + BluetoothSchemes.all)

  static func main() async {
    let words = CommandLine.arguments
    do {
      switch words.count > 2 ? words[1] : "" {
      case "ask" where words.count == 4: try await ask(words[2], words[3])
      case "cancel" where words.count == 4: try await cancel(words[2], Int(words[3]) ?? 1)
      case "log": try await log(words[2])
      default:
        say("see the first lines of the source", to: STDERR_FILENO)
        exit(64)
      }
    } catch {
      say("\(error)", to: STDERR_FILENO)
      exit(1)
    }
  }

  /// A line of output, at once.
  static func say(_ line: String, to descriptor: Int32 = STDOUT_FILENO) {
    let bytes = Array("\(line)\n".utf8)
    _ = write(descriptor, bytes, bytes.count)
  }

  static func ask(_ url: String, _ text: String) async throws {
    let stream = try await broker.connect(url, timeout: .seconds(30))
    try await stream.write(Array("\(text)\n".utf8))
    let answer = try await stream.read(until: [UInt8(ascii: "\n")], within: .seconds(10))
    print(String(decoding: answer, as: UTF8.self), terminator: "")
    try await stream.flush(within: .seconds(10))
    stream.close()
  }

  /// Prints a JSON object: how the openings ended, in which step those were that were cancelled, the median and the
  /// longest time from a cancellation to its end, and the descriptors and threads before and after. Times are milliseconds.
  static func cancel(_ url: String, _ count: Int) async throws {
    let (first, next) = try await openingTimes(url)
    try await Task.sleep(for: .milliseconds(1))  // Dispatch makes a timer and keeps it
    let before = settled()
    var (opened, failed) = (0, 0)
    var times: [Duration] = []
    var steps: [String: Int] = [:]
    for number in 0..<count {
      let isFirst = number % 30 == 0
      if isFirst { try await Task.sleep(for: .milliseconds(2500)) }  // the kernel ends an unused link
      let (task, step) = begin(url)
      try await Task.sleep(for: (isFirst ? first : next) * Double.random(in: 0...1.1))
      task.cancel()
      let start = ContinuousClock.now
      let result = await task.result
      times.append(start.duration(to: .now))
      switch result {
      case .success(let stream):
        stream.close()
        opened += 1
      case .failure(is CancellationError): steps[await step.value, default: 0] += 1
      case .failure(let error):
        say("opening \(number): \(error)", to: STDERR_FILENO)
        failed += 1
      }
    }
    let after = settled()
    times.sort()
    let (median, slowest) = (times[count / 2], times[count - 1])
    let hits = steps.sorted { $0.key < $1.key }.map { "\"\($0.key)\": \($0.value)" }.joined(separator: ", ")
    say(
      """
      {"first": \(first / .milliseconds(1)), "next": \(next / .milliseconds(1)), "median": \(median / .milliseconds(1)), \
      "slowest": \(slowest / .milliseconds(1)), \
      "opened": \(opened), "failed": \(failed), "cancelled": {\(hits)}, \
      "descriptors": [\(before.descriptors), \(after.descriptors)], "threads": [\(before.threads), \(after.threads)]}
      """)
  }

  /// How long an opening takes: the first, without a link to the device, and the median of the next, on a link that the
  /// kernel keeps.
  static func openingTimes(_ url: String) async throws -> (first: Duration, next: Duration) {
    var times: [Duration] = []
    for _ in 0..<6 {
      let start = ContinuousClock.now
      let stream = try await broker.connect(url, timeout: .seconds(30))
      times.append(start.duration(to: .now))
      stream.close()
    }
    return (times[0], times[1...].sorted()[2])
  }

  /// Begins to open. The second task returns the last step, when the opening is over.
  static func begin(_ url: String) -> (opening: Task<StreamHandle, any Error>, step: Task<String, Never>) {
    let observer = StreamObserver()
    let opening = Task { try await broker.connect(url, timeout: .seconds(30), observer: observer) }
    let step = Task { [events = observer.events] in
      var last = "nothing"
      for await event in events {
        if case .step(let step) = event { last = "\(step)" }
        if case .closed = event { break }
      }
      return last
    }
    return (opening, step)
  }

  /// Descriptors, by what they lead to, and the number of threads, when nothing is under way. Abandoned connections are
  /// kept for five seconds, and Dispatch keeps idle threads as long; a task that sleeps would wake them.
  static func settled() -> (descriptors: [String], threads: Int) {
    usleep(8_000_000)
    let descriptors = (0..<1024).compactMap { number -> String? in
      var target = [UInt8](repeating: 0, count: 256)
      let count = target.withUnsafeMutableBytes { readlink("/proc/self/fd/\(number)", $0.baseAddress!, $0.count) }
      return count < 0 ? nil : String(decoding: target[..<count], as: UTF8.self)
    }
    var threads = 0
    if let folder = opendir("/proc/self/task") {
      while let entry = readdir(folder) { if entry.pointee.d_name.0 != 0x2E { threads += 1 } }
      closedir(folder)
    }
    return (descriptors, threads)
  }

  static func log(_ url: String) async throws {
    let observer = StreamObserver()
    Task { [events = observer.events] in for await event in events { say("\(event)", to: STDERR_FILENO) } }
    let stream = try await broker.connect(url, timeout: .seconds(30), reconnect: .always, observer: observer)
    for try await line in stream.lines { say(line) }
  }
}
