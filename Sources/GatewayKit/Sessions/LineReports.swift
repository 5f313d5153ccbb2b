// Reports of the link and the line: to the clients with a control channel, to those that watch modem lines and errors,
// and to a recording. LineControl owns it and knows what there is to report.

import ByteStreams

final class LineReports {
  /// Sessions that have a control channel.
  private(set) var clients: [(session: Session, controlChannel: ControlChannel)] = []
  private let lineWatch: LineWatch
  /// Gets every report, as a client that watches the line.
  private var recorder: CaptureTap?

  init(on poller: Poller) { lineWatch = LineWatch(on: poller) }

  func report(_ event: ControlChannelEvent, except session: Session? = nil) {
    recorder?.report(event)
    for other in clients where other.session !== session { other.controlChannel.report(event) }
  }

  // MARK: - Receivers

  /// `state`: what is reported of link and line now.
  func join(_ session: Session, _ state: [ControlChannelEvent]) {
    guard let controlChannel = session.controlChannel else { return }
    clients.append((session, controlChannel))
    repeatState(state, to: controlChannel)
  }

  func leave(_ session: Session) {
    clients.removeAll { $0.session === session }
    if let controlChannel = session.controlChannel { lineWatch.stop(controlChannel) }
  }

  func repeatState(_ state: [ControlChannelEvent], to controlChannel: ControlChannel) {
    for event in state { controlChannel.report(event) }
    lineWatch.reportStatus(to: controlChannel)
  }

  /// From now on, `recorder` gets every report; nil: none does.
  func record(to recorder: CaptureTap?, _ state: [ControlChannelEvent]) {
    self.recorder = recorder
    if let recorder { for event in state { recorder.report(event) } }
    lineWatch.record(to: recorder)
  }

  func startWatch(_ controlChannel: ControlChannel, _ id: ControlChannelRequest.ID?) {
    lineWatch.start(controlChannel, id)
  }

  func stopWatch(_ controlChannel: ControlChannel) { lineWatch.stop(controlChannel) }

  // MARK: - The endpoint

  func attach(_ line: (any SerialLine)?) { lineWatch.attach(line) }

  func detach() { lineWatch.detach() }

  /// The link that clients waited for is not there.
  func refuseWatch(_ reason: String) { lineWatch.refuse(reason) }
}
