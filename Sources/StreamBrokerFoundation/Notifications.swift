// What happens to a stream, for observers of NotificationCenter.

import Foundation
import Synchronization

extension Stream {
  /// Where the notifications about a stream are posted.
  public enum NotificationPlace: @unchecked Sendable {  // unchecked: only posted to, which is safe on any thread
    /// A serial queue of this library.
    case background
    /// This queue.
    case queue(OperationQueue)
    /// This run loop, in its common modes.
    case runLoop(RunLoop)
  }

  // Each notification has the URL in `notificationURLKey`. Its object is the input stream, if it still exists.

  /// The link is open. The object is the input stream.
  public static let didOpenNotification = Notification.Name("StreamBrokerDidOpen")
  /// The link is closed: by the program, or after it was lost.
  public static let didCloseNotification = Notification.Name("StreamBrokerDidClose")
  /// The open link was lost or has ended; `notificationReasonKey` says why.
  public static let wasLostNotification = Notification.Name("StreamBrokerWasLost")
  /// `meta` has changed.
  public static let metaDidChangeNotification = Notification.Name("StreamBrokerMetaDidChange")
  /// A step of an opening begins, in `notificationStepKey`. The object is nil: there is no stream yet.
  public static let openingStepNotification = Notification.Name("StreamBrokerOpeningStep")
  /// A transfer in the background goes on: `notificationCompletedKey` of `notificationTotalKey` bytes. The object is
  /// its stream. At most ten a second.
  public static let transferProgressNotification = Notification.Name("StreamBrokerTransferProgress")
  /// A transfer in the background is over, with the same keys; with `notificationErrorKey` if it failed, and with
  /// `notificationDataKey` if it received.
  public static let transferDidEndNotification = Notification.Name("StreamBrokerTransferDidEnd")

  /// Key of the canonical URL, a `String`.
  public static let notificationURLKey = "url"
  /// Key of a sentence, a `String`.
  public static let notificationReasonKey = "reason"
  /// Key of "connecting to 127.0.0.1:4001", a `String`.
  public static let notificationStepKey = "step"
  /// Key of a number of bytes, an `Int`.
  public static let notificationCompletedKey = "completed"
  /// Key of a number of bytes, an `Int`.
  public static let notificationTotalKey = "total"
  /// Key of an `NSError`.
  public static let notificationErrorKey = "error"
  /// Key of the bytes that were received, as `Data`.
  public static let notificationDataKey = "data"
}

/// Posts the notifications of one link, in order.
final class NotificationPoster: @unchecked Sendable {  // unchecked: OperationQueue and the constants are thread-safe
  static let background = {
    let queue = OperationQueue()
    queue.maxConcurrentOperationCount = 1
    queue.name = "StreamBrokerFoundation notifications"
    return queue
  }()

  private let run: (@escaping @Sendable () -> Void) -> Void
  private let url: String

  init(_ place: Stream.NotificationPlace, _ url: String) {
    self.url = url
    switch place {
    case .background: run = { Self.background.addOperation($0) }
    case .queue(let queue):
      // The queue may run several operations at once.
      let last = Mutex<Operation?>(nil)
      run = { body in
        let next = BlockOperation()
        next.addExecutionBlock { [weak next] in
          next?.dependencies.forEach { next?.removeDependency($0) }  // each would keep all before it
          body()
        }
        last.withLock { last in
          if let last { next.addDependency(last) }
          last = next
        }
        queue.addOperation(next)
      }
    case .runLoop(let runLoop):
      let queue = RunLoopQueue(runLoop, mode: .common)
      run = { queue.post($0) }
    }
  }

  func post(_ name: Notification.Name, from stream: Stream? = nil, _ facts: [String: any Sendable] = [:]) {
    // Unchecked: the observer gets the stream as it would from any notification; it must not use it beside its owner.
    nonisolated(unsafe) let stream = stream
    run { [url] in
      NotificationCenter.default.post(
        name: name, object: stream, userInfo: [Stream.notificationURLKey: url].merging(facts) { $1 })
    }
  }
}
