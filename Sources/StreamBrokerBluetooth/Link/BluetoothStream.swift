// A ByteStream over a connected stream socket of Bluetooth. It differs from other sockets at the end: the error is told once, to
// whoever asks first, and then a read says EAGAIN for ever, while bytes may still be queued. So at a hang-up the error is taken
// first, then all is read, and EAGAIN is the end.

internal import CBluetooth
import ByteStreams
import Glibc

final class BluetoothStream: ByteStream, PollHandler {
  var delegate: (any ByteStreamDelegate)? {
    didSet { if descriptor == nil && delegate != nil { delegate = nil } }
  }
  var readerWaits: Readiness = [] {
    didSet { if readerWaits != oldValue { waitsChanged() } }
  }
  var writerWaits: Readiness = [] {
    didSet { if writerWaits != oldValue { waitsChanged() } }
  }

  private let raw: Int32
  private let poller: Poller
  private var descriptor: Descriptor?
  private var isInPoller = false
  private var isHungUp = false
  private var fault: SystemError?
  private var readEnded = false
  // The last write was short, so the queue is full: the next try need not ask the kernel. Until it says otherwise.
  private var isFull = false

  private let longestMessage: Int
  private let isLE: Bool

  /// On an LE channel close(2) throws away what waits for the other side's credits.
  var unread: Int? { isLE && descriptor != nil && !isHungUp ? Int(bluetooth_unsent(raw)) : nil }

  /// Takes over a connected, non-blocking socket of the stream kind. On an LE channel one write is one message, of
  /// `longestMessage` bytes at most.
  init(_ descriptor: consuming Descriptor, longestMessage: Int = .max, isLE: Bool = false, on poller: Poller) {
    raw = descriptor.raw
    self.isLE = isLE
    self.longestMessage = longestMessage
    self.poller = poller
    self.descriptor = consume descriptor
  }

  // MARK: - Bytes

  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    guard descriptor != nil else { return .ended }
    while true {
      let count = Glibc.read(raw, run.baseAddress!, run.count)
      if count > 0 { return .moved(count) }
      if count == 0 { return sawEnd() }
      switch errno {
      case EINTR: continue
      case EAGAIN:
        guard isHungUp else { return .blocked(until: .readable) }
        if let fault { throw fault }
        return sawEnd()
      // L2CAP's sockets tell of the error before the bytes that came earlier: those first.
      default: hangUp(SystemError("read"))
      }
    }
  }

  private func sawEnd() -> Transfer {
    readEnded = true
    // Who ended before anybody had to wait isn't in the set yet, and his hang-up would go unseen.
    if !isInPoller { join() }
    return .ended
  }

  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    guard descriptor != nil else { return .ended }
    if isFull {
      isFull = false
      return .blocked(until: .writable)
    }
    var taken = 0
    while true {
      let size = min(run.count - taken, longestMessage)
      let count = Glibc.send(raw, run.baseAddress! + taken, size, Int32(MSG_NOSIGNAL))
      if count >= 0 {
        taken += count
        isFull = count < size
        if isFull || taken == run.count { return .moved(taken) }
        continue
      }
      switch errno {
      case EINTR: continue
      case EAGAIN:
        isFull = taken > 0
        return taken > 0 ? .moved(taken) : .blocked(until: .writable)
      default:
        let error = SystemError("write")
        // Sooner than the hang-up was told of. What broke it says more than ENOTCONN.
        if !isHungUp { hangUp(SocketOptions.takeError(of: raw, "write") ?? error) }
        if taken > 0 { return .moved(taken) }  // the next one throws it
        throw fault ?? error
      }
    }
  }

  // MARK: - Waiting

  private func hangUp(_ error: SystemError?) {
    isHungUp = true
    fault = fault ?? error
  }

  private func waitsChanged() {
    guard descriptor != nil else { return }
    if isInPoller {
      poller.change(raw, to: interest)
    } else if !interest.isEmpty {
      join()
    }
  }

  private func join() {
    do {
      try poller.add(raw, handler: self, for: interest)
      isInPoller = true
    } catch {
      poller.timers.after(.zero) { [self] in tell(.errorOccurred(error)) }  // in a turn of its own, as every event is
    }
  }

  func ready(_ events: PollEvents) {
    let hungUp = !events.isDisjoint(with: .hangUp)
    if hungUp && !isHungUp { hangUp(SocketOptions.takeError(of: raw, "read")) }
    let readable = hungUp || events.contains(.readable)
    let writable = hungUp || events.contains(.writable)
    if writable { isFull = false }
    let (reader, writer) = (readerWaits, writerWaits)
    // The writer first: what it makes room for, the reader's turn can fill.
    if (writable && writer.contains(.writable)) || (readable && writer.contains(.readable)) { tell(.hasSpaceAvailable) }
    if (readable && reader.contains(.readable)) || (writable && reader.contains(.writable)) { tell(.hasBytesAvailable) }
    if hungUp && readEnded && reader.isEmpty && writer.isEmpty { tell(.endEncountered) }
  }

  private func tell(_ event: ByteStreamEvent) {
    guard descriptor != nil else { return }
    delegate?.stream(self, handle: event)
  }

  // MARK: - The end

  // RFCOMM knows no half-close: shutdown(2) of one direction ends both. What was written to RFCOMM before close(2) the
  // kernel still sends.
  func close() {
    guard descriptor != nil else { return }
    if isInPoller { poller.remove(raw, isClosing: true) }
    descriptor = nil
    dismissDelegate()
  }
}
