// What of ours a device has to answer: a write that is to be confirmed, and, beside the bytes, who it is. ATT has one request at a time
// (Bluetooth Core, Vol 3, Part F, section 3.3.2), so the two take turns; commands go on meanwhile.

internal import CBluetooth
import ByteStreams
import Glibc

extension GATTStream {
  /// A device that does not confirm a request for so long is gone (section 3.3.3).
  static let answerPatience = Duration.seconds(30)
  /// One that does not answer one question of who it is in so long, or all of them, is not asked again.
  static let identityPatience = (one: Duration.seconds(5), all: Duration.seconds(15))

  /// A request is under way that a write would have to wait for.
  var holdsWrites: Bool { awaitsAnswer || (plan.asksForAnswers && identity?.isAsking == true) }

  // MARK: - Writes

  func awaitAnswer() {
    awaitsAnswer = true
    answerDeadline = poller.timers.after(Self.answerPatience) { [weak self] in self?.noAnswer() }
    waitsChanged()
  }

  func answered() {
    awaitsAnswer = false
    poller.timers.cancel(answerDeadline)
    askOn()
    waitsChanged()
    announce()  // this may be the reader's turn
  }

  private func noAnswer() {
    // The kernel may have dropped it with what nobody took.
    if bluetooth_drops(socket.raw) > lossesAtRequest { return answered() }
    // It may lie behind what nobody takes.
    guard held.isEmpty, owed.isEmpty else { return awaitAnswer() }
    awaitsAnswer = false
    writeFailed(.unconfirmed)
    hangUp(SystemError("write", ETIMEDOUT))
    tellAll(hangUp: true)
  }

  // MARK: - Who it is

  /// Asks once whoever opened the stream waits for it, so that the first bytes need not wait; `metadata` hears all of it at the end.
  func askIdentity() {
    identity = GATTIdentity(mtu: plan.mtu, knownName: metadata?.facts.name)
    identityEnd = poller.timers.now &+ Self.identityPatience.all.nanoseconds
    announce()
  }

  /// The next question, if it may be asked now.
  func askOn() {
    guard !awaitsAnswer, socket.isOpen, identity?.isAsking == false else { return }
    guard poller.timers.now < identityEnd, let question = identity?.ask() else { return endIdentity() }
    setIdentityDeadline()
    say(question)
  }

  private func setIdentityDeadline() {
    let left = Duration.nanoseconds(Int64(clamping: identityEnd &- poller.timers.now))
    identityDeadline = poller.timers.after(min(left, Self.identityPatience.one)) { [weak self] in
      guard let self else { return }
      // The answer may lie behind what nobody takes.
      if !held.isEmpty || (readerWaits.isEmpty && !holdsWrites) {
        identityEnd = poller.timers.now &+ Self.identityPatience.all.nanoseconds
        return setIdentityDeadline()
      }
      endIdentity()
      waitsChanged()
      announce()
    }
  }

  func hearIdentity(_ message: ATTMessage) {
    guard identity?.handle(message) == true else { return }
    poller.timers.cancel(identityDeadline)
    if identity?.isOver == true { endIdentity() }
    waitsChanged()
    announce()  // the writer's turn, and then the next question's
  }

  func endIdentity() {
    poller.timers.cancel(identityDeadline)
    guard let said = identity?.facts else { return }
    identity = nil
    metadata?.update { $0.add(said) }
  }
}
