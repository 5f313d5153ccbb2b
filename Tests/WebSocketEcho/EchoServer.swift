// Accepts connections, does the handshakes, and echoes. No deadlines and no connection limits: it serves tests on the
// loopback.

import ByteStreams
import CLinux
import Glibc
import StreamTLS
import StreamWebSocket

final class EchoServer: PollHandler {
  let address: SocketAddress
  private let socket: Descriptor
  private let deflate: DeflateSettings?
  private let context: TLSServerContext?
  private let poller: Poller

  init(port: UInt16, deflate: DeflateSettings?, _ context: TLSServerContext?, on poller: Poller) throws {
    guard let wanted = SocketAddress(numeric: "127.0.0.1", port: port) else { throw SystemError("bind", EINVAL) }
    let socket = try Descriptor.socket(wanted.family)
    try SocketOptions.set(socket.raw, SOL_SOCKET, SO_REUSEADDR, 1)
    guard wanted.withSockaddr({ bind(socket.raw, $0, $1) }) == 0 else { throw SystemError("bind") }
    guard listen(socket.raw, 128) == 0 else { throw SystemError("listen") }
    address = try SocketAddress.local(of: socket.raw) ?? wanted
    self.socket = socket
    self.deflate = deflate
    self.context = context
    self.poller = poller
  }

  func start() {
    do { try poller.add(socket.raw, handler: self, for: .readable) } catch { fail(error) }
  }

  func ready(_ events: PollEvents) {
    let raw = linux_accept(socket.raw, nil, nil)
    guard raw >= 0 else { return }
    let descriptor = Descriptor(owning: raw)
    try? SocketOptions.set(raw, Int32(IPPROTO_TCP), TCP_NODELAY, 1)
    if let context {
      try? SecureAcceptedConnection(descriptor, context, self, on: poller).start()
    } else {
      greet(DescriptorStream(descriptor, kind: .tcp(wasDialled: false), on: poller))
    }
  }

  func greet(_ stream: any ByteStream) { HeadReader(of: stream, deflate, on: poller).start() }
}

/// The handshake of one connection.
private final class SecureAcceptedConnection: PollHandler {
  private let descriptor: DescriptorParcel
  private let raw: Int32
  private let handshake: TLSHandshake
  private let server: EchoServer
  private let poller: Poller

  init(_ descriptor: consuming Descriptor, _ context: TLSServerContext, _ server: EchoServer, on poller: Poller) throws
  {
    raw = descriptor.raw
    handshake = try TLSHandshake(context, over: raw)
    self.descriptor = DescriptorParcel(descriptor)
    self.server = server
    self.poller = poller
  }

  func start() { if (try? poller.add(raw, handler: self, for: .readable)) != nil { ready([]) } }

  func ready(_ events: PollEvents) {
    do {
      switch try handshake.advance() {
      case .blocked(let wish): poller.change(raw, to: wish)
      case .finished:
        poller.remove(raw)
        guard let descriptor = descriptor.take() else { return }
        server.greet(TLSStream(handshake.takeSession(), over: descriptor, kind: .tcp(wasDialled: false), on: poller))
      }
    } catch {
      poller.remove(raw)
      _ = descriptor.take()
    }
  }
}

/// Reads a request and answers it.
private final class HeadReader: ByteStreamDelegate {
  private let stream: any ByteStream
  private let deflate: DeflateSettings?
  private let poller: Poller
  private var parser = HTTPRequestParser()

  init(of stream: any ByteStream, _ deflate: DeflateSettings?, on poller: Poller) {
    self.stream = stream
    self.deflate = deflate
    self.poller = poller
  }

  func start() {
    stream.delegate = self
    stream.readerWaits = .readable
    poller.again(stream)
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    do {
      try withUnsafeTemporaryAllocation(byteCount: 16_384, alignment: 1) { run in
        switch try stream.read(into: run) {
        case .moved(let count):
          let came = UnsafeRawBufferPointer(rebasing: run[..<count])
          guard case .complete(let head, let taken) = try parser.take(came) else { return }
          upgrade(head, early: Array(came[taken...]))
        case .blocked(let wish): stream.readerWaits = wish
        case .ended: stream.close()
        }
      }
    } catch let fault as HTTPFault {
      refuse(HTTPRefusal(fault))
    } catch {
      stream.close()
    }
  }

  private func upgrade(_ head: HTTPRequestHead, early: [UInt8]) {
    do {
      let upgrade = try WebSocketUpgrade(head, .init(origins: ["*"], subprotocols: [], deflate: deflate))
      _ = try? upgrade.response.withUnsafeBytes { try stream.write($0) }  // a new socket has space for it
      var settings = WebSocketStream.Settings(terms: upgrade.terms, longestMessage: 64 << 20, pingInterval: nil)
      settings.marksMessages = true
      let webSocket = WebSocketStream(over: stream, as: .server, settings, early: early, on: poller)
      Echo(webSocket, on: poller) {}.start()
    } catch {
      refuse(error)
    }
  }

  private func refuse(_ refusal: HTTPRefusal) {
    _ = try? refusal.bytes.withUnsafeBytes { try stream.write($0) }
    stream.finishWriting()
    stream.close()
  }
}
