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
  private let told: (Departure) -> Void
  private var isLeaving = false
  private var isHungUp = false
  private var isClosed = false

  /// How a user goes.
  public enum Departure: Equatable, Sendable {
    /// He has closed the slave, and not all that he wrote could be read yet. Whoever opens it now would go on in his place, so
    /// the pty is not for others any more.
    case leaving
    /// The stream is closed. The last of it; he may have hung up by himself, or is hung up on when nobody else has the master.
    case closed(hungUp: Bool)
  }

  /// Takes over a master, or a duplicate of one that outlives the stream.
  public init(_ master: consuming Descriptor, on poller: Poller, told: @escaping (Departure) -> Void = { _ in }) {
    self.master = master.raw
    self.poller = poller
    self.told = told
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
    switch transfer {
    case .moved: return transfer
    // Of one who was seen leaving there is no more to come; what comes is of somebody else.
    case .blocked where !isLeaving: return transfer
    case .blocked, .ended:
      if !isClosed { hangUp() }
      return .ended
    }
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
    // Before anybody learns that he has gone. If it fails, the owner of the pty finds out.
    if !isLeaving { try? PtyMaster.refresh(master, allIsRead: true) }
    stream.readerWaits = []
    stream.writerWaits = []
    poller.timers.after(.zero) { [weak self] in
      if let self { delegate?.stream(self, handle: .endEncountered) }
    }
  }

  public func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    if isHungUp { return }
    if event == .lastByteIsIn {
      isLeaving = true
      told(.leaving)
    }
    delegate?.stream(self, handle: event)
  }

  public func close() {
    guard !isClosed else { return }
    isClosed = true
    stream.close()
    dismissDelegate()
    told(.closed(hungUp: isHungUp))
  }
}
