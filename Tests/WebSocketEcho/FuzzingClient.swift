// The client that Autobahn's fuzzing server needs: it asks how many cases there are, echoes in each, and requests the
// report.

import ByteStreams
import Glibc
import StreamTLS
import StreamWebSocket

final class FuzzingClient {
  private let address: SocketAddress
  private let context: TLSClientContext?
  private let agent: String
  private let deflate: DeflateSettings?
  private let poller: Poller

  /// Uses TLS if there is a `context`.
  init(
    of address: String, _ context: TLSClientContext?, agent: String, deflate: DeflateSettings?, on poller: Poller
  ) throws {
    guard let colon = address.lastIndex(of: ":"), let port = UInt16(address[address.index(after: colon)...]),
      let address = SocketAddress(numeric: String(address[..<colon]), port: port)
    else { throw SystemError("connect", EINVAL) }
    self.address = address
    self.context = context
    self.agent = agent
    self.deflate = deflate
    self.poller = poller
  }

  func start(then done: @escaping () -> Void) throws {
    var count = 0
    try connect("/getCaseCount", hearing: { count = Int(String(decoding: $0, as: UTF8.self)) ?? 0 }) { [self] in
      print("\(count) cases")
      runCase(1, of: count, then: done)
    }
  }

  private func runCase(_ number: Int, of count: Int, then done: @escaping () -> Void) {
    let target = number > count ? "/updateReports?agent=\(agent)" : "/runCase?case=\(number)&agent=\(agent)"
    do {
      try connect(target, hearing: nil) { [self] in
        if number > count { done() } else { runCase(number + 1, of: count, then: done) }
      }
    } catch {
      fail(error)
    }
  }

  private func connect(_ target: String, hearing received: (([UInt8]) -> Void)?, then done: @escaping () -> Void) throws
  {
    let socket = try Descriptor.socket(address.family)
    guard address.withSockaddr({ Glibc.connect(socket.raw, $0, $1) }) == 0 || errno == EINPROGRESS else {
      throw SystemError("connect")
    }
    try SocketOptions.set(socket.raw, Int32(IPPROTO_TCP), TCP_NODELAY, 1)
    let request = WebSocketRequest(host: "\(address)", target: target, deflate: deflate)
    let ask = { [poller] (stream: any ByteStream) in
      AnswerReader(of: stream, request, on: poller, hearing: received, then: done).start()
    }
    guard let context else { return ask(DescriptorStream(socket, kind: .tcp(wasDialled: true), on: poller)) }
    try SecureDeparture(socket, context, to: address.host, on: poller, then: ask).start()
  }
}

/// The handshake of one connection.
private final class SecureDeparture: PollHandler {
  private let descriptor: DescriptorParcel
  private let raw: Int32
  private let handshake: TLSHandshake
  private let poller: Poller
  private let done: (any ByteStream) -> Void

  init(
    _ descriptor: consuming Descriptor, _ context: TLSClientContext, to name: String, on poller: Poller,
    then done: @escaping (any ByteStream) -> Void
  ) throws {
    raw = descriptor.raw
    handshake = try TLSHandshake(context, to: name, over: raw)
    self.descriptor = DescriptorParcel(descriptor)
    self.poller = poller
    self.done = done
  }

  func start() throws { try poller.add(raw, handler: self, for: .writable) }  // writable means connected

  func ready(_ events: PollEvents) {
    do {
      switch try handshake.advance() {
      case .blocked(let wish): poller.change(raw, to: wish)
      case .finished:
        poller.remove(raw)
        guard let descriptor = descriptor.take() else { return }
        done(TLSStream(handshake.takeSession(), over: descriptor, kind: .tcp(wasDialled: true), on: poller))
      }
    } catch {
      fail(error)
    }
  }
}

/// Sends a request and reads its answer; then the echo begins.
private final class AnswerReader: ByteStreamDelegate {
  private let stream: any ByteStream
  private let request: WebSocketRequest
  private let poller: Poller
  private let received: (([UInt8]) -> Void)?
  private let done: () -> Void
  private var parser = HTTPResponseParser()

  init(
    of stream: any ByteStream, _ request: WebSocketRequest, on poller: Poller, hearing received: (([UInt8]) -> Void)?,
    then done: @escaping () -> Void
  ) {
    self.stream = stream
    self.request = request
    self.poller = poller
    self.received = received
    self.done = done
  }

  func start() {
    stream.delegate = self
    stream.writerWaits = .writable  // writable means connected
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    do {
      if event == .hasSpaceAvailable {
        stream.writerWaits = []
        stream.readerWaits = .readable
        _ = try request.bytes.withUnsafeBytes { try stream.write($0) }  // a new socket has space for it
        return
      }
      try withUnsafeTemporaryAllocation(byteCount: 16_384, alignment: 1) { run in
        guard case .moved(let count) = try stream.read(into: run) else { return }
        let came = UnsafeRawBufferPointer(rebasing: run[..<count])
        guard case .complete(let head, let taken) = try parser.take(came) else { return }
        begin(try request.terms(of: head), early: Array(came[taken...]))
      }
    } catch {
      fail(error)
    }
  }

  private func begin(_ terms: WebSocketTerms, early: [UInt8]) {
    var settings = WebSocketStream.Settings(terms: terms, longestMessage: 64 << 20, pingInterval: nil)
    settings.marksMessages = true
    let webSocket = WebSocketStream(over: stream, as: .client, settings, early: early, on: poller)
    Echo(webSocket, on: poller, hearing: received, then: done).start()
  }
}
