// The stream over the master of one of our pseudo-terminals, to the program that has its slave open. When the last user
// closes the slave, the stream is over for good, though the kernel would let the next user continue there. It looks for
// changes of the slave's settings: the kernel reports them only with EXTPROC, which harms programs (decision N8).

import CLinux
import Glibc

package final class PtyClientStream: LayeredStream {
  package var delegate: (any ByteStreamDelegate)? {
    didSet { if isClosed && delegate != nil { delegate = nil } }
  }
  package var below: any ByteStream { stream }
  private let stream: DescriptorStream
  private let poller: Poller
  private let master: Int32
  private let onDeparture: (Departure) -> Void
  private var isLeaving = false
  private var isHungUp = false
  private var isClosed = false

  /// The slave's settings that are known already; nil: changes are not looked for.
  private var settings: PtySettings?
  /// A change was found and not taken.
  private var hasChange = false
  private var lastLook: UInt64 = 0
  private var lastCount = 0
  private var nextLook: Timers.Token?

  // A look costs a tenth of what a read of 4 KiB costs, so bulk data is looked at once in a pause. No device can have
  // answered them within it: a program that changes the settings after an answer keeps its place.
  private static let bulk = 1024
  private static let pauseInBulk: UInt64 = 1_000_000

  // How often the settings of a program that does not write are looked at. It begins anew with each change.
  private static let firstPause = Duration.milliseconds(10)
  private static let longestPause = Duration.milliseconds(250)

  /// The steps of a user's departure.
  package enum Departure: Equatable, Sendable {
    /// The user has closed the slave, and part of its input is still unread. A program that opens the slave now would
    /// continue that input, so do not offer the pty to others any more.
    case leaving
    /// The stream is closed; nothing follows. `hungUp`: the user closed the slave itself. Otherwise it sees a hang-up
    /// once no other descriptor of the master is open.
    case closed(hungUp: Bool)
  }

  /// Takes ownership of a master, or of a duplicate of one that outlives the stream. `offered` are the settings that
  /// the user found when it opened the slave; with them, the stream looks for changes.
  package init(
    _ master: consuming Descriptor, offered: PtySettings? = nil, on poller: Poller,
    onDeparture: @escaping (Departure) -> Void = { _ in }
  ) {
    self.master = master.raw
    settings = offered
    self.poller = poller
    self.onDeparture = onDeparture
    stream = DescriptorStream(master, kind: .ptyMaster, on: poller)
    stream.delegate = self
  }

  // By the stream's own type: the default would ask `below`, an existential, at each read and write.
  package var readerWaits: Readiness {
    get { stream.readerWaits }
    set { stream.readerWaits = newValue }
  }
  package var writerWaits: Readiness {
    get { stream.writerWaits }
    set { stream.writerWaits = newValue }
  }

  package func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    guard !isHungUp else { return .ended }
    if findsChange() { return .blocked(until: .readable) }
    let transfer = try stream.read(into: run)
    switch transfer {
    case .moved(let count):
      lastCount = count
      return transfer
    // A user that has closed the slave sends no more; what comes now is from another program.
    case .blocked where !isLeaving: return transfer
    case .blocked, .ended:
      if !isClosed { hangUp() }
      return .ended
    }
  }

  package func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    // The kernel would accept the bytes, for the next user.
    isHungUp ? .ended : try stream.write(run)
  }

  // MARK: - Settings

  package var looksForChanges: Bool { settings != nil }

  /// Reports changes that come without bytes, too, by `.hasBytesAvailable`.
  package func watchInSilence() {
    guard settings != nil, nextLook == nil else { return }
    look(after: Self.firstPause)
  }

  /// The change that a read has found; that read has returned no bytes.
  package func takeChange() -> (from: PtySettings, to: PtySettings)? {
    guard hasChange, let before = settings, let now = PtySettings(of: master, after: before) else { return nil }
    hasChange = false
    settings = now
    if nextLook != nil { look(after: Self.firstPause) }
    return before == now ? nil : (before, now)
  }

  /// Once for each change: bytes are read though nobody takes it.
  private func findsChange() -> Bool {
    guard let settings, !hasChange else { return false }
    let now = poller.timers.now
    if lastCount >= Self.bulk && now &- lastLook < Self.pauseInBulk { return false }
    lastLook = now
    // Many programs set the port back as they found it, right before they close it: that is for no bytes of theirs.
    hasChange =
      PtySettings(of: master, after: settings).map { $0 != settings } ?? false
      && (!PtyMaster.isHungUp(master) || PtyMaster.hasInput(master))
    return hasChange
  }

  private func look(after pause: Duration) {
    poller.timers.cancel(nextLook)
    nextLook = poller.timers.after(pause) { [weak self] in
      guard let self, !isClosed, !isHungUp, let settings else { return }
      look(after: min(pause * 2, Self.longestPause))
      guard !hasChange, readerWaits.contains(.readable), let now = PtySettings(of: master, after: settings),
        now != settings
      else { return }
      lastCount = 0
      delegate?.stream(self, handle: .hasBytesAvailable)
    }
  }

  // MARK: - The end

  /// When its master closes, the kernel discards what a slave has not read. The number is unknown while a program has
  /// the slave exclusively (TIOCEXCL).
  package var undelivered: UndeliveredOutput {
    if isClosed || isHungUp || PtyMaster.isHungUp(master) { return .none }
    return .lostAtClose(PtyMaster.unread(master))
  }

  /// Ends both directions: nobody reads our output, and the next program that opens the slave is another user.
  private func hangUp() {
    isHungUp = true
    // Refresh before anybody is notified of the end. If this fails, the owner of the pty finds out later.
    if !isLeaving { try? PtyMaster.refresh(master, allIsRead: true) }
    stream.readerWaits = []
    stream.writerWaits = []
    poller.timers.cancel(nextLook)
    poller.timers.after(.zero) { [weak self] in
      if let self { delegate?.stream(self, handle: .endEncountered) }
    }
  }

  package func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    if isHungUp { return }
    if event == .inputEnded {
      isLeaving = true
      onDeparture(.leaving)
    }
    delegate?.stream(self, handle: event)
  }

  package func close() {
    guard !isClosed else { return }
    isClosed = true
    poller.timers.cancel(nextLook)
    stream.close()
    dismissDelegate()
    onDeparture(.closed(hungUp: isHungUp))
  }

  package func abort() { close() }
}
