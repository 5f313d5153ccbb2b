// What happens to a stream besides its bytes, as values: the steps of an opening, losses, waits, facts about the
// device.

import ByteStreams

/// An event of a stream that `connect` opens.
public enum StreamEvent: Hashable, Sendable {
  /// A step of an opening begins.
  case step(OpeningStep)
  /// The stream is open, for the first time or again.
  case open
  /// The open link was lost.
  case lost(LinkStatus.Reason)
  /// It could not be opened or was lost, and is tried again after the pause, or earlier if its device appears.
  case waiting(LinkStatus.Reason, retryIn: Duration)
  /// Facts about the device are known, or have changed.
  case facts(DeviceFacts)
  /// The endpoint sent a message for people, such as a line of a program's standard error.
  case remark(EndpointRemark)
  /// The stream is over: it could not be opened, the program closed it, or it ended and is not opened again. The last
  /// event.
  case closed
}

/// Receives the events of one stream: each `connect` gets an observer of its own.
/// ```swift
/// let observer = StreamObserver()
/// Task { for await event in observer.events { print(event) } }
/// let stream = try await Broker.standard.connect(url, observer: observer)
/// ```
public final class StreamObserver: Sendable {
  /// The events, in order, for one loop, which ends after `.closed`. Of events that nobody has taken yet, the newest
  /// 256 are kept.
  public let events: AsyncStream<StreamEvent>
  private let continuation: AsyncStream<StreamEvent>.Continuation

  /// An observer for `connect`.
  public init() {
    (events, continuation) = AsyncStream.makeStream(bufferingPolicy: .bufferingNewest(256))
  }

  deinit { continuation.finish() }

  func report(_ event: StreamEvent) {
    continuation.yield(event)
    if event == .closed { continuation.finish() }
  }
}
