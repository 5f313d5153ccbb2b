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

  // By the stream's own type: the default would ask `below`, an existential, at each read and write.
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

  /// Takes over the pty. Everything is closed on the queue of `device`, after `atClose` has run there.
  init(
    _ pty: Pseudoterminal, on poller: Poller, device: DeviceQueue, atClose: @escaping @Sendable () -> Void
  ) {
    slave = PtySlave(pty.slave)
    closes = PtyCloses(of: pty.path, slave, on: poller, queue: device.queue)
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

/// Resets TIOCEXCL and CLOCAL each time a program closes the pty, and each second if the kernel does not report that.
private final class PtyCloses: InotifyUser {
  private let slave: PtySlave
  private let poller: Poller
  private let queue: DispatchQueue
  private var user: Int?

  init(of path: String, _ slave: PtySlave, on poller: Poller, queue: DispatchQueue) {
    self.slave = slave
    self.poller = poller
    self.queue = queue
    user = poller.inotify.join(self)
    watch(path)
  }

  private func watch(_ path: String) {
    guard let user else { return }
    switch poller.inotify.adding(for: user) {
    case .failure(let refusal): poller.inotify.startPolling(user, refusal)
    case .success(let adding):
      let slave = slave
      poller.offload(to: queue) { () -> SystemError? in
        defer { slave.prepareForNext() }  // after a program that has closed it before
        do throws(SystemError) { _ = try adding.add(path, UInt32(IN_CLOSE_WRITE | IN_CLOSE_NOWRITE)) } catch {
          return error
        }
        return nil
      } then: { [self] error in
        if let error { poller.inotify.startPolling(user, InotifyRefusal(adding: error)) }
      }
    }
  }

  func note(_ watch: Int32, _ mask: UInt32, _ name: UnsafePointer<CChar>?) -> Bool { true }

  // inotify merges equal events, so closes can't be counted; we only know that there was one.
  func filesChanged() {
    let slave = slave
    queue.async { slave.prepareForNext() }
  }

  func poll() { filesChanged() }

  func end() {
    guard let user else { return }
    self.user = nil
    poller.inotify.leave(user)
  }
}
