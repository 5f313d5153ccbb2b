// Joins two endpoints of any schemes: each gets the bytes of the other.
//   join 'tty:///dev/ttyUSB0?baud=115200' tcp://192.168.0.10:4001
// When the input of one ends, the output of the other is ended, and the rest has five seconds.

import Glibc
import StreamBroker
import StreamBrokerBluetooth

@main
struct Join {
  static func main() async {
    guard CommandLine.arguments.count == 3 else {
      print("usage: join URL URL")
      exit(64)
    }
    do {
      let counts = try await join(CommandLine.arguments[1], CommandLine.arguments[2])
      print("\(counts.there) bytes there, \(counts.back) bytes back")
    } catch {
      print("join: \(error)")
      exit(1)
    }
  }

  static func join(_ first: String, _ second: String) async throws -> (there: Int, back: Int) {
    let broker = Broker(Schemes.standard + BluetoothSchemes.all)
    async let one = broker.connect(first, timeout: .seconds(30))
    async let other = broker.connect(second, timeout: .seconds(30))
    let there = Direction(from: try await one, to: try await other)
    let back = Direction(from: try await other, to: try await one)

    try await withThrowingTaskGroup(of: Void.self) { group in
      group.addTask { try await there.copy() }
      group.addTask { try await back.copy() }
      try await group.next()  // one direction has ended
      group.addTask { try await Task.sleep(for: .seconds(5)) }
      try await group.next()  // the other direction too, or its time is over
      group.cancelAll()
    }
    return (await there.count, await back.count)
  }
}

/// One way between two streams. A `write` waits while the other side takes no more, and meanwhile nothing is read: so a
/// slow endpoint slows the fast one, and the memory in use stays small.
actor Direction {
  private let source: StreamHandle
  private let sink: StreamHandle
  private(set) var count = 0

  init(from source: StreamHandle, to sink: StreamHandle) {
    self.source = source
    self.sink = sink
  }

  func copy() async throws {
    for try await chunk in source.bytes {
      try await sink.write(chunk)
      count += chunk.count
    }
    try await sink.flush(within: .seconds(5))
    try await sink.finishWriting()
  }
}
