// Whole amounts of bytes in the background: progress and end are notifications.

import Foundation
import StreamBroker
import Synchronization

extension Stream {
  /// Writes all of `data` to `stream` in the background, after transfers to it that began earlier. Opens the stream if
  /// it is not open. Posts `transferProgressNotification` and, once, `transferDidEndNotification`; closing the stream
  /// ends the transfer with an error. For streams that `pair` did not make: nobody else may use it meanwhile.
  public static func send(_ data: Data, to stream: OutputStream) {
    transfer(on: stream, total: data.count) { stream, progress in
      var sent = 0
      while sent < data.count {
        let count = data.withUnsafeBytes { bytes in
          // Pieces, so that the progress is seen to move.
          let rest = UnsafeRawBufferPointer(rebasing: bytes[sent...].prefix(Transfer.piece))
          return rest.withMemoryRebound(to: UInt8.self) { stream.write($0.baseAddress!, maxLength: $0.count) }
        }
        guard count > 0 else { break }
        sent += count
        progress(sent)
      }
      return (sent, nil)
    }
  }

  /// Reads `count` bytes from `stream` in the background, fewer if it ends earlier. Opens the stream if it is not open.
  /// Posts `transferProgressNotification` and, once, `transferDidEndNotification` with the bytes. For streams that
  /// `pair` did not make: nobody else may use it meanwhile.
  public static func receive(_ count: Int, from stream: InputStream) {
    transfer(on: stream, total: count) { stream, progress in
      var data = Data()
      var piece = [UInt8](repeating: 0, count: Transfer.piece)
      while data.count < count {
        let number = stream.read(&piece, maxLength: min(Transfer.piece, count - data.count))
        guard number > 0 else { break }
        data.append(contentsOf: piece[..<number])
        progress(data.count)
      }
      return (data.count, data)
    }
  }

  private static func transfer<Kind: Stream>(
    on stream: Kind, total: Int, _ run: @escaping @Sendable (Kind, (Int) -> Void) -> (Int, Data?)
  ) {
    let link = (stream as? any EndpointStream)?.link
    let queue = link.map { stream is InputStream ? $0.receiving : $0.sending } ?? DispatchQueue(label: "transfer")
    let notifications = link?.notifications ?? NotificationPoster(.background, "")
    // Unchecked: streams of `pair` are safe, and for others it is the rule above.
    nonisolated(unsafe) let stream = stream
    queue.async {
      if stream.streamStatus == .notOpen { stream.open() }
      var last = DispatchTime.now()
      let facts = { (completed: Int) -> [String: any Sendable] in
        [notificationCompletedKey: completed, notificationTotalKey: total]
      }
      let (completed, data) = run(stream) { completed in
        guard last + .milliseconds(100) <= .now() else { return }
        last = .now()
        notifications.post(transferProgressNotification, from: stream, facts(completed))
      }
      var end = facts(completed)
      if let data { end[notificationDataKey] = data }
      if completed < total, stream is OutputStream || stream.streamError != nil {
        let error = stream.streamError as NSError?
        end[notificationErrorKey] = error ?? NSError.of(Transfer.closed, url: link?.handle.metadata.url ?? "")
      }
      notifications.post(transferDidEndNotification, from: stream, end)
    }
  }
}

private enum Transfer {
  static let piece = 16 * 1024
  static let closed = SystemError("write", EPIPE)
}
