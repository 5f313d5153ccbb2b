// A ByteStream over any descriptor that epoll accepts: socket, tty, pty. It writes first, and waits only when the
// kernel has no room. It does not open descriptors; the options of sockets are in Sockets.swift.

import CLinux
import Dispatch
import Glibc

/// A stream over a descriptor that epoll(7) accepts: a socket, a terminal, a character device. Lives on the lane of its
/// poller and owns the descriptor. A scheme of your own usually opens a descriptor and returns this.
public final class DescriptorStream: TransportStream, PollHandler {
  public var delegate: (any ByteStreamDelegate)? {
    didSet { if isClosed && delegate != nil { delegate = nil } }
  }

  public var readerWaits: Readiness = [] {
    didSet { if readerWaits != oldValue { waitsChanged() } }
  }
  public var writerWaits: Readiness = [] {
    didSet { if writerWaits != oldValue { waitsChanged() } }
  }

  /// The kind of descriptor, as far as reading and writing differ.
  public enum Kind: Sendable {
    /// A TCP connection: `PeerWatch` watches its peer while bytes are on their way. An accepted socket inherits its
    /// listener's options. A dialled one gets keepalive after some quiet seconds, which saves short connections four
    /// calls.
    case tcp(wasDialled: Bool)
    /// Another stream socket.
    case socket
    /// A terminal or another device. Not a pipe: a write to a pipe without a reader raises SIGPIPE.
    case device
    /// The master of a pseudo-terminal, or a duplicate of it. It reports a hang-up from the moment when the slave's
    /// last user closes the slave until a user opens the slave again.
    case ptyMaster
  }

  let raw: Int32
  let isSocket: Bool
  let isTCP: Bool
  /// The kind given at `init`.
  public let kind: Kind
  private let poller: Poller
  private var descriptor: Descriptor?
  private var isInPoller = false
  private var readEnded = false
  // The end of input was read or reported.
  private var endIsKnown: Bool
  // The last write was short, so the kernel has no room: the next write returns `.blocked` without a call. It also
  // clears this, as EPOLLOUT does.
  private var isFull = false
  // Where close(2) runs if it may block: closing a tty drains it.
  private let closeQueue: DispatchQueue?
  private let beforeClose: (@Sendable (Int32) -> Void)?
  private let afterClose: (@Sendable () -> Void)?
  private var needsKeepalive = false
  // SO_SNDBUF before `limitUnsent`, as it would be set again.
  private var usualSendBuffer: Int32?
  var watchIndex: Int?

  /// As given at `init`.
  public private(set) var serialLine: (any SerialLine)?
  public var metadata: StreamMetadata?

  /// Takes ownership of an open, non-blocking descriptor. With `closeQueue`, close(2) runs on that queue, between
  /// `beforeClose` and `afterClose`, which may block. Otherwise it runs on the lane, without them.
  public init(
    _ descriptor: consuming Descriptor, kind: Kind, on poller: Poller, closingOn closeQueue: DispatchQueue? = nil,
    beforeClose: (@Sendable (Int32) -> Void)? = nil, afterClose: (@Sendable () -> Void)? = nil,
    serialLine: (any SerialLine)? = nil
  ) {
    raw = descriptor.raw
    self.kind = kind
    switch kind {
    case .tcp:
      isSocket = true
      isTCP = true
    case .socket:
      isSocket = true
      isTCP = false
    case .device, .ptyMaster:
      isSocket = false
      isTCP = false
    }
    endIsKnown = if case .device = kind { true } else { false }  // a tty reports no end before it is read
    self.poller = poller
    self.closeQueue = closeQueue
    self.beforeClose = beforeClose
    self.afterClose = afterClose
    self.serialLine = serialLine
    self.descriptor = consume descriptor
    if case .tcp(wasDialled: true) = kind {
      needsKeepalive = true
      poller.peers.add(self)
    }
  }

  /// Whether the stream was closed or released; reads and writes then return `.ended`.
  public var isClosed: Bool { descriptor == nil }

  // MARK: - Bytes

