// A stream over the master of a pty. It keeps the slave open as well, so that programs may come and go: no hang-up, no EIO
// and no wake-up while nobody is there, and what is said meanwhile waits for the next one, as far as the kernel keeps it.
// The other way, waiting by inotify until somebody opens it, would put the master in and out of the epoll set each time.

import ByteStreams
import Dispatch
import Glibc

final class PtyStream: ByteStream, ByteStreamDelegate {
  var delegate: (any ByteStreamDelegate)?

  var readerWaits: Readiness = [] { didSet { master.readerWaits = readerWaits } }
  var writerWaits: Readiness = [] { didSet { master.writerWaits = waitsForUnit ? [] : writerWaits } }

  private let master: DescriptorStream
  private let raw: Int32
  private let peer: PtyPeer
  private let poller: Poller
  private let queue: DispatchQueue
  /// Whether a program may be missing on the other side, and what waits there be for nobody.
  private let asksWhoIsThere: Bool
  private var exclusion: PtyExclusion?
  // Called once on the queue, before the master closes.
  private var atClose: (@Sendable () -> Void)?

  // What programs have not read of what was written. The kernel passes bytes on in its own time, so that nothing
  // waiting for them means little just after a write: only two looks in a row, 20 ms apart, are believed.
  private var hasUnread = false
  private var emptyLooks = 0
  private var isLooking = false
  private var nextLook: Timers.Token?
  private var waitsForUnit = false
  private(set) var unacknowledged = 0
  private static let pause = Duration.milliseconds(20)

  /// Takes over the pty. It is closed on `queue`, after `atClose` has run there.
  init(
    _ pty: Pseudoterminal, on poller: Poller, queue: DispatchQueue, asksWhoIsThere: Bool,
    atClose: @escaping @Sendable () -> Void
  ) {
    let descriptor = pty.master.take()!  // nobody else has seen the parcel
    raw = descriptor.raw
    peer = PtyPeer(pty)
    master = DescriptorStream(descriptor, kind: .device, on: poller, closingOn: queue)
    self.poller = poller
    self.queue = queue
    self.asksWhoIsThere = asksWhoIsThere
    self.atClose = atClose
    master.delegate = self
  }

  /// Lets everybody open the pty again when a program that had it for itself alone has gone. `closes` tells of IN_CLOSE.
  func liftExclusion(after closes: Inotify) throws(SystemError) {
    exclusion = try PtyExclusion(closes, peer, on: poller, queue: queue)
  }

  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    let transfer = try master.read(into: run)
    // For a moment of a look nobody has the slave open.
    return transfer == .ended && isLooking && asksWhoIsThere && !master.isClosed ? .blocked(until: .readable) : transfer
  }

  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    waitsForUnit = false
    let transfer = try master.write(run)
    if case .moved(let count) = transfer, count > 0 {
      hasUnread = true
      emptyLooks = 0
    }
    return transfer
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) { delegate?.stream(self, handle: event) }

  // MARK: - What programs have not read

  /// The kernel throws away what they have not read when the master closes, so closing waits for this.
  var holdsUnit: Bool {
    guard hasUnread, !master.isClosed else { return false }
    waitsForUnit = true
    look()
    return true
  }

  private func look() {
    guard !isLooking, nextLook == nil else { return }
    isLooking = true
    let peer = peer
    // Only when nobody waits for their bytes: the look may be seen as a hang-up.
    let master = asksWhoIsThere && readerWaits.isEmpty ? raw : nil
    poller.offload(to: queue) {
      peer.unread(askingWhoIsThereBy: master)
    } then: { [self] in
      hasLooked($0)
    }
  }

  private func hasLooked(_ count: Int) {
    isLooking = false
    guard !master.isClosed else { return }
    unacknowledged = count
    emptyLooks = count == 0 ? emptyLooks + 1 : 0
    if emptyLooks < 2 {
      nextLook = poller.timers.after(Self.pause) { [weak self] in
        self?.nextLook = nil
        self?.look()
      }
    } else {
      hasUnread = false
      if waitsForUnit && !writerWaits.isEmpty { delegate?.stream(self, handle: .hasSpaceAvailable) }
    }
  }

  // MARK: - The end

  func close() {
    guard let atClose else { return }
    self.atClose = nil
    poller.timers.cancel(nextLook)
    exclusion?.end()
    queue.async(execute: atClose)
    master.delegate = nil
    master.close()
    let peer = peer
    queue.async { peer.close() }
    dismissDelegate()
  }
}

/// Waits for programs that close the pty.
private final class PtyExclusion: PollHandler {
  private let closes: Inotify
  private let peer: PtyPeer
  private let poller: Poller
  private let queue: DispatchQueue

  init(_ closes: Inotify, _ peer: PtyPeer, on poller: Poller, queue: DispatchQueue) throws(SystemError) {
    self.closes = closes
    self.peer = peer
    self.poller = poller
    self.queue = queue
    try poller.add(closes.raw, handler: self, for: .readable)
  }

  func ready(_ events: PollEvents) {
    // inotify makes one of equal events, so nobody can count by it who is left; that one closed it must do.
    guard closes.read(until: { _, _, _ in true }) else { return }
    let peer = peer
    queue.async { peer.liftExclusion() }
  }

  func end() {
    poller.remove(closes.raw)
    closes.close(on: queue)
  }
}
