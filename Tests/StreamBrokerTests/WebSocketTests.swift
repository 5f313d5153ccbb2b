// ws and wss endpoints against test servers: the conformance suite, and the error when the server is not a WebSocket
// server.

import ByteStreams
import Dispatch
import StreamBroker
import StreamTestKit
import StreamWebSocket
import Synchronization
import Testing

/// The server's end of a WebSocket over another far end. Blocking; sends short unmasked binary messages.
final class WebSocketFarEnd: FarParty {
  private let below: any FarParty
  private let came = Mutex<[UInt8]>([])
  private let isOver = Mutex(false)

  /// Reads one request and accepts it.
  init(over below: any FarParty) throws {
    self.below = below
    var parser = HTTPRequestParser()
    while true {
      let some = try below.receive()
      guard !some.isEmpty else { throw SystemError("receive", 104) }
      guard case .complete(let head, let taken) = try parser.take(some) else { continue }
      came.withLock { $0 = Array(some[taken...]) }
      try below.send(try WebSocketUpgrade(head, .init()).response)
      return
    }
  }

  func send(_ bytes: [UInt8]) throws {
    for start in stride(from: 0, to: bytes.count, by: 60_000) {
      let part = bytes[start..<min(start + 60_000, bytes.count)]
      let length = part.count < 126 ? [UInt8(part.count)] : [126, UInt8(part.count >> 8), UInt8(part.count & 255)]
      try below.send([0x82] + length + part)
    }
  }

  func receive() throws -> [UInt8] {
    while !isOver.withLock({ $0 }) {
      let head = try take(2)
      guard head.count == 2 else { return [] }
      var length = Int(head[1] & 0x7F)
      if length > 125 { length = try take(length == 126 ? 2 : 8).reduce(0) { $0 << 8 | Int($1) } }
      let mask = try take(4)
      let payload = try take(length).enumerated().map { $1 ^ mask[$0 % 4] }
      if head[0] == 0x88 { return [] }
      if head[0] == 0x82 && !payload.isEmpty { return payload }
    }
    return []
  }

  func finishWriting() { try? below.send([0x88, 2, 3, 232]) }

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

struct WebSocketRig: StreamRig {
  /// Uses TLS if set.
  var tls: TLSRig?

  func farEnd(_ part: FarPart) throws -> String? {
    switch part {
    case .refuse:
      return tls == nil ? "ws://127.0.0.1:1/gps" : try tls?.farEnd(.refuse)?.replacing("tls://", with: "wss://")
    case .answerAfterTheEnd: return nil  // nothing arrives after the end of a WebSocket
    default: break
    }
    if let tls {
      let address = try tls.serve { try WebSocketFarEnd(over: $0).play(part) }
      return "wss://\(address)/gps\(tls.query)"
    }
    let listener = try LoopbackListener()
    DispatchQueue(label: "far end").async {
      do { try WebSocketFarEnd(over: try listener.accept()).play(part) } catch { Issue.record(error) }
      listener.close()
    }
    return "ws://\(listener.address)/gps"
  }
}

@Suite("A ws endpoint", .timeLimit(.minutes(5)))
struct WebSocketTests {
  /// The error of opening `target` when the server sends `answer`, and the request it received.
  private func failure(_ answer: String) async throws -> (text: String, request: String) {
    let listener = try LoopbackListener()
    async let received = onOwnThread {
      let end = try listener.accept()
      var request: [UInt8] = []
      while !request.suffix(4).elementsEqual("\r\n\r\n".utf8) { request += try end.receive(exactly: 1) }
      try end.send(Array(answer.utf8))
      end.finishWriting()
      _ = try? end.receiveToEnd()
      return String(decoding: request, as: UTF8.self)
    }
    let text = try await onLane { (lane: isolated Lane) async throws -> String in
      do {
        try await Broker(Schemes.standard).open("ws://\(listener.address)/lab/1?subprotocol=tty", on: lane).close()
        return "it opened"
      } catch { return "\(error)" }
    }
    return (text, try await received)
  }

  @Test(
    "reports at once what arrived instead of HTTP, without waiting for a line or the end",
    arguments: [
      ([0x53, 0x53, 0x48, 0x2D], "received SSH"),
      ([0x16, 3, 1, 0], "expected an HTTP response, received TLS; try wss://"), ([0xFF, 0xFD], "received telnet"),
      ([0x3E, 0x20], "received plain text"), ([0, 1], "received something else"),
      (Array("GET /".utf8), "as from an echo"),
      (Array("RFB 003".utf8), "VNC"), (Array("HTTP/1.1\u{1}".utf8), "not HTTP"),
    ] as [([UInt8], String)])
  func noHTTP(bytes: [UInt8], words: String) async throws {
    let listener = try LoopbackListener()
    async let left = onOwnThread {
      let end = try listener.accept()
      try end.send(bytes)
      return try end.receiveToEnd().count  // the client closes, though the server has not ended the stream
    }
    let text = try await onLane { (lane: isolated Lane) async throws -> String in
      do {
        try await Broker(Schemes.standard).open("ws://\(listener.address)/lab/1", on: lane).close()
        return "it opened"
      } catch { return "\(error)" }
    }
    #expect(text.contains(words) && !text.contains("no answer within"), "\(text)")
    _ = try? await left
  }

  @Test("requests its path and sub-protocol, and reports an answer that is not an upgrade")
  func refusals() async throws {
    let cases = [
      ("HTTP/1.1 404 Not Found\r\n\r\n", "404 Not Found; is the path that of a route there?"),
      ("HTTP/1.1 401 Unauthorized\r\n\r\n", "401 Unauthorized"),
      ("HTTP/1.1 200 OK\r\n\r\n", "is it a WebSocket server?"),
      ("", "hung up"), ("HTTP/1.1 101 x\r\n\r\n", "not an upgrade"),
    ]
    for (answer, words) in cases {
      let (text, request) = try await failure(answer)
      #expect(text.contains(words) && text.contains("/lab/1"), "\(text)")
      #expect(request.hasPrefix("GET /lab/1 HTTP/1.1\r\nHost: 127.0.0.1:"))
      #expect(request.contains("Sec-WebSocket-Protocol: tty\r\n"))
    }
  }
}
