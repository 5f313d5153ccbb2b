// A ByteStream over a connected stream socket of Bluetooth. It differs from other sockets at the end: the error is told once, to
// whoever asks first, and then a read says EAGAIN for ever, while bytes may still be queued. So at a hang-up the error is taken
// first, then all is read, and EAGAIN is the end.

internal import CBluetooth
import ByteStreams
import Glibc

final class BluetoothStream: PolledStream {
  var delegate: (any ByteStreamDelegate)? {
    didSet { if !socket.isOpen && delegate != nil { delegate = nil } }
  }
  var readerWaits: Readiness = [] {
    didSet { if readerWaits != oldValue { waitsChanged() } }
  }
  var writerWaits: Readiness = [] {
    didSet { if writerWaits != oldValue { waitsChanged() } }
  }
  var waits: Readiness { interest }

  let metadata: StreamMetadata?
  let socket: PolledSocket
  // The last write was short, so the queue is full: the next try need not ask the kernel. Until it says otherwise.
  private var isFull = false
  // Told of before it was read.
  private var endIsTold = false

  private let longestMessage: Int
  private let isLE: Bool
  /// To hang up is how the other side ends in order.
  private let hangsUpInOrder: Bool

  /// On an LE channel close(2) throws away what waits for the other side's credits.
  var unread: Int? { isLE && socket.isOpen && !socket.isHungUp ? Int(bluetooth_unsent(socket.raw)) : nil }

  /// Takes over a connected, non-blocking socket of the stream kind. On an LE channel one write is one message, of
  /// `longestMessage` bytes at most. With `hangsUpInOrder` a hang-up is an end and no error, and a write says EPIPE then: RFCOMM
  /// has no other. `facts` are known of the device already.
  init(
    _ descriptor: consuming Descriptor, longestMessage: Int = .max, isLE: Bool = false, hangsUpInOrder: Bool = false,
    on poller: Poller, knowing facts: DeviceFacts = DeviceFacts()
  ) {
    metadata = StreamMetadata(facts)
    self.hangsUpInOrder = hangsUpInOrder
    self.isLE = isLE
    self.longestMessage = longestMessage
    socket = PolledSocket(descriptor, on: poller)
  }

  // MARK: - Bytes

  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    guard socket.isOpen else { return .ended }
    while true {
      let count = Glibc.read(socket.raw, run.baseAddress!, run.count)
      if count > 0 {
        if count < run.count { socket.noteDry() }
        return .moved(count)
      }
      if count == 0 { return sawEnd() }
      switch errno {
      case EINTR: continue
      case EAGAIN:
        socket.noteDry()
        guard socket.isHungUp else { return .blocked(until: .readable) }
        if let fault = socket.fault, !(hangsUpInOrder && fault.errno == ECONNRESET) { throw fault }
        return sawEnd()
      // L2CAP's sockets tell of the error before the bytes that came earlier: those first.
      default: socket.hangUp(SystemError("read"))
      }
    }
  }

  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    guard socket.isOpen else { return .ended }
    if isFull {
      isFull = false
      return .blocked(until: .writable)
    }
    var taken = 0
    while true {
      let size = min(run.count - taken, longestMessage)
      let count = Glibc.send(socket.raw, run.baseAddress! + taken, size, Int32(MSG_NOSIGNAL))
      if count >= 0 {
        taken += count
        isFull = count < size
        if isFull { socket.noteFull() }
        if isFull || taken == run.count { return .moved(taken) }
        continue
      }
      switch errno {
      case EINTR: continue
      case EAGAIN:
        isFull = taken > 0
        socket.noteFull()
        return taken > 0 ? .moved(taken) : .blocked(until: .writable)
      default:
        let error = socket.breakOff()
        if taken > 0 { return .moved(taken) }  // the next one throws it
        throw hangsUpInOrder && error.errno == ECONNRESET ? SystemError("write", EPIPE) : error
      }
    }
  }

  // MARK: - Waiting

  func ready(_ events: PollEvents) {
    let hungUp = !events.isDisjoint(with: .hangUp)
    if hungUp && !socket.isHungUp { socket.hangUp(SocketOptions.takeError(of: socket.raw, "read")) }
    let readable = hungUp || events.contains(.readable)
    let writable = hungUp || events.contains(.writable)
    if writable { isFull = false }
    let (reader, writer) = (readerWaits, writerWaits)
    // The writer first: what it makes room for, the reader's turn can fill.
    if (writable && writer.contains(.writable)) || (readable && writer.contains(.readable)) { tell(.hasSpaceAvailable) }
    if (readable && reader.contains(.readable)) || (writable && reader.contains(.writable)) { tell(.hasBytesAvailable) }
    // Who does not read because there is no room would else not learn that nobody is there any more.
    if hungUp && !endIsTold && !socket.readEnded && reader.isEmpty {
      endIsTold = true
      tell(.lastByteIsIn)
    }
    if hungUp && socket.readEnded && reader.isEmpty && writer.isEmpty { tell(.endEncountered) }
  }

  // MARK: - The end

  // RFCOMM knows no half-close: shutdown(2) of one direction ends both. What was written to RFCOMM before close(2) the
  // kernel still sends.
  func close() { leave() }
}
