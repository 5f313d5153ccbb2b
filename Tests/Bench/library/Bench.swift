// One measurement of the library as a client: the handle that any task uses, or code on a lane. Tests/Bench/library/run
// starts it and the far end.
//   library-bench handle|lane trip|up|down URL SECONDS     prints round trips or bytes per second

import StreamBroker

@main
struct Bench {
  static let piece = [UInt8](repeating: 0x55, count: 16 << 10)

  static func main() async throws {
    let words = CommandLine.arguments
    guard words.count == 5, let seconds = Double(words[4]) else { return print("see the first lines of the source") }
    let start = ContinuousClock.now
    let end: @Sendable () -> Bool = { start.duration(to: .now) >= .seconds(seconds) }
    let count =
      if words[1] == "handle" {
        try await handle(words[2], words[3], end)
      } else {
        try await lane(words[2], words[3], end, on: Lane("bench"))
      }
    let time = start.duration(to: .now).components
    print(Double(count) / (Double(time.seconds) + Double(time.attoseconds) / 1e18))
  }

  // Not on the main actor: on Linux each return to it costs a further change of thread.
  @concurrent
  static func handle(_ mode: String, _ url: String, _ isOver: @Sendable () -> Bool) async throws -> Int {
    let stream = try await Broker.standard.connect(url)
    defer { stream.close() }
    var count = 0
    switch mode {
    case "trip":
      while !isOver() {
        try await stream.write([0x55])
        count += try await stream.read(upTo: 1).count
      }
    case "up":
      while !isOver() {
        try await stream.write(piece)
        count += piece.count
      }
    default: while !isOver() { count += try await stream.read(upTo: piece.count).count }
    }
    return count
  }

  static func lane(_ mode: String, _ url: String, _ isOver: @Sendable () -> Bool, on lane: isolated Lane) async throws
    -> Int
  {
    let stream = try await Broker.standard.open(url, on: lane)
    defer { stream.close() }
    var count = 0
    let chunks = stream.bytes.makeAsyncIterator()
    switch mode {
    case "trip":
      while !isOver() {
        try await stream.send([0x55])
        count += try await chunks.next(isolation: lane)?.count ?? 0
      }
    case "up":
      while !isOver() {
        try await stream.send(piece)
        count += piece.count
      }
    default: while !isOver() { count += try await chunks.next(isolation: lane)?.count ?? 0 }
    }
    return count
  }
}
