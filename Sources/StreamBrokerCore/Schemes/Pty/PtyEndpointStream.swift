// The stream of a pty endpoint. It keeps the slave open itself, so that programs may come and go: no hang-up, no EIO
// and no wake-up while no program is there. Bytes written meanwhile wait for the next program, up to the kernel's
// limit. The alternative, waiting by inotify until a program opens the slave, would take the master out of the epoll
// set and put it back each time.

import ByteStreams
import Dispatch
import Glibc
import Synchronization

final class PtyEndpointStream: LayeredStream {
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

  var below: any ByteStream { master }
  private let master: DescriptorStream
  private let raw: Int32
  private let slave: PtySlave
  private let closes: PtyCloses
  private let device: DeviceQueue
  private let closings: PendingCleanups
  // Called once on the queue, before the master closes.
  private var atClose: (@Sendable () -> Void)?

  /// Takes over the pty, and `closes`, which reports IN_CLOSE of the slave. Everything is closed on the queue of
  /// `device`, after `atClose` has run there.
  init(
    _ pty: Pseudoterminal, closes inotify: Inotify, on poller: Poller, device: DeviceQueue,
    atClose: @escaping @Sendable () -> Void
  ) throws(SystemError) {
    slave = PtySlave(pty.slave)
    closes = try PtyCloses(inotify, slave, on: poller, queue: device.queue)
    let descriptor = pty.master.take()!  // no other code has seen the parcel
    raw = descriptor.raw
    master = DescriptorStream(descriptor, kind: .device, on: poller, closingOn: device.queue)
    self.device = device
    closings = poller.closings
    self.atClose = atClose
    master.delegate = self
  }

  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer { try master.read(into: run) }

  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer { try master.write(run) }

  /// Without a program, the bytes wait for the next one: as long as the stream is open, they are not lost.
  var undelivered: UndeliveredOutput {
    guard !master.isClosed, !PtyMaster.isHungUp(raw) else { return .none }
    return .lostAtClose(slave.unread ?? PtyMaster.unread(raw))
  }

  /// From now on only programs have the slave open, and if none has, nobody will read.
  func prepareToClose() { if !master.isClosed { slave.letGo() } }

  func abort() { close() }

  func close() {
    guard let atClose else { return }
    self.atClose = nil
    closes.end()
    closings.run(on: device.queue, atClose)
    master.delegate = nil
    master.close()
    // Keeps the queue until then: an opening of the same pty by another configuration comes after all of this.
    device.queue.async { [slave, device] in withExtendedLifetime(device) { slave.letGo() } }
    dismissDelegate()
  }
}

/// Our own descriptor of the slave; used on the lane and on the queue.
private final class PtySlave: Sendable {
  private let content: Mutex<Descriptor?>
  private let raw: Int32

  init(_ parcel: DescriptorParcel) {
    let descriptor = parcel.take()!  // no other code has seen the parcel
    raw = descriptor.raw
    content = Mutex(descriptor)
  }

  /// Bytes that nobody has read; nil once our descriptor is closed. A program's TIOCEXCL does not hinder it.
  var unread: Int? { content.withLock { $0 == nil ? nil : PtyMaster.unread(slave: raw) } }

  /// A serial port drops TIOCEXCL at its last close. A pty keeps it while its master is open, and would shut out
  /// everybody but root.
  func liftExclusion() { content.withLock { if $0 != nil { _ = ioctl(raw, UInt(TIOCNXCL), 0) } } }

  /// For the next program, after one has closed the pty.
  func prepareForNext() {
    liftExclusion()
    content.withLock { if $0 != nil { PtySettings.clearCLOCAL(of: raw) } }
  }

  func letGo() {
    liftExclusion()
    content.withLock { $0 = nil }
  }
}

/// Resets TIOCEXCL and CLOCAL each time a program closes the pty.
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
    // inotify merges equal events, so closes can't be counted; we only know that there was one.
    guard inotify.read(until: { _, _, _ in true }) else { return }
    let slave = slave
    queue.async { slave.prepareForNext() }
  }

  func end() {
    poller.remove(inotify.raw)
    inotify.close(on: queue)
  }
}
