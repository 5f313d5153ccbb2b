// Logs the lines of a device, each with its time, and continues after the device was unplugged and plugged in again.
//   serial-logger 'tty:///dev/ttyUSB0?baud=9600' [FILE]
// Without FILE it prints the lines. Ctrl-C ends it. Losses and statistics go to standard error.

import Dispatch
import FoundationEssentials
import Glibc
import StreamBroker
import StreamBrokerBluetooth

@main
struct SerialLogger {
  static func main() async {
    let arguments = CommandLine.arguments
    guard (2...3).contains(arguments.count) else { fail(64, "usage: serial-logger URL [FILE]") }
    if arguments.count == 3 { redirectOutput(to: arguments[2]) }
    let counts = Counts()
    do {
      try await log(arguments[1], counts)
    } catch {
      fail(1, "\(error)")
    }
    report(await counts.summary)
  }

  static func log(_ url: String, _ counts: Counts) async throws {
    let observer = StreamObserver()
    let watching = Task {
      for await event in observer.events { await watch(event, counts) }
    }
    defer { watching.cancel() }

    let broker = Broker(Schemes.standard + BluetoothSchemes.all)
    let stream = try await broker.connect(url, timeout: .seconds(30), reconnect: .whenLost, observer: observer)
    let signals = closeOnInterrupt(stream)
    defer { signals.cancel() }

    for try await line in stream.lines {
      await counts.add(line)
      print(Date.now.ISO8601Format(Date.ISO8601FormatStyle(includingFractionalSeconds: true)), line)
      fflush(nil)
    }
  }

  static func watch(_ event: StreamEvent, _ counts: Counts) async {
    switch event {
    case .open: report("open")
    case .lost(let reason):
      await counts.addLoss()
      report("lost: \(reason)")
    case .waiting(let reason, let pause): report("waits \(pause) for the device: \(reason)")
    case .facts(let facts): report("device: \(facts.name ?? "?"), \(facts.firmware ?? "firmware unknown")")
    case .step, .remark, .closed: break
    }
  }

  /// `close()` ends the loop over the lines.
  static func closeOnInterrupt(_ stream: StreamHandle) -> any DispatchSourceSignal {
    signal(SIGINT, SIG_IGN)
    let source = DispatchSource.makeSignalSource(signal: SIGINT, queue: DispatchQueue(label: "signals"))
    source.setEventHandler { stream.close() }
    source.activate()
    return source
  }

  static func redirectOutput(to path: String) {
    let file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0o644)
    guard file >= 0, dup2(file, STDOUT_FILENO) >= 0 else { fail(1, "\(SystemError("open")): \(path)") }
  }

  static func report(_ text: String) {
    _ = "serial-logger: \(text)\n".withCString { write(STDERR_FILENO, $0, strlen($0)) }
  }

  static func fail(_ code: Int32, _ text: String) -> Never {
    report(text)
    exit(code)
  }
}

/// What was logged so far.
actor Counts {
  private var lines = 0, bytes = 0, losses = 0

  func add(_ line: String) {
    lines += 1
    bytes += line.utf8.count
  }
  func addLoss() { losses += 1 }
  var summary: String { "lines: \(lines), bytes: \(bytes), losses: \(losses)" }
}
