// The test's own end of a socket or pty. Each call blocks for at most `Patience`, so calls run in `onOwnThread`. It
// uses plain system calls and nothing of the engine.

import ByteStreams
import CLinux
import Glibc
import Synchronization

public final class FarEnd: Sendable {
  private let content: Mutex<Descriptor?>
  private let raw: Int32
  private let isSocket: Bool
  private static let timeout = Int32(Patience.milliseconds)

  public init(_ descriptor: consuming Descriptor, isSocket: Bool) {
    raw = descriptor.raw
    self.isSocket = isSocket
    content = Mutex(descriptor)
  }

  /// Makes a terminal exclusive (TIOCEXCL). Returns whether that worked.
  public func exclude() throws -> Bool { ioctl(try live(), UInt(TIOCEXCL), 0) == 0 }

  /// Makes the receive buffer small, so that what is not read waits on the other side.
  public func receivesLittle() throws { try SocketOptions.set(try live(), SOL_SOCKET, SO_RCVBUF, 4096) }

  /// Sends everything.
  public func send(_ bytes: some Sequence<UInt8>) throws {
    let raw = try live()
    let bytes = Array(bytes)
    var sent = 0
    while sent < bytes.count {
      let count = bytes.withUnsafeBytes { run in
        isSocket
          ? Glibc.send(raw, run.baseAddress! + sent, run.count - sent, Int32(MSG_NOSIGNAL))
          : Glibc.write(raw, run.baseAddress! + sent, run.count - sent)
      }
      if count >= 0 {
        sent += count
      } else if errno == EAGAIN {
        try wait(for: POLLOUT)
      } else if errno != EINTR {
        throw SystemError("send")
      }
    }
  }

  /// Sends what the kernel accepts now. Returns the number of bytes.
  public func sendUntilFull(_ byte: UInt8 = 0, atMost: Int = 64 << 20) throws -> Int {
    let raw = try live()
    let chunk = [UInt8](repeating: byte, count: 64 * 1024)
    var sent = 0
    while sent < atMost {
      let count = Glibc.write(raw, chunk, min(chunk.count, atMost - sent))
      if count > 0 { sent += count } else { break }
    }
    return sent
  }

  /// The next bytes, at most `count`; empty at the end.
  public func receive(upTo count: Int) throws -> [UInt8] {
    let raw = try live()
    var bytes = [UInt8](repeating: 0, count: count)
    while true {
      let received = Glibc.read(raw, &bytes, count)
      if received >= 0 { return Array(bytes[..<received]) }
      switch errno {
      case EAGAIN: try wait(for: POLLIN)
      case EINTR: continue
      case EIO where !isSocket: return []  // the last slave closed
      default: throw SystemError("receive")
      }
    }
  }

  /// Exactly `count` bytes, unless the end comes before.
  public func receive(exactly count: Int) throws -> [UInt8] {
    var bytes: [UInt8] = []
    while bytes.count < count {
      let more = try receive(upTo: count - bytes.count)
      if more.isEmpty { break }
      bytes += more
    }
    return bytes
  }

  /// Blocks until a process has a pty's slave open. The kernel does not report that, so this checks repeatedly.
  public func waitWhileHungUp() throws {
    let raw = try live()
    for _ in 0..<2 * Patience.milliseconds {
      var one = pollfd(fd: raw, events: 0, revents: 0)
      guard poll(&one, 1, 0) > 0, Int32(one.revents) & POLLHUP != 0 else { return }
      usleep(500)
    }
    throw SystemError("poll", ETIMEDOUT)
  }

  /// Blocks until this end or `other` is readable. Returns whether `other` has nothing yet.
  public func isFirst(before other: FarEnd) throws -> Bool {
    var both = [
      pollfd(fd: try live(), events: Int16(POLLIN), revents: 0),
      pollfd(fd: try other.live(), events: Int16(POLLIN), revents: 0),
    ]
    guard poll(&both, 2, Self.timeout) > 0 else { throw SystemError("poll", ETIMEDOUT) }
    return both[1].revents == 0
  }

  /// Whether the other side of a socket has finished sending.
  public var hasEnded: Bool {
    var one = pollfd(fd: raw, events: 0x2000 /* POLLRDHUP */, revents: 0)
    return poll(&one, 1, 0) > 0
  }

  public func finishWriting() { shutdown(raw, Int32(SHUT_WR)) }

  public func close() { content.withLock { $0 = nil } }

