// An open endpoint behind a pair of streams: one handle, and a side for each direction. Lives as long as one of the two
// streams, and then until the output that was taken has left.

import Foundation
import StreamBroker
import StreamBrokerBluetooth
import Synchronization

final class EndpointLink: Sendable {
  let handle: StreamHandle
  let input: InputSide
  let output: OutputSide
  let notifications: NotificationPoster
  /// Transfers in the background, one at a time in each direction.
  let receiving = DispatchQueue(label: "receiving")
  let sending = DispatchQueue(label: "sending")

  private struct State {
    var inputIsClosed = false
    var outputIsClosed = false
  }
  private let state = Mutex(State())

  private static let everyScheme = Broker(Schemes.standard + BluetoothSchemes.all)
  /// After both streams are closed, output that the endpoint does not take is dropped.
  private static let drain = Duration.seconds(5)

  private init(_ handle: StreamHandle, _ notifications: NotificationPoster) {
    self.handle = handle
    self.notifications = notifications
    input = InputSide(handle)
    output = OutputSide(handle)
  }

  /// Throws an `NSError`, or `CancellationError`.
  static func open(
    _ url: String, _ timeout: Duration, _ broker: Broker?, _ place: Stream.NotificationPlace
  ) async throws -> EndpointLink {
    let broker = broker ?? everyScheme
    let shown = (try? broker.url(url).description) ?? url  // without secrets
    let notifications = NotificationPoster(place, shown)
    let observer = StreamObserver()
    let watch = LinkWatch(notifications)
    Task(executorPreference: StreamExecutor.shared) { [events = observer.events] in
      for await event in events { watch.handle(event) }
    }
    do {
      let handle = try await broker.connect(url, timeout: timeout, observer: observer)
      let link = EndpointLink(handle, notifications)
      watch.found(link)
      return link
    } catch let error as CancellationError {
      throw error
    } catch {
      throw NSError.of(error, url: shown)
    }
  }

  /// The two streams. To be called once.
  func streams() -> sending (InputStream, OutputStream) {
    let (input, output) = (EndpointInputStream(self), EndpointOutputStream(self))
    notifications.post(Stream.didOpenNotification, from: input)
    return (input, output)
  }

  /// The link is gone. The input finds that out by itself, after its last byte.
  func lost(_ reason: LinkStatus.Reason) {
    let error: any Error
    switch reason {
    case .lost(nil), .released: return output.finish(.ended)  // no stream of the library is released
    case .lost(let cause?): error = cause
    case .exited(let end): error = end
    case .openFailed(let failure): error = failure
    case .broken(let fault): error = fault
    }
    output.finish(.failed(NSError.of(error, url: handle.metadata.url)))
  }

  // MARK: - Closing

  /// Safe to call twice.
  func closeInput() {
    input.close()
    closed { $0.inputIsClosed = true }
  }

  /// Ends the output after the bytes that were taken. Safe to call twice.
  func closeOutput() {
    output.close()
    closed { $0.outputIsClosed = true }
  }

  private func closed(_ change: (inout sending State) -> Void) {
    let isLast = state.withLock { state in
      let before = state.inputIsClosed && state.outputIsClosed
      change(&state)
      return !before && state.inputIsClosed && state.outputIsClosed
    }
    guard isLast else { return }
    Task(executorPreference: StreamExecutor.shared) { [handle, output] in
      let limit = Task(executorPreference: StreamExecutor.shared) {
        try await Task.sleep(for: Self.drain)
        handle.close()  // ends the write that waits
      }
      await output.finished()
      limit.cancel()
      handle.close()
    }
  }
}

/// Follows the events of a link: notifications, and its loss. Holds the link weakly, since it outlives it.
private final class LinkWatch: Sendable {
  private struct State {
    weak var link: EndpointLink?
    var isOpen = false
    /// It was lost before it was found.
    var early: LinkStatus.Reason?
  }
  private let state = Mutex(State())
  private let notifications: NotificationPoster

  init(_ notifications: NotificationPoster) { self.notifications = notifications }

  func found(_ link: EndpointLink) {
    let early = state.withLock { state in
      state.link = link
      return state.early
    }
    if let early { link.lost(early) }
  }

  func handle(_ event: StreamEvent) {
    let link = state.withLock { $0.link }
    let input = link?.input.stream
    switch event {
    case .step(let step):
      notifications.post(Stream.openingStepNotification, [Stream.notificationStepKey: "\(step)"])
    case .facts: notifications.post(Stream.metaDidChangeNotification, from: input)
    case .lost(let reason):
      // In one step: `found` may run at the same time, on another thread.
      let link = state.withLock { state in
        state.early = reason
        return state.link
      }
      link?.lost(reason)
      notifications.post(
        Stream.wasLostNotification, from: link?.input.stream, [Stream.notificationReasonKey: "\(reason)"])
    case .open: state.withLock { $0.isOpen = true }
    case .closed:
      if state.withLock({ $0.isOpen }) { notifications.post(Stream.didCloseNotification, from: input) }
    case .waiting, .remark: break
    }
  }
}

/// Runs this library's tasks apart from the program's own, whose blocking calls may keep all threads of the shared
/// pool.
final class StreamExecutor: TaskExecutor {
  static let shared = StreamExecutor()
  private let queue = DispatchQueue(label: "StreamBrokerFoundation", attributes: .concurrent)

  func enqueue(_ job: consuming ExecutorJob) {
    let job = UnownedJob(job)
    queue.async { job.runSynchronously(on: self.asUnownedTaskExecutor()) }
  }
}
