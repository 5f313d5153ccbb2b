// The requests of clients beside their bytes: passes each one to the part that handles it.

import ByteStreams
import StreamBroker

extension Upstream: LineControlDelegate {
  func lineWasReset(by recipe: ResetRecipe, for session: UInt64?, _ result: Result<Void, SystemError>) {
    delegate.lineWasReset(by: recipe, for: session, result)
  }

  /// Handles the requests that arrived with the last read, then resumes reading.
  func takeRequests(of session: Session) {
    guard let controlChannel = session.controlChannel, let lineControl else { return }
    while !session.isOver, let request = controlChannel.takeRequest() {
      handle(request, of: session, controlChannel, lineControl)
      if !session.isOver { session.readOn(poller) }
    }
  }

  func lineChanged() { delegate.lineChanged() }

  func lineWasAsked(_ request: ControlChannelRequest, refusal: String?, by session: Session) {
    delegate.lineWasAsked(request, refusal: refusal, by: session)
  }

  private func handle(
    _ parsed: ControlChannelRequest.Parsed, of session: Session, _ controlChannel: ControlChannel,
    _ lineControl: LineControl
  ) {
    let (id, request): (ControlChannelRequest.ID?, ControlChannelRequest)
    do throws(ControlChannelRequest.Fault) {
      (id, request) = try parsed.get()
    } catch {
      return controlChannel.reply(.failed(error.id, error.message, suggestion: error.suggestion))
    }
    if request.isInSequence { return lineControl.add(request, id, of: session) }
    switch request {
    case .purge(let what):
      if let refusal = lineControl.refusalToPurge(of: session) { return controlChannel.reply(.failed(id, refusal)) }
      if what != .input { dropKept(of: session) }
      lineControl.purge(what, id, of: session)
    case .watch(let isOn): lineControl.watch(isOn, id, of: session)
    case .writer(let wish): controlChannel.reply(follow(wish, of: session).map { .failed(id, $0) } ?? .done(id))
    default:
      lineControl.reportStatus(to: session)
      reportStatus(to: session)
      controlChannel.reply(.done(id))
    }
  }
}