  /// Closes so that the other side sees a reset.
  public func reset() {
    var now = linger(l_onoff: 1, l_linger: 0)
    setsockopt(raw, SOL_SOCKET, SO_LINGER, &now, socklen_t(MemoryLayout<linger>.size))
    close()
  }

  /// Gives the descriptor to the caller; this end counts as closed afterwards.
  public func take() throws(SystemError) -> Descriptor {
    guard let descriptor = content.withLock({ $0.take() }) else { throw SystemError("far end", EBADF) }
    return descriptor
  }

  /// Turns this end into a stream on a lane. No call may be waiting on this end.
  public func stream(on poller: Poller, isTCP: Bool = false) throws(SystemError) -> DescriptorStream {
    DescriptorStream(try take(), kind: isTCP ? .tcp(wasDialled: false) : isSocket ? .socket : .device, on: poller)
  }

  /// The number while it is ours: after `close()` it may belong to another file.
  private func live() throws -> Int32 {
    guard content.withLock({ $0 != nil }) else { throw SystemError("far end", EBADF) }
    return raw
  }

  private func wait(for events: Int32) throws {
    var one = pollfd(fd: raw, events: Int16(events), revents: 0)
    guard poll(&one, 1, Self.timeout) != 0 else { throw SystemError("poll", ETIMEDOUT) }
  }
}

extension FarEnd {
  /// Two connected ends of socketpair(2).
  public static func pair() throws(SystemError) -> (FarEnd, FarEnd) {
    var ends: [Int32] = [-1, -1]
    guard linux_socketpair(AF_UNIX, Int32(SOCK_STREAM.rawValue), &ends) == 0 else { throw SystemError("socketpair") }
    return (
      FarEnd(Descriptor(owning: ends[0]), isSocket: true), FarEnd(Descriptor(owning: ends[1]), isSocket: true)
    )
  }

  /// Two connected ends of a TCP connection over the loopback.
  public static func tcpPair() throws -> (FarEnd, FarEnd) {
    let listener = try LoopbackListener()
    let one = try Descriptor.socket(listener.address.family)
    let answer = listener.address.withSockaddr { connect(one.raw, $0, $1) }
    guard answer == 0 || errno == EINPROGRESS else { throw SystemError("connect") }
    return (FarEnd(one, isSocket: true), try listener.accept())
  }
}

/// A TCP server of the test, on 127.0.0.1 or ::1.
public final class LoopbackListener: Sendable {
  public let address: SocketAddress
  private let content: Mutex<Descriptor?>
  private let raw: Int32

  /// With a `backlog` of 0 it is full after few connections that are not accepted. One that does not listen refuses
  /// connections and keeps the port; a closed one may lose its port to another program at once.
  public init(_ host: String = "127.0.0.1", port: UInt16 = 0, backlog: Int32 = 128, listens: Bool = true) throws {
    guard let wanted = SocketAddress(numeric: host, port: port) else { throw SystemError("bind", EINVAL) }
    let socket = try Descriptor.socket(wanted.family)
    if listens { try SocketOptions.set(socket.raw, SOL_SOCKET, SO_REUSEADDR, 1) }
    guard wanted.withSockaddr({ bind(socket.raw, $0, $1) }) == 0 else { throw SystemError("bind") }
    guard !listens || listen(socket.raw, backlog) == 0 else { throw SystemError("listen") }
    address = try SocketAddress.local(of: socket.raw) ?? wanted
    raw = socket.raw
    content = Mutex(socket)
  }

  /// Uses a port that the kernel never assigns automatically (it assigns those from 32768 on, ip(7)): after this
  /// listener has closed, the port is still free for the test that waits for it.
  public static func atUnusedPort(_ host: String) throws -> LoopbackListener {
    for _ in 0..<100 {
      do { return try LoopbackListener(host, port: .random(in: 20_000..<32_000)) } catch let error as SystemError {
        guard error.errno == EADDRINUSE else { throw error }
      }
    }
    throw SystemError("bind", EADDRINUSE)
  }

  /// Blocks for at most `Patience`; call it in `onOwnThread`.
  public func accept() throws -> FarEnd {
    while true {
      let accepted = linux_accept(raw, nil, nil)
      if accepted >= 0 { return FarEnd(Descriptor(owning: accepted), isSocket: true) }
      guard errno == EAGAIN || errno == EINTR else { throw SystemError("accept") }
      var one = pollfd(fd: raw, events: Int16(POLLIN), revents: 0)
      guard poll(&one, 1, Int32(Patience.milliseconds)) != 0 else { throw SystemError("poll", ETIMEDOUT) }
    }
  }

  public func close() { content.withLock { $0 = nil } }
}
