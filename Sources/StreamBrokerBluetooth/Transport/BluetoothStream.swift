// A ByteStream over a connected stream socket of Bluetooth. It differs from other sockets at the end: the kernel
// reports the error once, to the first caller. Then a read returns EAGAIN for ever, while bytes may still be queued. So
// at a hang-up the error is read first, then all bytes, and EAGAIN is the end.

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
  // The last write was short, so the queue is full: the next write blocks without asking the kernel. Cleared when the
  // socket is writable.
  private var isFull = false
  // The end was reported before it was read.
  private var endIsReported = false

  private let longestMessage: Int
  private let isLE: Bool
  /// The other side ends in order by hanging up.
  private let hangsUpInOrder: Bool

  /// On an LE channel close(2) discards what waits for the other side's credits.
  var undelivered: UndeliveredOutput {
    isLE && socket.isOpen && !socket.isHungUp ? .lostAtClose(Int(bluetooth_unsent(socket.raw))) : .none
  }

  /// Takes over a connected, non-blocking socket of the stream kind. On an LE channel each send is one message, of at
  /// most `longestMessage` bytes. With `hangsUpInOrder` a hang-up counts as an orderly end, and a later write fails
  /// with EPIPE: RFCOMM has no other way to end. `facts` are what is already known about the device.
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
      // L2CAP's sockets report the error before bytes that arrived earlier: read those first.
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
        if taken > 0 { return .moved(taken) }  // the next write throws it
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
    // The writer first: the reader's turn can then fill the room that the writer makes.
    if (writable && writer.contains(.writable)) || (readable && writer.contains(.readable)) {
      report(.hasSpaceAvailable)
    }
    if (readable && reader.contains(.readable)) || (writable && reader.contains(.writable)) {
      report(.hasBytesAvailable)
    }
    // A reader paused by back-pressure must still learn that the peer is gone.
    if hungUp && !endIsReported && !socket.readEnded && reader.isEmpty {
      endIsReported = true
      report(.inputEnded)
    }
    if hungUp && socket.readEnded && reader.isEmpty && writer.isEmpty { report(.endEncountered) }
  }

  // MARK: - The end

  // RFCOMM has no half-close: shutdown(2) of one direction ends both. The kernel still sends what was written to RFCOMM
  // before close(2).
  func close() { leave() }
}
