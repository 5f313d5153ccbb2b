// Our requests that a device has to answer: confirmed writes and, beside the bytes, its identity. ATT allows one
// request at a time (Bluetooth Core, Vol 3, Part F, section 3.3.2), so the two take turns. Commands need not wait.

internal import CBluetooth
import ByteStreams
import Glibc

extension GATTStream {
  /// A device that does not confirm a request within this time is gone (section 3.3.3).
  static let answerPatience = Duration.seconds(30)
  /// A device that does not answer one identity question, or all of them, within these times is not asked again.
  static let identityPatience = (one: Duration.seconds(5), all: Duration.seconds(15))

  /// A request is outstanding, and writes have to wait for its answer.
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
    announce()  // later: this may be the reader's turn
  }

  private func noAnswer() {
    // The kernel may have dropped the answer together with notifications that nobody read.
    if bluetooth_drops(socket.raw) > lossesAtRequest { return answered() }
    // The answer may be queued after data that nobody has read.
    guard held.isEmpty, pendingReplies.isEmpty else { return awaitAnswer() }
    awaitsAnswer = false
    writeFailed(.unconfirmed)
    hangUp(SystemError("write", ETIMEDOUT))
    tellAll(hangUp: true)
  }

  // MARK: - Identity

  /// Starts with the next round, when the opener waits for the stream already: the questions do not delay the first
  /// bytes. `metadata` is updated at the end, with all answers.
  func askIdentity() {
    identity = GATTIdentity(mtu: plan.mtu, knownName: metadata?.facts.name)
    identityEnd = poller.timers.now &+ Self.identityPatience.all.nanoseconds
    announce()
  }

  /// Sends the next question, if no request is outstanding.
  func askOn() {
    guard !awaitsAnswer, socket.isOpen, identity?.isAsking == false else { return }
    guard poller.timers.now < identityEnd, let question = identity?.ask() else { return endIdentity() }
    setIdentityDeadline()
    sendReply(question)
  }

  private func setIdentityDeadline() {
    let left = Duration.nanoseconds(Int64(clamping: identityEnd &- poller.timers.now))
    identityDeadline = poller.timers.after(min(left, Self.identityPatience.one)) { [weak self] in
      guard let self else { return }
      // The answer may be queued after data that nobody has read.
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
    announce()  // the writer's turn first, then the next question
  }

  func endIdentity() {
    poller.timers.cancel(identityDeadline)
    guard let said = identity?.facts else { return }
    identity = nil
    metadata?.update { $0.add(said) }
  }
}
