// The control channel of a program at a `pty` listener: changes of the pty's settings become requests of the line. The
// program gets no answer: the pty has none, and its settings belong to the program while it has the pty open.

import ByteStreams

final class PtyControl: ControlProtocol {
  private let stream: PtyClientStream
  /// The flow control that is in force once XON/XOFF ends.
  private var otherFlowControl = LineSettings.FlowControl.none
  let hasTexts = false
  let showsEvents = false

  init(_ stream: PtyClientStream) { self.stream = stream }

  func takeRequest() -> ControlChannelRequest.Parsed? {
    guard let (before, now) = stream.takeChange() else { return nil }
    var change = ControlChannelRequest.LineChange()
    if now.bitsPerSecond != before.bitsPerSecond,
      (1...ControlChannelRequest.mostBits).contains(UInt64(now.bitsPerSecond))
    {
      change.bitsPerSecond = now.bitsPerSecond
    }
    if now.hasTwoStopBits != before.hasTwoStopBits { change.stopBits = now.hasTwoStopBits ? .two : .one }
    if now.usesXonXoff != before.usesXonXoff { change.flowControl = now.usesXonXoff ? .xonxoff : otherFlowControl }
    return change == ControlChannelRequest.LineChange() ? nil : .success((nil, .line(change)))
  }

  func send(_ event: ControlChannelEvent) -> Bool {
    guard case .line(let settings) = event else { return true }
    if settings.flowControl != .xonxoff { otherFlowControl = settings.flowControl }
    stream.watchInSilence()  // not before there is a line: endpoints without one cost no wake-ups
    return true
  }

  func send(_ reply: ControlChannelReply) -> Bool { true }
}
