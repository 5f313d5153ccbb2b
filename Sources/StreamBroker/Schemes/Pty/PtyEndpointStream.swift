// The stream of a pty endpoint. It keeps the slave open itself, so that programs may come and go: no hang-up, no EIO and no
// wake-up while nobody is there, and what is said meanwhile waits for the next one, as far as the kernel keeps it. The other
// way, waiting by inotify until somebody opens it, would put the master out of the epoll set and back each time.

import ByteStreams
import Dispatch
import Glibc
import Synchronization

final class PtyEndpointStream: ByteStream, ByteStreamDelegate {
  var delegate: (any ByteStreamDelegate)? {
    didSet { if atClose == nil && delegate != nil { delegate = nil } }
  }

  var readerWaits: Readiness {
    get { master.readerWaits }
    set { master.readerWaits = newValue }
  }
  var writerWaits: Readiness {
    get { master.writerWaits }
    set { master.writerWaits = newValue }
  }

  private let master: DescriptorStream
  private let raw: Int32
  private let slave: PtySlave
  private let closes: PtyCloses
  private let device: DeviceQueue
  private let closings: Closings
  // Called once on the queue, before the master closes.
  private var atClose: (@Sendable () -> Void)?

  /// Takes over the pty, and `closes`, which tells of IN_CLOSE of the slave. All is closed on the queue of `device`, after `atClose`
  /// has run there.
  init(
    _ pty: Pseudoterminal, closes inotify: Inotify, on poller: Poller, device: DeviceQueue,
    atClose: @escaping @Sendable () -> Void
  ) throws(SystemError) {
    slave = PtySlave(pty.slave)
    closes = try PtyCloses(inotify, slave, on: poller, queue: device.queue)
    let descriptor = pty.master.take()!  // nobody else has seen the parcel
    raw = descriptor.raw
    master = DescriptorStream(descriptor, kind: .device, on: poller, closingOn: device.queue)
    self.device = device
    closings = poller.closings
    self.atClose = atClose
    master.delegate = self
  }

  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer { try master.read(into: run) }

  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer { try master.write(run) }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) { delegate?.stream(self, handle: event) }

  /// Who asks is about to close: from now on only programs have the slave open, and when there is none, nobody will read.
  var unread: Int? {
    guard !master.isClosed else { return nil }
    slave.letGo()
    return PtyMaster.isHungUp(raw) ? nil : PtyMaster.unread(raw) ?? 0
  }

  func close() {
    guard let atClose else { return }
    self.atClose = nil
    closes.end()
    closings.run(on: device.queue, atClose)
    master.delegate = nil
    master.close()
    // The queue is kept until then: who opens the same anew, for another configuration, comes after all of it.
    device.queue.async { [slave, device] in withExtendedLifetime(device) { slave.letGo() } }
    dismissDelegate()
  }
}

/// Our own descriptor of the slave; used on the lane and on the queue.
private final class PtySlave: Sendable {
  private let content: Mutex<Descriptor?>
  private let raw: Int32

  init(_ parcel: DescriptorParcel) {
    let descriptor = parcel.take()!  // nobody else has seen the parcel
    raw = descriptor.raw
    content = Mutex(descriptor)
  }

  /// A serial port forgets TIOCEXCL at its last close. A pty would keep it while its master lives, and shut out everybody
  /// but root for good.
  func liftExclusion() { content.withLock { if $0 != nil { _ = ioctl(raw, UInt(TIOCNXCL), 0) } } }

  func letGo() {
    liftExclusion()
    content.withLock { $0 = nil }
  }
}

/// Waits for programs that close the pty.
private final class PtyCloses: PollHandler {
  private let inotify: Inotify
  private let slave: PtySlave
  private let poller: Poller
  private let queue: DispatchQueue

  init(_ inotify: Inotify, _ slave: PtySlave, on poller: Poller, queue: DispatchQueue) throws(SystemError) {
    self.inotify = inotify
    self.slave = slave
    self.poller = poller
    self.queue = queue
    try poller.add(inotify.raw, handler: self, for: .readable)
  }

  func ready(_ events: PollEvents) {
    // inotify makes one of equal events, so nobody can count by it who is left; that one closed it must do.
    guard inotify.read(until: { _, _, _ in true }) else { return }
    let slave = slave
    queue.async { slave.liftExclusion() }
  }

  func end() {
    poller.remove(inotify.raw)
    inotify.close(on: queue)
  }
}
