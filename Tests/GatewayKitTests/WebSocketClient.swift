// A WebSocket client for tests, over any far end: binary messages with a mask of zeros, short answers. Blocks.

import Glibc
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams

final class WebSocketClient: FarParty {
  private let below: any FarParty
  private let came = Mutex<[UInt8]>([])

  /// Requests `path`, and requires that the server accepts.
  init(over below: any FarParty, path: String) throws {
    self.below = below
    try below.send(
      Array(
        """
        GET \(path) HTTP/1.1\r
        Host: gw.test\r
        Connection: Upgrade\r
        Upgrade: websocket\r
        Sec-WebSocket-Version: 13\r
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r
        \r

        """.utf8))
    let end = Array("\r\n\r\n".utf8)
    var answer: [UInt8] = []
    while answer.firstRange(of: end) == nil {
      let some = try below.receive()
      guard !some.isEmpty else { throw SystemError("receive", ECONNRESET) }
      answer += some
    }
    #expect(answer.starts(with: Array("HTTP/1.1 101 ".utf8)))
    let rest = Array(answer[(answer.firstRange(of: end)?.upperBound ?? 0)...])
    came.withLock { $0 = rest }
  }

  func send(_ bytes: [UInt8]) throws {
    precondition(bytes.count < 126)
    try below.send([0x82, 0x80 | UInt8(bytes.count), 0, 0, 0, 0] + bytes)
  }

  /// The payload of the next non-empty binary message; empty at the end.
  func receive() throws -> [UInt8] {
    while true {
      let head = try take(2)
      guard head.count == 2, head[0] != 0x88 else { return [] }
      var length = Int(head[1])
      if length > 125 { length = try take(length == 126 ? 2 : 8).reduce(0) { $0 << 8 | Int($1) } }
      let payload = try take(length)
      if head[0] == 0x82 && !payload.isEmpty { return payload }
    }
  }

  func finishWriting() { try? below.send([0x88, 0x82, 0, 0, 0, 0, 3, 232]) }

  func close() {
    finishWriting()
    below.close()
  }

  private func take(_ count: Int) throws -> [UInt8] {
    while came.withLock({ $0.count < count }) {
      let some = try below.receive()
      guard !some.isEmpty else { return [] }
      came.withLock { $0 += some }
    }
    return came.withLock { came in
      defer { came.removeFirst(count) }
      return Array(came[..<count])
    }
  }
}