  public func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    guard !isClosed else { return .ended }
    while true {
      let count = Glibc.read(raw, run.baseAddress!, run.count)
      if count > 0 { return .moved(count) }
      if count == 0 { return sawEnd() }
      switch errno {
      case EINTR: continue
      case EAGAIN: return .blocked(until: .readable)
      case EIO where !isSocket:  // a pty whose other side closed, or an unplugged device: EIO, not 0
        return sawEnd()
      default: throw SystemError("read")
      }
    }
  }

  private func sawEnd() -> Transfer {
    readEnded = true
    endIsKnown = true
    // EOF can arrive before we registered with epoll; register now, or the later hang-up is missed.
    if !isInPoller { join() }
    return .ended
  }

  public func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    guard !isClosed else { return .ended }
    if isFull {
      isFull = false
      return .blocked(until: .writable)
    }
    while true {
      // A library must not depend on the process ignoring SIGPIPE.
      let count =
        isSocket
        ? Glibc.send(raw, run.baseAddress!, run.count, Int32(MSG_NOSIGNAL))
        : Glibc.write(raw, run.baseAddress!, run.count)
      if count >= 0 {
        isFull = count < run.count
        if isTCP && watchIndex == nil { poller.peers.add(self) }
        return .moved(count)
      }
      switch errno {
      case EINTR: continue
      case EAGAIN: return .blocked(until: .writable)
      default: throw SystemError("write")
      }
    }
  }

  public func write(together runs: UnsafeMutableBufferPointer<iovec>) throws -> Transfer {
    guard !isClosed else { return .ended }
    if isFull {
      isFull = false
      return .blocked(until: .writable)
    }
    var offered = 0
    for run in runs { offered &+= run.iov_len }
    while true {
      let count: Int
      if isSocket {
        var message = msghdr()
        message.msg_iov = runs.baseAddress
        message.msg_iovlen = runs.count
        count = sendmsg(raw, &message, Int32(MSG_NOSIGNAL))
      } else {
        count = writev(raw, runs.baseAddress, Int32(runs.count))
      }
      if count >= 0 {
        isFull = count < offered
        if isTCP && watchIndex == nil { poller.peers.add(self) }
        return .moved(count)
      }
      switch errno {
      case EINTR: continue
      case EAGAIN: return .blocked(until: .writable)
      default: throw SystemError("write")
      }
    }
  }

  public var undelivered: UndeliveredOutput {
    var count: Int32 = 0
    guard isTCP, !isClosed, ioctl(raw, UInt(TIOCOUTQ), &count) == 0 else { return .none }  // SIOCOUTQ of tcp(7)
    return .onItsWay(Int(count))
  }

  /// Whether bytes can be read now (FIONREAD); an end alone is none. Costs a system call.
  package var hasInput: Bool {
    var count: Int32 = 0
    return !isClosed && ioctl(raw, UInt(FIONREAD), &count) == 0 && count > 0
  }

  public var closeBehavior: CloseBehavior { CloseBehavior(canHalfClose: isSocket) }

  public func finishWriting() {
    if isSocket && !isClosed { shutdown(raw, Int32(SHUT_WR)) }
  }

  // In bytes. The kernel caps this at net.core.rmem_max and doubles it (socket(7)). The buffer of a connection that is
  // read grows by itself.
  private static let roomForEnd: Int32 = 1 << 20

  public func makeRoomForEnd() {
    guard isTCP, !isClosed else { return }
    var room = Self.roomForEnd
    setsockopt(raw, SOL_SOCKET, SO_RCVBUF, &room, socklen_t(MemoryLayout<Int32>.size))
  }

  public func limitUnsent(to bytes: Int) {
    guard isSocket, !isClosed else { return }
    if isTCP {
      // Counts only what is not sent yet, and so costs a fast client nothing. A closed socket refuses it.
      try? SocketOptions.set(raw, Int32(IPPROTO_TCP), TCP_NOTSENT_LOWAT, Int32(clamping: bytes))
    } else {
      usualSendBuffer = usualSendBuffer ?? (SocketOptions.value(raw, SOL_SOCKET, SO_SNDBUF) ?? 0) / 2
      guard let usualSendBuffer else { return }
      // The kernel doubles the value, for its own records (socket(7)).
      let size = bytes == 0 ? usualSendBuffer : min(Int32(clamping: bytes), usualSendBuffer)
      try? SocketOptions.set(raw, SOL_SOCKET, SO_SNDBUF, size)
    }
  }

  // MARK: - Waiting

  private func waitsChanged() {
    guard !isClosed else { return }
    if isInPoller {
      poller.change(raw, to: interest, noticesEnd: !endIsKnown && readerWaits.isEmpty)
    } else if !interest.isEmpty {
      join()
    }
  }

  private func join() {
    do {
      try poller.add(raw, handler: self, for: interest)
      isInPoller = true
    } catch {
      // epoll does not accept this descriptor, or there is no memory left: report it in a separate turn, as for all
      // events.
      poller.timers.after(.zero) { [self] in report(.errorOccurred(error)) }
    }
  }

  /// Called by the poller.
  public func ready(_ events: PollEvents) {
    let hungUp = !events.isDisjoint(with: .hangUp)
    let readable = hungUp || events.contains(.readable)
    let writable = hungUp || events.contains(.writable)
    if writable { isFull = false }
    let reader = readerWaits
    let writer = writerWaits
    // The writer first: it makes room, which the reader's turn can fill.
    if (writable && writer.contains(.writable)) || (readable && writer.contains(.readable)) {
      report(.hasSpaceAvailable)
    }
    if (readable && reader.contains(.readable)) || (writable && reader.contains(.writable)) {
      report(.hasBytesAvailable)
    }
    // A reader paused by back-pressure must still learn that the peer is gone.
    if !endIsKnown && reader.isEmpty && (hungUp || events.contains(.lastByte)) {
      endIsKnown = true
      waitsChanged()
      report(.inputEnded)
    }
    // After the end of input, a hang-up means that the other side does not read any more either.
    if hungUp && readEnded && reader.isEmpty && writer.isEmpty { report(.endEncountered) }
  }

  private func report(_ event: ByteStreamEvent) {
    guard !isClosed else { return }
    delegate?.stream(self, handle: event)
  }

  // MARK: - The end

  public func close() {
    guard let descriptor = descriptor.take() else { return }
    if isInPoller { poller.remove(raw, isClosing: closeQueue == nil && !mayBeDuplicate) }
    poller.peers.remove(self)
    dismissDelegate()
    if let closeQueue {
      let parcel = DescriptorParcel(descriptor)
      poller.closings.run(on: closeQueue) { [beforeClose, afterClose] in
        guard let descriptor = parcel.take() else { return }
        beforeClose?(descriptor.raw)
        _ = consume descriptor
        afterClose?()
      }
    }
  }

  /// Whether another duplicate may be open. close(2) would then keep the entry in the epoll set, which would report
  /// events under a number that another descriptor may have by then.
  private var mayBeDuplicate: Bool { if case .ptyMaster = kind { true } else { false } }

  /// Hands over the descriptor for use elsewhere, perhaps on another lane; the stream counts as closed. Nil if it was
  /// closed before.
  public func release() -> Descriptor? {
    guard let descriptor = descriptor.take() else { return nil }
    if isInPoller { poller.remove(raw) }
    poller.peers.remove(self)
    dismissDelegate()
    return descriptor
  }

  public func abort() {
    if isSocket && !isClosed {
      var now = linger(l_onoff: 1, l_linger: 0)  // socket(7): close(2) then sends RST and discards queued bytes
      setsockopt(raw, SOL_SOCKET, SO_LINGER, &now, socklen_t(MemoryLayout<linger>.size))
    }
    close()
  }
}

extension DescriptorStream: WatchedPeer {
  var watchedDescriptor: Int32? { isClosed ? nil : raw }
  var isBlocked: Bool { writerWaits.contains(.writable) }
  func peerIsQuiet() {
    guard needsKeepalive else { return }
    needsKeepalive = false
    try? SocketOptions.applyKeepalive(to: raw)  // fails on a dead socket; the next read reports that
  }
  func peerIsGone() { report(.errorOccurred(SystemError("write", ETIMEDOUT))) }
}
