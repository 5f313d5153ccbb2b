// Work in the background: one thread writes, one reads, both with blocking calls. A notification reports the end.

import Foundation
import StreamBrokerFoundation

enum Polling {
  static let didEnd = Notification.Name("PollingDidEnd")

  static func start(_ url: String) {
    Stream.pair(for: url, timeout: .seconds(10)) { result in
      guard case .success(let (input, output)) = result else { Program.fail("\(result)") }
      let meta = input.meta
      _ = NotificationCenter.default.addObserver(forName: didEnd, object: nil, queue: nil) { notification in
        guard let received = notification.userInfo?["received"] as? Data else { Program.fail("ended too early") }
        Program.succeed(received, meta)
      }
      input.open()
      output.open()
      // Each stream belongs to one thread from now on.
      nonisolated(unsafe) let (reader, writer) = (input, output)
      Thread.detachNewThread { write(to: writer) }
      Thread.detachNewThread {
        let received = read(from: reader)
        NotificationCenter.default.post(name: didEnd, object: nil, userInfo: received.map { ["received": $0] })
      }
    }
  }

  private static func write(to output: OutputStream) {
    let bytes = [UInt8](Program.sample)
    var sent = 0
    while sent < bytes.count {
      let count = bytes[sent...].withUnsafeBufferPointer { output.write($0.baseAddress!, maxLength: $0.count) }
      guard count > 0 else { Program.fail("write: \(output.streamError?.localizedDescription ?? "closed")") }
      sent += count
    }
  }

  private static func read(from input: InputStream) -> Data? {
    var received = Data()
    var piece = [UInt8](repeating: 0, count: 16_384)
    while received.count < Program.sample.count {
      let count = input.read(&piece, maxLength: piece.count)
      guard count > 0 else {
        Program.say("read: \(input.streamError?.localizedDescription ?? "ended")")
        return nil
      }
      received.append(contentsOf: piece[..<count])
    }
    return received
  }
}
