// The stream over the master of a pseudo-terminal of ours, to whoever has its slave open. When the last user closes it, the
// stream is over for good, though the kernel would let the next user go on where he left off.

import CLinux
import Glibc

public final class PtyClientStream: ByteStream, ByteStreamDelegate {
  public var delegate: (any ByteStreamDelegate)? {
    didSet { if isClosed && delegate != nil { delegate = nil } }
  }
  private let stream: DescriptorStream
  private let poller: Poller
  private let master: Int32
  private let closed: (_ hungUp: Bool) -> Void
  private var isHungUp = false
  private var isClosed = false

  /// Takes over a master, or a duplicate of one that outlives the stream. `closed` is called once, at the end of `close()`, with
  /// whether the slave's last user had left by himself.
  public init(_ master: consuming Descriptor, on poller: Poller, closed: @escaping (_ hungUp: Bool) -> Void = { _ in })
  {
    self.master = master.raw
    self.poller = poller
    self.closed = closed
    stream = DescriptorStream(master, kind: .ptyMaster, on: poller)
    stream.delegate = self
  }

  public var readerWaits: Readiness {
    get { stream.readerWaits }
    set { stream.readerWaits = newValue }
  }
  public var writerWaits: Readiness {
    get { stream.writerWaits }
    set { stream.writerWaits = newValue }
  }

  public func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    guard !isHungUp else { return .ended }
    let transfer = try stream.read(into: run)
    if transfer == .ended && !isClosed { hangUp() }
    return transfer
  }

  public func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    // The kernel would take it, for the next user.
    isHungUp ? .ended : try stream.write(run)
  }

  // Somebody has the slave alone, and we can't look what he has read: he gets some 600 ms of Lingering's looks.
  private var looksInVain = 0
  private static let mostInVain = 5

  /// The kernel throws away what a slave has not read when its master closes.
  public var unread: Int? {
    if isClosed || isHungUp || PtyMaster.isHungUp(master) { return nil }
    if let count = PtyMaster.unread(master) { return count }
    looksInVain += 1
    return looksInVain > Self.mostInVain ? 0 : 1
  }

  /// Nobody is there to write to either, and the next who opens the slave is somebody else.
  private func hangUp() {
    isHungUp = true
    stream.readerWaits = []
    stream.writerWaits = []
    poller.timers.after(.zero) { [weak self] in
      if let self { delegate?.stream(self, handle: .endEncountered) }
    }
  }

  public func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    if isHungUp { return }
    delegate?.stream(self, handle: event)
  }

  public func close() {
    guard !isClosed else { return }
    isClosed = true
    stream.close()
    dismissDelegate()
    closed(isHungUp)
  }
}
