// A ByteStream over any descriptor that epoll takes: socket, tty, pty. Writes first and waits only when the kernel
// says it is full. Opening is others' work; what is special to sockets stands in DescriptorStream+Sockets.swift.

import CLinux
import Dispatch
import Glibc

public final class DescriptorStream: ByteStream, PollHandler {
  public var delegate: (any ByteStreamDelegate)? {
    didSet { if isClosed && delegate != nil { delegate = nil } }
  }

  public var readerWaits: Readiness = [] {
    didSet { if readerWaits != oldValue { waitsChanged() } }
  }
  public var writerWaits: Readiness = [] {
    didSet { if writerWaits != oldValue { waitsChanged() } }
  }

  /// What the descriptor is made of, as far as reading and writing differ.
  public enum Kind: Sendable {
    /// A TCP connection: its peer is watched while bytes are on their way. An accepted one has what its listener was set
    /// to; for one that was dialled keepalive is set once it has been quiet for some seconds, which saves short ones four calls.
    case tcp(wasDialled: Bool)
    /// Another stream socket.
    case socket
    /// A terminal or another device. Not a pipe: writing to one that nobody reads raises SIGPIPE.
    case device
    /// The master of a pseudo-terminal, or a duplicate of it: a device that hangs up for a while when the last user of its
    /// slave goes.
    case ptyMaster
  }

  let raw: Int32
  let isSocket: Bool
  let isTCP: Bool
  public let kind: Kind
  private let poller: Poller
  private var descriptor: Descriptor?
  private var isInPoller = false
  private var readEnded = false
  // The end of what comes was read, or told of.
  private var endIsKnown: Bool
  // The last write was short, so the kernel is full: the next try need not ask it. Until it says otherwise.
  private var isFull = false
  // Where close(2) runs if it may block: closing a tty drains it.
  private let closeQueue: DispatchQueue?
  private let beforeClose: (@Sendable (Int32) -> Void)?
  private let afterClose: (@Sendable () -> Void)?
  private var needsKeepalive = false
  var watchPlace: Int?

  public private(set) var serialLine: (any SerialLine)?
  public var metadata: StreamMetadata?

  /// Takes over an open, non-blocking descriptor. It is closed on `closeQueue` if there is one, between `beforeClose` and
  /// `afterClose`, which may block; else on the lane, without them.
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
    endIsKnown = if case .device = kind { true } else { false }  // a tty has no end to tell of before it is read
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

  /// Whether it was closed; a closed stream answers `.ended`.
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
      case EIO where !isSocket:  // a pty whose other side closed, or a device that was pulled, says EIO and not 0
        return sawEnd()
      default: throw SystemError("read")
      }
    }
  }

  private func sawEnd() -> Transfer {
    readEnded = true
    endIsKnown = true
    // Who ended before anybody had to wait isn't in the set yet, and his hang-up would go unseen.
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
        if isTCP && watchPlace == nil { poller.peers.add(self) }
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
        if isTCP && watchPlace == nil { poller.peers.add(self) }
        return .moved(count)
      }
      switch errno {
      case EINTR: continue
      case EAGAIN: return .blocked(until: .writable)
      default: throw SystemError("write")
      }
    }
  }

  public var unacknowledged: Int {
    var count: Int32 = 0
    guard isTCP, !isClosed, ioctl(raw, UInt(TIOCOUTQ), &count) == 0 else { return 0 }  // SIOCOUTQ of tcp(7)
    return Int(count)
  }

  public var canHalfClose: Bool { isSocket }

  public func finishWriting() {
    if isSocket && !isClosed { shutdown(raw, Int32(SHUT_WR)) }
  }

  // In bytes; the kernel grants twice that, and no more than net.core.rmem_max. A reader of a connection gets more by itself.
  private static let roomForEnd: Int32 = 1 << 20

  public func makeRoomForEnd() {
    guard isTCP, !isClosed else { return }
    var room = Self.roomForEnd
    setsockopt(raw, SOL_SOCKET, SO_RCVBUF, &room, socklen_t(MemoryLayout<Int32>.size))
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
      // epoll takes no such descriptor, or there is no memory left: say so in a turn of its own, as every event is.
      poller.timers.after(.zero) { [self] in tell(.errorOccurred(error)) }
    }
  }

  public func ready(_ events: PollEvents) {
    let hungUp = !events.isDisjoint(with: .hangUp)
    let readable = hungUp || events.contains(.readable)
    let writable = hungUp || events.contains(.writable)
    if writable { isFull = false }
    let reader = readerWaits
    let writer = writerWaits
    // The writer first: what it makes room for, the reader's turn can fill.
    if (writable && writer.contains(.writable)) || (readable && writer.contains(.readable)) {
      tell(.hasSpaceAvailable)
    }
    if (readable && reader.contains(.readable)) || (writable && reader.contains(.writable)) {
      tell(.hasBytesAvailable)
    }
    // Who does not read because there is no room would else not learn that nobody is there any more.
    if !endIsKnown && reader.isEmpty && (hungUp || events.contains(.lastByte)) {
      endIsKnown = true
      waitsChanged()
      tell(.lastByteIsIn)
    }
    // After the other side's end, a hang-up says that it will not listen either.
    if hungUp && readEnded && reader.isEmpty && writer.isEmpty { tell(.endEncountered) }
  }

  private func tell(_ event: ByteStreamEvent) {
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

  /// Then close(2) leaves it in the epoll set, where it would go on telling under a number that is somebody else's.
  private var mayBeDuplicate: Bool { if case .ptyMaster = kind { true } else { false } }

  /// Gives the descriptor away to go on elsewhere, perhaps on another lane; the stream counts as closed. Nil if it was.
  public func release() -> Descriptor? {
    guard let descriptor = descriptor.take() else { return nil }
    if isInPoller { poller.remove(raw) }
    poller.peers.remove(self)
    dismissDelegate()
    return descriptor
  }

  public func abort() {
    if isSocket && !isClosed {
      var now = linger(l_onoff: 1, l_linger: 0)  // socket(7): close then sends RST and forgets what is queued
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
    try? SocketOptions.applyKeepalive(to: raw)  // fails on a socket that is gone; reading it tells
  }
  func peerIsGone() { tell(.errorOccurred(SystemError("write", ETIMEDOUT))) }
}
